//! Accepts connections: one thread with its own runtime per worker, and in each a socket for every listener.
//!
//! The kernel spreads new connections over the sockets of a listener (`SO_REUSEPORT`), so workers share nothing
//! on the way from the packet to the decision.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use router_common::abi::reason::RefuseReason;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::bind;
use super::connection::serve;
use super::settings::{Listener, ListenerSettings, Offload};
use super::sockopt;
use crate::flows::binding::{Arrivals, Binder};

/// Connections accepted in a row before others get their turn.
const BATCH: usize = 64;
/// How long nothing is accepted after the host ran out of descriptors or memory. Clients wait in the backlog.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// The `TCP_MAXSEG` that sets no limit.
const BY_THE_ROUTE: u32 = 0;

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "listener {name:?} cannot use {address}: another process listens there; find it with `ss -ltnp`, stop it, or change `address`"
    )]
    InUse { name: String, address: SocketAddr },
    #[error("listener {name:?} may not use {address}: ports below 1024 need root or CAP_NET_BIND_SERVICE")]
    NotPermitted { name: String, address: SocketAddr },
    #[error("listener {name:?} cannot use {address}: {error}")]
    Other { name: String, address: SocketAddr, error: io::Error },
}

/// Opens one socket per worker. A VIP that is not on this host now is waited for: it may move here later.
pub fn open(settings: &ListenerSettings, workers: usize) -> Result<Vec<Socket>, ListenError> {
    let ListenerSettings { name, address, .. } = settings;
    let (name, address) = (name.clone(), *address);
    open_all(settings, workers).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse { name, address },
        ErrorKind::PermissionDenied => ListenError::NotPermitted { name, address },
        _ => ListenError::Other { name, address, error },
    })
}

fn open_all(settings: &ListenerSettings, workers: usize) -> io::Result<Vec<Socket>> {
    let mut address = settings.address;
    // Sockets that share a port share it with every process of this user: without this look, a second daemon
    // would silently take half of the connections.
    let alone = new_socket(address)?;
    let absent = match alone.bind(&address.into()) {
        Ok(()) => false,
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => true,
        Err(error) => return Err(error),
    };
    if absent {
        allow_absent(&alone, address)?;
        alone.bind(&address.into())?;
        tracing::warn!(
            listener = settings.name, %address,
            "no interface of this host has this address; connections will be accepted as soon as one has"
        );
    }
    if let Some(bound) = alone.local_addr()?.as_socket() {
        // Port 0 asks for any: all workers must share the one that was given.
        address.set_port(bound.port());
    }
    drop(alone);
    (0..workers.max(1))
        .map(|_| {
            let socket = new_socket(address)?;
            socket.set_reuse_port(true)?;
            if absent {
                allow_absent(&socket, address)?;
            }
            if let Some(bytes) = settings.max_segment {
                socket.set_tcp_mss(bytes.into())?;
            }
            // Accepted sockets inherit it, and what is set below.
            socket.set_tcp_nodelay(true)?;
            socket.bind(&address.into())?;
            socket.listen(i32::try_from(settings.backlog).unwrap_or(i32::MAX))?;
            // The response acknowledges the request, and saves a segment. Listening would reset it.
            socket.set_tcp_quickack(false)?;
            sockopt::defer_accept(socket.as_fd(), settings.defer_accept)?;
            Ok(socket)
        })
        .collect()
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // Whatever net.ipv6.bindv6only says: `[::]:80` leaves 0.0.0.0:80 to another listener.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

fn allow_absent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv4() { socket.set_freebind_v4(true) } else { socket.set_freebind_v6(true) }
}

/// The threads that serve all listeners.
#[derive(Debug)]
pub struct Workers {
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: watch::Sender<Option<Instant>>,
    shares: Vec<mpsc::UnboundedSender<(Current, Socket)>>,
    listening: Arc<Listening>,
    /// Binds connections whose listeners want that.
    binder: Option<Arc<Binder>>,
}

/// What the sockets of each address are told.
#[derive(Debug, Default)]
pub(super) struct Listening(Mutex<HashMap<SocketAddr, watch::Sender<Option<Arc<Listener>>>>>);

