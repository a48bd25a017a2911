//! A socket for a connection that began without one.
//!
//! `TCP_REPAIR` makes an established connection from its numbers, and puts into its receive queue what the client has sent. So no
//! connection needs the kernel's listener to believe our cookies, and no host-wide setting has to be changed for that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use router_common::abi::binding::{AGREED_SACK, AGREED_SCALING, AGREED_TIMESTAMPS, OUR_SCALE};
use socket2::{Domain, Protocol, Socket, Type};

use super::First;
use crate::flows::socket_options::{
    Agreed, RepairWindow, TCP_QUEUE_SEQ, TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_TIMESTAMP, set_int,
    set_repair_options, set_repair_window,
};
use crate::flows::sockets;
use crate::flows::steps::{Step, before};

const QUEUE_RECEIVE: i32 = 1;
const QUEUE_SEND: i32 = 2;

/// Makes the socket. `lives` is called when it answers for what the client has sent: whatever keeps the client's packets away from the stack must
/// give way there.
pub fn revive(first: &First, clock: u32, lives: impl FnOnce() -> io::Result<()>) -> io::Result<OwnedFd> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(first.vip), kind, Some(Protocol::TCP))?;
    if first.vip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let set = |option, value| set_int(&socket, libc::IPPROTO_TCP, option, value);
    // In repair mode an address can be bound that others listen on, and connecting sends nothing.
    set(TCP_REPAIR, 1)?;
    socket.bind(&first.vip.into())?;
    set(TCP_REPAIR_QUEUE, QUEUE_SEND)?;
    set(TCP_QUEUE_SEQ, first.embryo.ack as i32)?;
    set(TCP_REPAIR_QUEUE, QUEUE_RECEIVE)?;
    set(TCP_QUEUE_SEQ, first.embryo.seq as i32)?;
    // The option below would bound the segments only once the route's MTU changes: until then they would be as small as those to a peer
    // that has announced nothing (536 bytes).
    socket.set_tcp_mss(first.embryo.segment.into())?;
    socket.connect(&first.client.into())?;

    let has = |option: u8| first.embryo.agreed & option != 0;
    let mut agreed = vec![Agreed::MaxSegment(first.embryo.segment)];
    if has(AGREED_SCALING) {
        agreed.push(Agreed::WindowScale { peer: first.embryo.scale, ours: OUR_SCALE });
    }
    if has(AGREED_SACK) {
        agreed.push(Agreed::Sack);
    }
    if has(AGREED_TIMESTAMPS) {
        agreed.push(Agreed::Timestamps);
    }
    set_repair_options(&socket, &agreed)?;
    if has(AGREED_TIMESTAMPS) {
        // The lowest bit would say that the clock ticks in µs.
        set(TCP_TIMESTAMP, (clock & !1) as i32)?;
    }
    let (seq, window) = (first.embryo.seq, first.window_bytes());
    set_repair_window(&socket, RepairWindow::new(seq, window, u32::from(first.embryo.window)))?;
    // Into the receive queue, which was chosen above.
    let sent = if first.payload.is_empty() { 0 } else { socket.send(&first.payload)? };
    if sent != first.payload.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    before(Step::LetSocketLive);
    let socket: OwnedFd = socket.into();
    // The probe that is sent now acknowledges what the client has sent. Only then may more of it come: a socket in repair mode acknowledges too, but
    // if the daemon dies it goes without a word.
    sockets::begin_to_live(&socket)?;
    before(Step::NoteSocket);
    lives()?;
    socket2::SockRef::from(&socket.as_fd()).set_tcp_nodelay(true)?;
    Ok(socket)
}
