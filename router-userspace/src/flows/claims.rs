//! Connections that are opened in clients' names (`source = "transparent"`): which tuples they have, and that the kernel programs know of them.
//!
//! The source address is the client's and the port one of the router's own, as with any other connection to an instance: the client may use its own
//! ports for whatever it likes, also towards that instance. A tuple rests after its end, as ports do, and its late packets still come here.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use router_common::abi::key::FlowKey;

use super::kernel::TransparentTuples;
use super::ports::PortLease;

/// As long as instances are in TIME_WAIT.
const REST: Duration = Duration::from_secs(60);
/// Ports that are tried when others are in use.
const TRIES: usize = 64;

/// Source and instance.
type Tuple = (SocketAddr, SocketAddr);

#[derive(Debug)]
pub struct Claims {
    kernel: TransparentTuples,
    ports: RangeInclusive<u16>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: HashSet<Tuple>,
    /// Those that are not used any more, in the order of their end.
    resting: VecDeque<(Instant, Tuple)>,
    /// Ports are taken in turn, whoever the client is, so that each rests as long as possible.
    next: usize,
}

impl Claims {
    /// Goes on with the tuples of flows that an earlier daemon has left; others of its are given up.
    pub fn adopt(kernel: TransparentTuples, ports: RangeInclusive<u16>, live: &[Tuple]) -> Self {
        let keys: HashSet<FlowKey> =
            live.iter().filter_map(|(source, to)| FlowKey::tcp(*to, *source)).collect();
        for key in kernel.all().into_iter().filter(|key| !keys.contains(key)) {
            kernel.remove(key);
        }
        Self { kernel, ports, state: Mutex::default() }
    }

    /// A source address and port for a connection to an instance in a client's name. `None` if no port is free, if the kernel programs know of too many such
    /// connections already, or if the client and the instance are of two families.
    pub fn take(self: &Arc<Self>, client: IpAddr, instance: SocketAddr) -> Option<PortLease> {
        let mut state = self.state();
        self.release(&mut state, Instant::now());
        for _ in 0..TRIES {
            let port = *self.ports.start() as usize + state.next % self.ports.len();
            state.next += 1;
            let tuple = (SocketAddr::new(client, port as u16), instance);
            if state.taken.insert(tuple) {
                if self.enter(tuple) {
                    return Some(PortLease::claimed(Arc::clone(self), tuple.0, instance));
                }
                state.taken.remove(&tuple);
                return None;
            }
        }
        None
    }

    /// The tuple of a flow that outlived the daemon which opened its connection.
    pub fn keep(self: &Arc<Self>, source: SocketAddr, instance: SocketAddr) -> Option<PortLease> {
        let tuple = (source, instance);
        self.state().taken.insert(tuple);
        self.enter(tuple).then(|| PortLease::claimed(Arc::clone(self), source, instance))
    }

    /// It is not used any more.
    pub(super) fn end(&self, source: SocketAddr, instance: SocketAddr) {
        self.state().resting.push_back((Instant::now(), (source, instance)));
    }

    /// Gives up what has rested long enough.
    pub fn tidy(&self) {
        self.release(&mut self.state(), Instant::now());
    }

    fn release(&self, state: &mut State, now: Instant) {
        while let Some((_, tuple)) =
            state.resting.pop_front_if(|(since, _)| now.duration_since(*since) >= REST)
        {
            state.taken.remove(&tuple);
            if let Some(key) = FlowKey::tcp(tuple.1, tuple.0) {
                self.kernel.remove(key);
            }
        }
    }

    fn enter(&self, (source, instance): Tuple) -> bool {
        FlowKey::tcp(instance, source).is_some_and(|key| self.kernel.insert(key))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