impl Listening {
    /// Who serves this address now.
    pub(super) fn of(&self, address: SocketAddr) -> Option<Arc<Listener>> {
        self.lock().get(&address)?.borrow().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, watch::Sender<Option<Arc<Listener>>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener that a socket serves now; `None` once it is removed.
type Current = watch::Receiver<Option<Arc<Listener>>>;

impl Workers {
    /// Starts `count` workers, of which as many bind as there are rings. Each listener brings one socket for each of them, from [`open`].
    pub fn start(
        count: usize,
        listeners: Vec<(Arc<Listener>, Vec<Socket>)>,
        (binder, rings): (Option<Arc<Binder>>, Vec<Arrivals>),
    ) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(None);
        let mut threads = Vec::new();
        let mut workers =
            Self { threads: Mutex::default(), stop, shares: Vec::new(), listening: Arc::default(), binder };
        let mut receivers = Vec::new();
        for _ in 0..count.max(1) {
            let (share, sockets) = mpsc::unbounded_channel();
            workers.shares.push(share);
            receivers.push(sockets);
        }
        for (listener, sockets) in listeners {
            workers.add(listener, sockets);
        }
        let mut rings = rings.into_iter();
        for (number, sockets) in receivers.into_iter().enumerate() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let stopping = stopping.clone();
            let ring = workers.binder.clone().zip(rings.next());
            let binding = ring.map(|(binder, ring)| (binder, ring, Arc::clone(&workers.listening)));
            let thread = thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || runtime.block_on(work(sockets, stopping, binding)))?;
            threads.push(thread);
        }
        workers.threads = Mutex::new(threads);
        Ok(workers)
    }

    /// How many sockets a listener needs.
    pub fn count(&self) -> usize {
        self.shares.len()
    }

    /// Serves one more listener, on sockets from [`open`].
    pub fn add(&self, listener: Arc<Listener>, sockets: Vec<Socket>) {
        let address = listener.settings.address;
        self.bind(&listener.settings);
        let (tell, current) = watch::channel(Some(listener));
        for (share, socket) in self.shares.iter().zip(sockets) {
            // A worker that has ended accepts nothing any more.
            let _ = share.send((current.clone(), socket));
        }
        self.listening.lock().insert(address, tell);
    }

    /// Serves the listener's address with these settings from now on; connections that are there keep theirs.
    pub fn update(&self, listener: Arc<Listener>) {
        self.bind(&listener.settings);
        if let Some(tell) = self.listening.lock().get(&listener.settings.address) {
            tell.send_replace(Some(listener));
        }
    }

    /// Stops accepting on this address. Connections that are there go on.
    pub fn remove(&self, address: SocketAddr) {
        if let Some(binder) = &self.binder {
            binder.ignore(address);
        }
        if let Some(tell) = self.listening.lock().remove(&address) {
            tell.send_replace(None);
        }
    }

    /// Has the connections of a listener bound, or not.
    fn bind(&self, settings: &ListenerSettings) {
        let Some(binder) = &self.binder else { return };
        if settings.offload != Offload::Bind {
            return binder.ignore(settings.address);
        }
        if let Err(error) = binder.listen(settings.address, settings.max_segment, settings.initial_window) {
            tracing::warn!(
                listener = settings.name,
                error,
                "connections are accepted by sockets, and not bound"
            );
        }
    }

    /// Accepts no more, and waits until every relayed connection has ended, for at most `grace`. Handed-off
    /// connections are not the workers' any more and go on. Blocks.
    pub fn stop(&self, grace: Duration) {
        self.stop.send_replace(Some(Instant::now() + grace));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker has panicked");
            }
        }
    }
}

