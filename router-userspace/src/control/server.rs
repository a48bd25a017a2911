//! Serving the control socket and the read-only admin address: HTTP/1.1 on a thread of its own.
//!
//! Nothing that clients do here may slow down connections: the thread shares no runtime with the listeners, bodies and
//! heads are bounded, every wait has a deadline (reading and writing alike), and the number of clients is limited (see [`super::connections`]).

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use router_common::abi::reason::ControlReason;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep};
use tokio_io_timeout::TimeoutStream;

use super::connections::{Connections, Place};
use super::protocol::{VERSION, VERSION_HEADER};
use super::routes;
use super::socket::{ControlSocket, SocketError};
use super::state::State;
use super::tcp;
use crate::core::counters::Counters;

/// Clients connected to the control socket at once; the admin address has as many of its own.
pub const MAX_CONNECTIONS: usize = 64;
/// Connections at a time that are told that there is no place.
const MAX_REFUSING: usize = 64;

/// Longest head that is read.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Scheduling priority of the control thread: about a tenth of the weight that the others have.
const NICE: i32 = 10;

/// How long to wait after `accept` failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the server waits for a client before it lets it go.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the last answer, or from connecting, until the whole next head has arrived.
    pub head: Duration,
    /// While the client takes nothing of its answer; whatever it takes starts the time anew.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { head: Duration::from_secs(10), write: Duration::from_secs(10) }
    }
}

/// Where the daemon listens for its operators.
#[derive(Clone, Debug)]
pub struct Settings {
    pub socket: PathBuf,
    /// Members of this group may use the socket; without it only the daemon's user.
    pub group: Option<String>,
    /// Serves `/metrics` and `/healthz` over TCP.
    pub admin_listen: Option<SocketAddr>,
    pub timeouts: Timeouts,
}

/// Why the control server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(
        "cannot listen on admin_listen {address}: {source}; choose an address of this host and a free port"
    )]
    AdminListen { address: SocketAddr, source: io::Error },
    #[error("cannot start the control thread: {0}; check the limits on threads and open files")]
    Thread(io::Error),
}

/// A running control server. Dropping it stops the thread and removes the socket.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    admin: Option<SocketAddr>,
    socket: ControlSocket,
}

/// Sockets that are open and not served yet: clients that connect wait for their answers.
#[derive(Debug)]
pub struct Opened {
    socket: ControlSocket,
    admin: Option<std::net::TcpListener>,
    timeouts: Timeouts,
}

impl Opened {
    /// Opens the sockets. A daemon does this before anything else that another daemon might own too, since it fails
    /// if one answers on the same control socket.
    pub fn new(settings: &Settings) -> Result<Self, StartError> {
        let socket = ControlSocket::bind(&settings.socket, settings.group.as_deref())?;
        let admin = settings.admin_listen.map(listen_tcp).transpose()?;
        Ok(Self { socket, admin, timeouts: settings.timeouts })
    }

    /// Serves them on a new thread.
    pub fn serve(self, state: Arc<State>) -> Result<Server, StartError> {
        let Self { socket, admin, timeouts } = self;
        let listener = socket.listener().map_err(StartError::Thread)?;
        let admin_address = admin.as_ref().and_then(|listener| listener.local_addr().ok());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                yield_to_traffic();
                runtime.block_on(async move {
                    tokio::select! {
                        _ = stopped => {}
                        () = serve(listener, admin, state, timeouts) => {}
                    }
                });
            })
            .map_err(StartError::Thread)?;
        Ok(Server { stop: Some(stop), thread: Some(thread), admin: admin_address, socket })
    }
}

impl Server {
    /// The address of `/metrics` over TCP, with the port that the kernel chose if 0 was asked for.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    pub fn socket(&self) -> &ControlSocket {
        &self.socket
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Lowers the priority of the calling thread, so that on a busy host clients of the control socket cannot take CPU
/// time from the threads that carry connections.
pub(super) fn yield_to_traffic() {
    // Without a process id Linux takes the calling thread; lowering needs no permission.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "the control thread keeps its priority");
    }
}

fn listen_tcp(address: SocketAddr) -> Result<std::net::TcpListener, StartError> {
    tcp::listen(address).map_err(|source| StartError::AdminListen { address, source })
}

