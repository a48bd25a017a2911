//! The control socket and `routerctl` against a server in this process, with a routing table made by hand.

mod capture;
mod changes;
mod cli;
mod configurator;
mod daemon;
mod endpoints;
mod hostile;
mod manual;
mod preloads;
mod simulate;
mod socket;
mod whereabouts;
