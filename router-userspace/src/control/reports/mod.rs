//! Reports that instances push: `POST /v1/report` on an address of its own, with the pool's token.
//!
//! The route: [`tokens`] says which pools may be reported for → [`said`] holds every value against what can be → [`Intake`]
//! finds the instance and takes the report in. Whatever is refused has a reason, is counted, and disturbs nothing.

mod routes;
mod said;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use router_common::abi::reason::ReportReason;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub use said::Said;
pub use tokens::Tokens;

use super::server::{Serving, Timeouts, accept, yield_to_traffic};
use super::tcp;
use crate::core::counters::Counters;

/// Instances that may be connected at once. The one that has been idle longest makes room for another.
const MAX_CONNECTIONS: usize = 4_096;

/// Agents keep their connection between reports.
const TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(60), write: Duration::from_secs(10) };

/// Why a report is not taken in, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: ReportReason,
    pub error: String,
    pub help: String,
}

impl Refused {
    pub fn new(reason: ReportReason, error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { reason, error: error.into(), help: help.into() }
    }
}

/// Where a report went.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Taken {
    pub pool: String,
    pub instance: String,
    /// `available`, `strained` or `exhausted`, as the router now sees it.
    pub load: &'static str,
    /// Whether the instance joined its pool with this report.
    pub registered: bool,
}

/// Takes in what an instance says of itself. The daemon's composition root provides it.
pub trait Intake: Send + Sync {
    /// `pools` are those whose token the report carries; there is at least one.
    fn take(&self, pools: &[&str], said: &Said, now: Instant) -> Result<Taken, Refused>;
}

/// What reports are answered from.
pub struct ReportState {
    pub tokens: Arc<Tokens>,
    pub intake: Box<dyn Intake>,
    pub counters: Arc<Counters>,
}

impl std::fmt::Debug for ReportState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReportState").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// Why nobody listens for reports.
#[derive(Debug, thiserror::Error)]
pub enum ReportsError {
    #[error(
        "cannot listen for reports on {address}: {source}; choose an address of this host and a free port for `listen` of [reports]"
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot start the thread for reports: {0}; check the limits on threads and open files")]
    Thread(io::Error),
}

/// A listening report server. Dropping it ends it.
#[derive(Debug)]
pub struct ReportServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl ReportServer {
    /// Listens on `address` and answers on a new thread, so that a flood of reports slows down nothing else.
    pub fn start(address: SocketAddr, state: ReportState) -> Result<Self, ReportsError> {
        let listen = || {
            let listener = tcp::listen(address)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen().map_err(|source| ReportsError::Listen { address, source })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ReportsError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("reports".to_owned()).spawn(move || {
            yield_to_traffic();
            runtime.block_on(async move {
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listener, Arc::new(state)) => {}
                }
            });
        });
        let thread = thread.map_err(ReportsError::Thread)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), address })
    }

    /// Where it listens, with the port that the kernel chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ReportServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn serve(listener: std::net::TcpListener, state: Arc<ReportState>) {
    let serving = Serving { timeouts: TIMEOUTS, counters: Arc::clone(&state.counters) };
    match TcpListener::from_std(listener) {
        Ok(listener) => {
            let next = async || listener.accept().await.map(|(stream, _)| stream);
            accept(next, MAX_CONNECTIONS, routes::routes(state), serving).await;
        }
        Err(error) => tracing::error!(%error, "reports cannot be taken in"),
    }
}
