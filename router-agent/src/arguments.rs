//! The agent's command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use router_report::parse_duration;

use crate::application::Source;

/// Reports this host's load to routers.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Arguments {
    /// Where a router takes reports: address or host name, and port. May be given several times
    #[arg(long, required = true, value_name = "HOST:PORT")]
    pub router: Vec<String>,
    /// File that holds the pool's token in its first line that is not empty and does not begin with #
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// The instance's name, as in the routers' configuration. Give it several times for several instances on this host
    #[arg(long, required = true, value_name = "NAME")]
    pub instance: Vec<String>,
    /// Where the instance listens, if it is to join its pool by itself; one for each --instance
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub address: Vec<SocketAddr>,
    /// Processing power compared with other hosts; 100 for each processor unless given
    #[arg(long, value_name = "NUMBER")]
    pub capacity: Option<f64>,
    /// Directory whose file system counts as disk for temporary files
    #[arg(long, default_value = "/tmp", value_name = "DIRECTORY")]
    pub temp_dir: PathBuf,
    /// File in which the application writes its sessions, loaded resources, calls per core and agent value as JSON;
    /// {instance} in it stands for the instance's name
    #[arg(long, value_name = "FILE", conflicts_with = "status_command")]
    pub status_file: Option<String>,
    /// How old the status file may be; an older one is as good as none
    #[arg(long, default_value = "1m", value_parser = max_age, value_name = "DURATION")]
    pub status_max_age: Duration,
    /// Program that prints the same JSON; run before each report with the instance's name as its argument
    #[arg(long, value_name = "PROGRAM")]
    pub status_command: Option<PathBuf>,
    /// Time between reports
    #[arg(long, default_value = "2s", value_parser = interval, value_name = "DURATION")]
    pub interval: Duration,
    /// Report once and end; fails if a router does not take the report, or the application's status cannot be had
    #[arg(long)]
    pub once: bool,
}

impl Arguments {
    /// Ends the process with a message if they are not understood.
    pub fn read() -> Self {
        let arguments = Self::parse();
        if !arguments.address.is_empty() && arguments.address.len() != arguments.instance.len() {
            let message = "give --address once for each --instance, or not at all";
            Self::command().error(ErrorKind::WrongNumberOfValues, message).exit();
        }
        arguments
    }

    /// Where the application says what only it knows.
    pub fn status(&self) -> Option<Source> {
        let file = |path: &String| Source::File { path: path.clone(), max_age: self.status_max_age };
        let command = || self.status_command.clone().map(Source::Command);
        self.status_file.as_ref().map(file).or_else(command)
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|duration| (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(duration))
        .ok_or_else(|| "write a duration from 100ms to 1h, such as 2s".to_owned())
}

fn max_age(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a duration such as 30s or 5m".to_owned())
}
