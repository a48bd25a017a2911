//! The route of a first request whose connection has no socket: `first packets → parse → decide → bind → session accounting`.
//!
//! Read [`Desk::take`] first, and [`choose`] for the middle of it. It is the short cut of `connection`: what it cannot do at once (a head that is not complete, or not
//! well-formed, a request that has to wait or to be answered) it leaves to that, on a socket that is made then. The reason is counted.

mod assemblies;
mod choose;
mod desk;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::connection;
use super::listener::Listening;
use super::settings::Listener;
use crate::flows::binding::{Arrivals, Binder};
use desk::Desk;

/// For how long first packets are surely taken, unless this is said again.
const ATTENDANCE: Duration = Duration::from_secs(1);
/// How often those that wait are looked at, and how often it is said that somebody is there.
const BUSY: Duration = Duration::from_millis(2);
const IDLE: Duration = Duration::from_millis(200);
/// First packets in a row before others get their turn.
const BATCH: usize = 64;

/// Binds the connections of one ring until it is told to stop. `alive` is held for every connection that goes on by a socket.
pub(super) async fn attend(
    binder: Arc<Binder>,
    arrivals: Arrivals,
    listening: Arc<Listening>,
    stopping: watch::Receiver<Option<tokio::time::Instant>>,
    alive: mpsc::Sender<()>,
) -> io::Result<()> {
    let outcome = attend_until(&binder, arrivals, &listening, stopping, alive).await;
    // Whoever would be told of by this ring is told nothing: the stack gets them, and those of the other workers, which are stopping too, or should.
    binder.abandon();
    outcome
}

async fn attend_until(
    binder: &Arc<Binder>,
    arrivals: Arrivals,
    listening: &Listening,
    mut stopping: watch::Receiver<Option<tokio::time::Instant>>,
    alive: mpsc::Sender<()>,
) -> io::Result<()> {
    // SAFETY: the descriptor is owned, and stays the same one until it is dropped.
    let ready = unsafe { AsyncFd::register_with_interest(arrivals.readiness()?, Interest::READABLE) }?;
    let mut desk = Desk::new(Arc::clone(binder), arrivals);
    let serve = |revived: Revived| {
        let alive = alive.clone();
        tokio::spawn(async move {
            connection::serve(revived.listener, revived.socket, revived.peer).await;
            drop(alive);
        });
    };
    loop {
        binder.attend(ATTENDANCE);
        let pause = if desk.is_busy() { BUSY } else { IDLE };
        tokio::select! {
            biased;
            _ = stopping.wait_for(Option::is_some) => break,
            ready = ready.readable() => ready?.clear_ready(),
            () = tokio::time::sleep(pause) => {}
        }
        while desk.take(BATCH, |vip| listening.of(vip), serve) == BATCH {
            tokio::task::yield_now().await;
        }
        desk.look(serve);
    }
    desk.close();
    Ok(())
}

/// A connection that is to get a socket.
struct Revived {
    listener: Arc<Listener>,
    socket: Socket,
    peer: SocketAddr,
}
