//! A cable that delivers some packets twice and some late, as networks with several ways do.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::lab::{Host, Lab};
use crate::link::PacketSocket;

/// How many packets overtake one that is late.
const LATE_BY: usize = 3;
/// How long it waits for them.
const PATIENCE: Duration = Duration::from_millis(3);

/// Takes the switch's place between the gateway and backend 1 until dropped.
#[derive(Debug)]
pub struct UnrulyCable {
    stopping: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    twice: AtomicU64,
    late: AtomicU64,
}

impl UnrulyCable {
    /// Of a thousand packets in each direction, so many come twice and so many come late.
    pub fn lay(lab: &Lab, permille: u64) -> Self {
        // Packets are delivered as they are on a wire: no longer than its MTU, and with their checksums.
        for (host, interface) in [(Host::Gateway, "backends"), (Host::Backend(1), "eth0")] {
            let features = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
            run(lab.command(host, "ethtool").args(["-K", interface]).args(features));
        }
        let open = |port: &'static str| {
            run(lab.command(Host::Switch, "ip").args(["link", "set", port, "nomaster"]));
            lab.inside(Host::Switch, || PacketSocket::on(port)).expect("the lab is up").expect("a port")
        };
        let (gateway, backend) = (Arc::new(open("gateway")), Arc::new(open("backend1")));
        let (stopping, counts) = (Arc::<AtomicBool>::default(), Arc::<Counts>::default());
        let ways = [(1, &gateway, &backend), (2, &backend, &gateway)];
        let threads = ways
            .into_iter()
            .map(|(seed, from, to)| {
                let (from, to) = (Arc::clone(from), Arc::clone(to));
                let (stopping, counts) = (Arc::clone(&stopping), Arc::clone(&counts));
                thread::spawn(move || deliver(&from, &to, seed, permille, &stopping, &counts))
            })
            .collect();
        Self { stopping, counts, threads }
    }

    /// Packets that came twice, and that came late.
    pub fn misdeeds(&self) -> (u64, u64) {
        (self.counts.twice.load(Ordering::Relaxed), self.counts.late.load(Ordering::Relaxed))
    }
}

impl Drop for UnrulyCable {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn deliver(
    from: &PacketSocket,
    to: &PacketSocket,
    mut seed: u64,
    permille: u64,
    stopping: &AtomicBool,
    counts: &Counts,
) {
    // What does not fit the queue is lost, as on any wire.
    let send = |frame: &[u8]| drop(to.send(frame));
    let mut late: Option<(Vec<u8>, usize)> = None;
    while !stopping.load(Ordering::Relaxed) {
        let arrived = from.receive(PATIENCE).ok();
        if let Some(frame) = &arrived {
            match random(&mut seed) % 1000 {
                number if number < permille => {
                    counts.twice.fetch_add(1, Ordering::Relaxed);
                    send(frame);
                    send(frame);
                }
                number if number < 2 * permille && late.is_none() => {
                    counts.late.fetch_add(1, Ordering::Relaxed);
                    late = Some((frame.clone(), 0));
                    continue;
                }
                _ => send(frame),
            }
        }
        let overdue = late.as_mut().is_some_and(|(_, overtaken)| {
            *overtaken += 1;
            arrived.is_none() || *overtaken >= LATE_BY
        });
        if let Some((frame, _)) = late.take_if(|_| overdue) {
            send(&frame);
        }
    }
}

/// xorshift64
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
