//! The command line of `routerctl`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::change::{ChangesCommand, InstanceCommand, Manner, PoolCommand, RuleCommand};
use super::simulate::Simulation;
use crate::control::protocol::{DEFAULT_SOCKET, Header};

const EXIT_CODES: &str = "\
Exit codes:
  0  done, and the answer is good
  1  the answer is no: `check` or `simulate` found errors, the request of `explain` would not reach an instance,
     or the packet of `where` would be dropped
  2  the command line, or a value in it, is wrong
  3  no answer: the daemon cannot be reached, may not be asked, or speaks another version";

/// Looks into a running routerd.
#[derive(Debug, Parser)]
#[command(name = "routerctl", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(super) struct Arguments {
    /// Control socket of the daemon
    #[arg(long, global = true, value_name = "PATH", env = "ROUTER_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(super) socket: PathBuf,
    /// Print the daemon's JSON instead of tables
    #[arg(long, global = true)]
    pub(super) json: bool,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// What the daemon is doing: listeners, pools, connections, and why some were relayed or refused
    Status,
    /// Pools with their method, check and live sessions
    Pools,
    /// Instances with their health, admin state, weight and live sessions
    Instances,
    /// Rules in the order in which they are tried
    Rules,
    /// Resources that are opened on instances ahead of users: state, last and next run
    Preloads,
    /// Connections that travel through the kernel
    Flows(FlowFilter),
    /// Sessions that stay on their instances, and how many users, resources and waiting requests there are
    Sessions {
        /// Show at most this many
        #[arg(long, value_name = "N", default_value_t = 1000)]
        limit: u32,
    },
    /// The decision that the daemon would take for a request now, and why; changes nothing
    Explain(Question),
    /// Where a packet would go, and why: the kernel programs say so themselves. No counter, flow or budget is touched
    Where(AskedPackets),
    /// Packets that are dropped, or that are passed up for a reason, as they come; nothing is copied before it is asked for
    Capture(CaptureFilter),
    /// Read the configuration file anew: all of it comes into force, or nothing if it is not valid
    Reload(Manner),
    /// Changes that were made at run time and are not in the file
    #[command(args_conflicts_with_subcommands = true)]
    Changes {
        #[command(subcommand)]
        command: Option<ChangesCommand>,
    },
    /// Enable, disable, move, map, add or remove a rule; survives a restart
    Rule {
        #[command(subcommand)]
        command: RuleCommand,
    },
    /// Set, add or remove an instance; survives a restart
    Instance {
        #[command(subcommand)]
        command: InstanceCommand,
    },
    /// Set keys of a pool; survives a restart
    Pool {
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Validate a configuration file on this host, without a daemon
    Check {
        /// The configuration file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// What one configuration or two would do with many requests; needs no daemon and changes nothing
    Simulate(Box<Simulation>),
    /// Print a script that completes routerctl's command lines in a shell
    Completions {
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Every reason for which a packet, connection or request is not simply carried on, and how often it occurred
    Reasons,
}

#[derive(Debug, Args)]
pub(super) struct FlowFilter {
    /// Only flows to this instance: its name, or its address and port
    #[arg(long, value_name = "NAME")]
    pub(super) instance: Option<String>,
    /// Only flows from this client: an address, an address and port, or a network such as 10.0.0.0/8
    #[arg(long, value_name = "ADDRESS")]
    pub(super) client: Option<String>,
    /// Only flows of this listener: its name, or its address and port
    #[arg(long, value_name = "NAME")]
    pub(super) listener: Option<String>,
    /// Print only how many flows match
    #[arg(long)]
    pub(super) count: bool,
    /// Print at most so many, the oldest first
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct CaptureFilter {
    /// Packets of this reason, dropped or passed up (see `routerctl reasons`); may be given several times. Without it all that are dropped
    #[arg(long = "reason", value_name = "REASON")]
    pub(super) reasons: Vec<String>,
    /// End after so many packets
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) count: u32,
    /// End after so many seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(super) seconds: u32,
    /// Write them to this file (pcapng, with the reason as each packet's comment) instead of printing a line for each
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    routerctl where tcp 10.77.1.20:40000 10.77.1.10:80\n  \
    routerctl where tcp 10.77.1.20:40000 10.77.1.10:80 --flags 'fin|ack' --interface eth0\n  \
    routerctl where udp '[fd77:1::20]:5353' '[fd77:1::10]:53'\n  \
    routerctl where --pcap strange.pcap --interface eth0")]
pub(super) struct AskedPackets {
    /// The packet's protocol
    #[arg(value_parser = ["tcp", "udp"], required_unless_present = "pcap", conflicts_with = "pcap")]
    pub(super) protocol: Option<String>,
    /// Address and port that it comes from
    #[arg(value_name = "SOURCE", required_unless_present = "pcap")]
    pub(super) source: Option<SocketAddr>,
    /// Address and port that it is sent to
    #[arg(value_name = "DESTINATION", required_unless_present = "pcap")]
    pub(super) destination: Option<SocketAddr>,
    /// TCP flags such as syn or 'fin|ack'; without it ack in a handed-off connection, else syn
    #[arg(long, value_name = "FLAGS", conflicts_with = "pcap")]
    pub(super) flags: Option<String>,
    /// The VLAN that it is tagged with
    #[arg(long, value_name = "N", conflicts_with = "pcap")]
    pub(super) vlan: Option<u16>,
    /// Bytes behind its TCP or UDP header
    #[arg(long, value_name = "BYTES", default_value_t = 0, conflicts_with = "pcap")]
    pub(super) payload: u16,
    /// Its sequence number; without it what is next in a handed-off connection
    #[arg(long, value_name = "N", conflicts_with = "pcap")]
    pub(super) sequence: Option<u32>,
    /// Its acknowledgement number; without it what is next in a handed-off connection
    #[arg(long, value_name = "N", conflicts_with = "pcap")]
    pub(super) acknowledgement: Option<u32>,
    /// By which interface it arrives; without it the one that leads back to its source
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// Ask about every packet of this capture (pcap or pcapng, of Ethernet frames) instead
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,
    /// Ask about at most so many packets of the capture
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "pcap")]
    pub(super) limit: usize,
}

#[derive(Debug, Args)]
pub(super) struct Question {
    /// The listener that the client connects to
    #[arg(long, value_name = "NAME")]
    pub(super) listener: String,
    /// The client's address
    #[arg(long, value_name = "ADDRESS")]
    pub(super) client: IpAddr,
    /// On a Layer-4 listener: the client's port; without it any
    #[arg(long, value_name = "PORT")]
    pub(super) client_port: Option<u16>,
    /// Path and query of the request, as they stand in its first line
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub(super) path: String,
    /// A header field such as 'Host: gis.example'; may be given several times
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    pub(super) headers: Vec<Header>,
    /// The request's method
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    pub(super) method: String,
    /// The request's HTTP version
    #[arg(long, value_name = "VERSION", default_value = "1.1", value_parser = ["1.0", "1.1"])]
    pub(super) http_version: String,
    /// On a TLS listener: the name that the client asks for (SNI)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["path", "headers", "method", "http_version"])]
    pub(super) server_name: Option<String>,
    /// On a TLS listener: a protocol that the client offers, such as h2; may be given several times
    #[arg(long, value_name = "PROTOCOL", conflicts_with_all = ["path", "headers", "method", "http_version"])]
    pub(super) alpn: Vec<String>,
}

pub(super) fn header(text: &str) -> Result<Header, String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("a header field needs a colon between name and value: 'Host: gis.example'")?;
    Ok(Header { name: name.to_owned(), value: value.trim_matches([' ', '\t']).to_owned() })
}