async fn serve(
    control: std::os::unix::net::UnixListener,
    admin: Option<std::net::TcpListener>,
    state: Arc<State>,
    timeouts: Timeouts,
) {
    let control_routes = routes::control(Arc::clone(&state));
    let service = Serving { timeouts, counters: Arc::clone(&state.counters) };
    let admin_service = service.clone();
    let control = async move {
        match UnixListener::from_std(control) {
            Ok(listener) => {
                let next = async || listener.accept().await.map(|(stream, _)| stream);
                accept(next, MAX_CONNECTIONS, control_routes, service).await;
            }
            Err(error) => tracing::error!(%error, "the control socket cannot be served"),
        }
    };
    let admin = async move {
        let Some(listener) = admin else { return };
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                let next = async || listener.accept().await.map(|(stream, _)| stream);
                accept(next, MAX_CONNECTIONS, routes::admin(state), admin_service).await;
            }
            Err(error) => tracing::error!(%error, "the admin address cannot be served"),
        }
    };
    tokio::join!(control, admin);
}

/// What every connection needs beside its routes.
#[derive(Clone)]
pub(super) struct Serving {
    pub timeouts: Timeouts,
    pub counters: Arc<Counters>,
}

pub(super) async fn accept<S>(
    next: impl AsyncFn() -> io::Result<S>,
    limit: usize,
    routes: axum::Router,
    serving: Serving,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connections = Connections::new(limit);
    // The runtime may accept faster than it runs the tasks that say no.
    let refusing = Arc::new(Semaphore::new(MAX_REFUSING));
    for id in 0u64.. {
        match next().await {
            Ok(stream) => {
                let mut stream = TimeoutStream::new(stream);
                stream.set_write_timeout(Some(serving.timeouts.write));
                match connections.admit(id, Instant::now()) {
                    Some(place) => {
                        let connection =
                            serve_connection(Box::pin(stream), place, routes.clone(), serving.clone());
                        drop(tokio::spawn(connection));
                    }
                    None => {
                        serving.counters.control_closed.add(ControlReason::TurnedAway);
                        // Without a permit it is closed without a word.
                        if let Ok(permit) = Arc::clone(&refusing).try_acquire_owned() {
                            drop(tokio::spawn(turn_away(Box::pin(stream), permit)));
                        }
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection<S>(stream: S, place: Place, routes: axum::Router, serving: Serving)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let routes = TowerToHyperService::new(routes);
    let place = Arc::new(place);
    let service = service_fn(|request| {
        let answer = routes.call(request);
        let place = Arc::clone(&place);
        async move {
            place.set_busy(true);
            let answer = answer.await;
            place.set_busy(false);
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(serving.timeouts.head)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let (reason, error) = tokio::select! {
        ended = connection => match ended {
            Ok(()) => return,
            Err(error) => (reason_of(&error), Some(error)),
        },
        () = place.evicted() => (ControlReason::MadeRoom, None),
    };
    serving.counters.control_closed.add(reason);
    tracing::debug!(
        reason = reason.name(),
        error = error.map(tracing::field::display),
        "a control connection was closed"
    );
}

/// Why serving a connection failed. Only writing has a timeout on the stream itself; that of the head is hyper's.
fn reason_of(error: &hyper::Error) -> ControlReason {
    if error.is_parse() {
        return ControlReason::BadHead;
    }
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    let unread = causes.any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|it| it.kind() == io::ErrorKind::TimedOut)
    });
    if unread {
        ControlReason::AnswerUnread
    } else if error.is_timeout() {
        ControlReason::HeadTimeout
    } else {
        ControlReason::ClientGone
    }
}

/// Says that there is no place, without reading what the client may send.
async fn turn_away<S: AsyncWrite + Unpin>(mut stream: S, _permit: OwnedSemaphorePermit) {
    const BODY: &str = r#"{"error":"too many control connections are open","help":"close idle ones, or try again in a second"}"#;
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\n{VERSION_HEADER}: {VERSION}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{BODY}",
        BODY.len()
    );
    drop(stream.write_all(answer.as_bytes()).await);
    drop(stream.shutdown().await);
}
