//! A stand-in for the packet path: it takes connections over and carries them with threads.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use router::flows::table::{FlowInfo, FlowTable, Handoff, TcpOptions};
use router_common::abi::reason::RelayReason;

/// What a handoff looked like.
#[derive(Clone, Debug)]
pub struct Taken {
    pub consumed_head_len: usize,
    pub to_instance: Vec<u8>,
    pub surplus_len: usize,
    pub rule: String,
    pub source_port: Option<SocketAddr>,
    /// Where the instance's socket really is bound.
    pub bound: SocketAddr,
}

#[derive(Default)]
pub struct Splicer {
    /// Refuses this many handoffs first, for that reason.
    pub refuse: Mutex<Option<(RelayReason, usize)>>,
    pub taken: Mutex<Vec<Taken>>,
    pub prepared: AtomicUsize,
    live: Arc<AtomicUsize>,
}

impl Splicer {
    pub fn refusing(reason: RelayReason, times: usize) -> Self {
        Self { refuse: Mutex::new(Some((reason, times))), ..Self::default() }
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }
}

impl FlowTable for Splicer {
    fn hand_off(&self, handoff: Handoff) -> Result<(), (RelayReason, Handoff)> {
        if let Some((reason, times)) = self.refuse.lock().unwrap().as_mut().filter(|(_, times)| *times > 0) {
            *times -= 1;
            return Err((*reason, handoff));
        }
        let Handoff {
            client,
            instance,
            consumed_head_len,
            to_instance,
            surplus_len,
            source_port,
            session,
            rule,
        } = handoff;
        let (client, mut instance) = (TcpStream::from(client), TcpStream::from(instance));
        self.taken.lock().unwrap().push(Taken {
            consumed_head_len,
            to_instance: to_instance.clone(),
            surplus_len,
            rule,
            source_port: source_port.as_ref().map(|lease| lease.source()),
            bound: instance.local_addr().unwrap(),
        });
        client.set_nonblocking(false).unwrap();
        instance.set_nonblocking(false).unwrap();
        self.live.fetch_add(1, Ordering::Relaxed);
        let live = Arc::clone(&self.live);
        thread::spawn(move || {
            instance.write_all(&to_instance).unwrap();
            let up = copy(client.try_clone().unwrap(), instance.try_clone().unwrap());
            let down = copy(instance, client);
            up.join().unwrap();
            down.join().unwrap();
            drop((session, source_port));
            live.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }

    fn prepare(&self, _client: TcpOptions, _source: SocketAddr, _instance: SocketAddr) {
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    fn flows(&self) -> Vec<FlowInfo> {
        Vec::new()
    }

    fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> usize {
        usize::MAX
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    })
}