async fn work(
    mut sockets: mpsc::UnboundedReceiver<(Current, Socket)>,
    mut stopping: watch::Receiver<Option<Instant>>,
    binding: Option<(Arc<Binder>, Arrivals, Arc<Listening>)>,
) {
    // Every task holds a sender: when all are gone, `ended` says so.
    let (alive, mut ended) = mpsc::channel::<()>(1);
    let stopped = stopping.clone();
    if let Some((binder, arrivals, listening)) = binding {
        let (stopping, alive) = (stopping.clone(), alive.clone());
        tokio::spawn(async move {
            if let Err(error) = bind::attend(binder, arrivals, listening, stopping, alive).await {
                tracing::error!(%error, "connections are not bound any more; sockets accept them");
            }
        });
    }
    let deadline = loop {
        tokio::select! {
            Some((current, socket)) = sockets.recv() => {
                let (alive, stopping) = (alive.clone(), stopped.clone());
                tokio::spawn(async move {
                    if let Err(error) = accept(current.clone(), socket, stopping, alive).await {
                        let name = current.borrow().as_ref().map(|listener| listener.settings.name.clone());
                        tracing::error!(listener = name, %error, "accepting has ended");
                    }
                });
            }
            deadline = stopping.wait_for(Option::is_some) => {
                break deadline.ok().and_then(|deadline| *deadline).unwrap_or_else(Instant::now);
            }
        }
    };
    drop(alive);
    tokio::select! {
        _ = ended.recv() => {}
        () = sleep_until(deadline) => {}
    }
}

/// Accepts until told to stop, or until the listener is removed, and then once more what is already waiting.
async fn accept(
    mut current: Current,
    socket: Socket,
    mut stopping: watch::Receiver<Option<Instant>>,
    alive: mpsc::Sender<()>,
) -> io::Result<()> {
    // SAFETY: a socket owns its descriptor, and keeps the same one until it is dropped.
    let socket = unsafe { AsyncFd::register(socket) }?;
    let Some(mut listener) = current.borrow_and_update().clone() else { return Ok(()) };
    loop {
        let mut ready = tokio::select! {
            biased;
            changed = current.changed() => {
                let next = current.borrow_and_update().clone();
                match (changed, next) {
                    (Ok(()), Some(next)) => {
                        adapt(socket.get_ref(), &listener.settings, &next.settings)?;
                        listener = next;
                        continue;
                    }
                    _ => break,
                }
            }
            _ = stopping.wait_for(Option::is_some) => break,
            ready = socket.readable() => ready?,
        };
        match ready.try_io(|socket| accept_batch(&listener, socket.get_ref(), &alive)) {
            Ok(Ok(())) => tokio::task::yield_now().await,
            Ok(Err(error)) => {
                listener.context.counters.refused.add(RefuseReason::OutOfResources);
                tracing::warn!(
                    listener = listener.settings.name, %error,
                    "accepting pauses: raise the limit of open files (LimitNOFILE=) or the host's memory"
                );
                sleep(EXHAUSTED_PAUSE).await;
            }
            Err(_would_block) => {}
        }
    }
    let batches = 1 + listener.settings.backlog as usize / BATCH;
    let _none_left = (0..batches).try_for_each(|_| accept_batch(&listener, socket.get_ref(), &alive));
    Ok(())
}

/// Gives a listening socket the settings that belong to it rather than to its connections.
fn adapt(socket: &Socket, before: &ListenerSettings, now: &ListenerSettings) -> io::Result<()> {
    if before.backlog != now.backlog {
        socket.listen(i32::try_from(now.backlog).unwrap_or(i32::MAX))?;
        socket.set_tcp_quickack(false)?;
    }
    if before.defer_accept != now.defer_accept {
        sockopt::defer_accept(socket.as_fd(), now.defer_accept)?;
    }
    if before.max_segment != now.max_segment {
        socket.set_tcp_mss(now.max_segment.map_or(BY_THE_ROUTE, u32::from))?;
    }
    Ok(())
}

/// Accepts up to [`BATCH`] connections. `WouldBlock` when none is waiting; other errors mean that the host has
/// run out of something.
fn accept_batch(listener: &Arc<Listener>, socket: &Socket, alive: &mpsc::Sender<()>) -> io::Result<()> {
    for _ in 0..BATCH {
        let (client, peer) = match socket.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
            Ok(accepted) => accepted,
            Err(error) if is_exhausted(&error) || error.kind() == ErrorKind::WouldBlock => return Err(error),
            // The client has gone while it waited, or the like: accept(2) lists what to ignore.
            Err(_) => continue,
        };
        let Some(peer) = peer.as_socket() else { continue };
        let (listener, alive) = (Arc::clone(listener), alive.clone());
        tokio::spawn(async move {
            serve(listener, client, peer).await;
            drop(alive);
        });
    }
    Ok(())
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// The address that a socket listens on; useful when port 0 was asked for.
pub fn address_of(socket: &Socket) -> Option<SocketAddr> {
    socket.local_addr().ok()?.as_socket()
}
