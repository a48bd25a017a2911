//! The control socket and `routerctl` against a server in this process, with a routing table made by hand.

mod cli;
mod daemon;
mod endpoints;
mod hostile;
mod manual;
mod socket;
