//! `routerctl`: asks a running daemon over its control socket, and prints tables for people or JSON for programs.

mod arguments;
mod capture;
mod captures;
mod change;
mod check;
mod client;
mod explain;
mod flows;
mod overview;
mod preloads;
mod rules;
mod sessions;
mod simulate;
mod table;
mod whereabouts;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::{CommandFactory, Parser};

use crate::control::protocol::{Instance, Pool, Preload, Reasons, Rule, Status};
use arguments::{Arguments, Command};
use captures::CaptureError;
use client::{Client, ClientError};

/// What the shell is told. Scripts may rely on these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, and the answer is good.
    Ok = 0,
    /// The answer is no: the file is invalid, or the explained request would not reach an instance.
    Negative = 1,
    /// The command line, or a value in it, is wrong.
    Usage = 2,
    /// No answer: the daemon cannot be reached or speaks another version.
    NoAnswer = 3,
}

/// Runs one command line, program name first. Styles are written as ANSI escapes; a caller whose output is no terminal
/// strips them.
pub fn run<'a, I, T>(arguments: I, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Exit
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(message) => {
            // `--help` and `--version` arrive here too; they are answers.
            let exit = if message.use_stderr() { Exit::Usage } else { Exit::Ok };
            let target = if exit == Exit::Usage { err } else { out };
            return match write!(target, "{}", message.render().ansi()) {
                Ok(()) => exit,
                Err(error) => after_write_error(&error),
            };
        }
    };
    match execute(&arguments, out, err) {
        Ok(exit) => exit,
        Err(Failure::Client(error)) => {
            drop(writeln!(err, "routerctl: {error}"));
            error.exit()
        }
        Err(Failure::Capture(error)) => {
            drop(writeln!(err, "routerctl: {error}"));
            Exit::Usage
        }
        Err(Failure::Output(error)) => after_write_error(&error),
    }
}

/// A reader that went away (`routerctl flows | head`) has seen what it wanted.
fn after_write_error(error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::BrokenPipe { Exit::Ok } else { Exit::NoAnswer }
}

enum Failure {
    Client(ClientError),
    Capture(CaptureError),
    Output(io::Error),
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        Self::Capture(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn execute(arguments: &Arguments, out: &mut dyn Write, err: &mut dyn Write) -> Result<Exit, Failure> {
    let client = Client::new(&arguments.socket);
    let json = arguments.json;
    match &arguments.command {
        Command::Status => {
            let answer = client.get::<Status>("/v1/status")?;
            if !answer.print_json(json, out)? {
                overview::status(&answer.value, out)?;
            }
        }
        Command::Pools => {
            let answer = client.get::<Vec<Pool>>("/v1/pools")?;
            if !answer.print_json(json, out)? {
                overview::pools(&answer.value, out)?;
            }
        }
        Command::Instances => {
            let answer = client.get::<Vec<Instance>>("/v1/instances")?;
            if !answer.print_json(json, out)? {
                overview::instances(&answer.value, out)?;
            }
        }
        Command::Rules => {
            let answer = client.get::<Vec<Rule>>("/v1/rules")?;
            if !answer.print_json(json, out)? {
                rules::rules(&answer.value, out)?;
            }
        }
        Command::Preloads => {
            let answer = client.get::<Vec<Preload>>("/v1/preloads")?;
            if !answer.print_json(json, out)? {
                preloads::preloads(&answer.value, out)?;
            }
        }
        Command::Reasons => {
            let answer = client.get::<Reasons>("/v1/reasons")?;
            if !answer.print_json(json, out)? {
                rules::reasons(&answer.value, out)?;
            }
        }
        Command::Sessions { limit } => sessions::run(&client, *limit, json, out)?,
        Command::Flows(filter) => flows::run(&client, filter, json, out)?,
        Command::Simulate(asked) => return simulate::run(asked, json, out, err),
        Command::Check { file } => return Ok(check::run(file, json, out)?),
        Command::Completions { shell } => {
            // Into memory first: the generator panics when a reader goes away.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "routerctl", &mut script);
            out.write_all(&script)?;
        }
        Command::Reload(manner) => return change::reload(&client, manner, json, out),
        Command::Changes { command } => return change::changes(&client, command.as_ref(), json, out),
        Command::Rule { command } => return change::rule(&client, command, json, out),
        Command::Instance { command } => return change::instance(&client, command, json, out),
        Command::Pool { command } => return change::pool(&client, command, json, out),
        Command::Capture(filter) => return capture::run(&client, filter, json, out, err),
        Command::Where(asked) => return whereabouts::run(&client, asked, json, out),
        Command::Explain(question) => return explain::run(&client, question, json, out),
    }
    Ok(Exit::Ok)
}
