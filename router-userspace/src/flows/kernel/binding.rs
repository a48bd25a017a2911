//! The tables of delayed binding, and the rings by which the kernel programs tell of first packets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, RingBuf};
use router_common::abi::binding::{
    Arrival, BindingSettings, BoundEndpoint, BoundListener, EMBRYO_DONE, Embryo, MAX_RINGS, Stash,
};
use router_common::abi::key::{FlowKey, words_of};

use super::by_family::ByFamily;
use super::maps::{mapped, of, take};
use super::{KernelError, lock, map_error};
use crate::flows::mapped::Mapped;

/// The rings, in the order in which the programs number them.
pub(super) const RINGS: [&str; MAX_RINGS] = [
    "ARRIVALS_0",
    "ARRIVALS_1",
    "ARRIVALS_2",
    "ARRIVALS_3",
    "ARRIVALS_4",
    "ARRIVALS_5",
    "ARRIVALS_6",
    "ARRIVALS_7",
];

/// What the daemon shares with the program of delayed binding.
pub struct BindingMaps {
    pub settings: Mapped<BindingSettings>,
    pub stashes: Arc<Mapped<Stash>>,
    listeners: Mutex<HashMap<MapData, BoundEndpoint, BoundListener>>,
    embryos: ByFamily<Embryo>,
    /// One for each worker that binds.
    pub rings: Vec<Arrivals>,
}

impl std::fmt::Debug for BindingMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BindingMaps").finish_non_exhaustive()
    }
}

impl BindingMaps {
    /// With this many rings.
    pub(super) fn take(ebpf: &mut Ebpf, rings: usize) -> Result<Self, KernelError> {
        let listeners = HashMap::try_from(take(ebpf, "BOUND_LISTENERS")?).map_err(map_error)?;
        let ring = |name: &&str| {
            let ring = take(ebpf, name).and_then(|map| RingBuf::try_from(map).map_err(map_error))?;
            Ok(Arrivals(ring))
        };
        let rings = RINGS[..rings].iter().map(ring).collect::<Result<_, KernelError>>()?;
        Ok(Self {
            settings: mapped(of(ebpf, "BINDING_SETTINGS"))?,
            stashes: Arc::new(mapped(of(ebpf, "STASHES"))?),
            listeners: Mutex::new(listeners),
            embryos: ByFamily::take(ebpf, ["EMBRYOS", "EMBRYOS6"])?,
            rings,
        })
    }

    /// The program answers clients of this VIP from now on.
    pub fn listen(&self, vip: SocketAddr, listener: BoundListener) -> Result<(), String> {
        lock(&self.listeners).insert(endpoint(vip), listener, 0).map_err(|error| map_error(error).to_string())
    }

    /// It does not any more. Fine if it did not.
    pub fn ignore(&self, vip: SocketAddr) {
        let _ = lock(&self.listeners).remove(&endpoint(vip));
    }

    /// The program answers nobody.
    pub fn ignore_all(&self) {
        let mut listeners = lock(&self.listeners);
        let all: Vec<_> = listeners.keys().flatten().collect();
        for endpoint in all {
            let _ = listeners.remove(&endpoint);
        }
    }

    /// Replaces what is known of a client without a flow.
    pub fn note(&self, client: FlowKey, embryo: Embryo) -> Result<(), String> {
        self.embryos.insert(client, embryo, 0).map_err(|error| map_error(error).to_string())
    }

    /// Whether what is known of a client says that this connection of it is somebody else's (a flow's, a socket's, nobody's), or that it has begun another one.
    pub fn is_over(&self, client: FlowKey, embryo: &Embryo) -> bool {
        self.embryos.get(client).is_some_and(|now| now.state == EMBRYO_DONE || !now.is_same(embryo))
    }
}

/// What the programs tell one worker.
pub struct Arrivals(RingBuf<MapData>);

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl Arrivals {
    /// Lets the oldest thing be read that has been told and nobody has read: what it is, and the bytes of its segment.
    pub fn read<T>(&mut self, read: impl FnOnce(&Arrival, &[u8]) -> T) -> Option<T> {
        let item = self.0.next()?;
        let (arrival, bytes) = item.split_first_chunk::<{ size_of::<Arrival>() }>()?;
        // SAFETY: an arrival is made of integers only, without padding, and the bytes are as many.
        let arrival: Arrival = unsafe { std::mem::transmute_copy(arrival) };
        let length = bytes.len().min(arrival.length as usize);
        Some(read(&arrival, &bytes[..length]))
    }

    /// Readable when there is something to read.
    pub fn readiness(&self) -> io::Result<OwnedFd> {
        let fd: RawFd = self.0.as_raw_fd();
        // SAFETY: the ring owns the descriptor and outlives this borrow of it.
        unsafe { BorrowedFd::borrow_raw(fd) }.as_fd().try_clone_to_owned()
    }
}

fn endpoint(vip: SocketAddr) -> BoundEndpoint {
    BoundEndpoint { address: words_of(vip.ip()), port: vip.port().to_be(), is_ipv6: vip.is_ipv6().into() }
}
