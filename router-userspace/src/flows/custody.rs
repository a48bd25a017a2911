//! The two sockets between the handoff and their silent close.
//!
//! While bytes are in custody only our sockets can send them again. The kernel programs record how far each side has acknowledged; the
//! keeper reads that from shared memory, which costs nothing, and closes both sockets once nothing is in custody. It also carries *late* bytes: those that
//! reached a socket's queue in the moment before its flow entries existed.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use router_common::abi::flow::{FLAG_DIRECT, Flow};
use router_common::wire::tcp::seq_before_eq;
use socket2::SockRef;

use super::sockets::{self, Peer};

/// How often acknowledgements are compared.
const TICK: Duration = Duration::from_millis(1);
/// How often a socket is asked for late bytes while acknowledgements are outstanding.
const LATE_CHECK: Duration = Duration::from_millis(20);
/// An end that acknowledges nothing for this long is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most late bytes fetched at a time.
const LATE_BUFFER: usize = 64 * 1024;

/// A connection whose sockets are still open.
#[derive(Debug)]
pub struct Ward {
    pub slot: u32,
    /// In the order of `Side`: the client's socket and the instance's.
    ends: [End; 2],
    since: Instant,
    /// When both queues were last seen to be empty.
    queues_empty: Option<Instant>,
    /// Whether bytes were carried that had been received before the handoff.
    carried: bool,
}

/// One socket, and what is still to be written to it.
#[derive(Debug)]
struct End {
    socket: OwnedFd,
    unsent: Vec<u8>,
    /// The other socket's peer has closed; FIN follows what is unsent.
    fin_wanted: bool,
    fin_sent: bool,
}

/// What one look at a ward has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Bytes are in custody.
    Keep,
    /// Nothing is in custody.
    Free,
    /// One side is gone, or acknowledges nothing.
    Lost,
}

impl Ward {
    /// `to_instance` is written at once as far as the socket takes it; `ack_cut` covers it already.
    pub fn new(slot: u32, client: OwnedFd, instance: OwnedFd, to_instance: Vec<u8>) -> Self {
        let end = |socket, unsent| End { socket, unsent, fin_wanted: false, fin_sent: false };
        let now = Instant::now();
        Self {
            slot,
            ends: [end(client, Vec::new()), end(instance, to_instance)],
            since: now,
            queues_empty: None,
            carried: false,
        }
    }

    /// Writes what is unsent, fetches late bytes, and tells whether anything is still in custody.
    pub fn look(&mut self, flow: &Flow, now: Instant) -> Outlook {
        if now.duration_since(self.since) > PATIENCE {
            return Outlook::Lost;
        }
        let acknowledged = all_acknowledged(flow);
        let idle = self.ends.iter().all(End::has_written_all);
        let looked = self.queues_empty.is_some_and(|seen| now.duration_since(seen) < LATE_CHECK);
        if idle && !acknowledged && looked {
            return Outlook::Keep;
        }
        match self.carry(flow) {
            Err(_) => Outlook::Lost,
            // What was carried is in custody now. It may be acknowledged already, but more may have been waiting behind it.
            Ok(true) => {
                self.queues_empty = None;
                self.carried = true;
                Outlook::Keep
            }
            Ok(false) => {
                self.queues_empty = Some(now);
                let over = self.ends.iter().all(End::has_written_all) && all_acknowledged(flow);
                if over { Outlook::Free } else { Outlook::Keep }
            }
        }
    }

    /// From here on every packet is translated; then the sockets vanish.
    pub fn release(self, flow: &Flow) {
        make_direct(flow);
        for (asked, sender) in [(1, 0), (0, 1)] {
            // A sender that has used up the window which our socket had given it knows of no other: those of the other side were told
            // to our socket. Asked once more, the other side tells it, and the answer is translated. A sender that may still send is answered
            // anyway, and a probe behind its segments would be older than they are (PAWS).
            if self.carried && sockets::has_used_up_window(&self.ends[sender].socket).unwrap_or(false) {
                let _ = sockets::probe_window(&self.ends[asked].socket);
            }
        }
        for end in self.ends {
            sockets::close_silently(end.socket);
        }
    }

    /// Both peers learn that the connection is gone, and the flow expires.
    pub fn abort(self, flow: &Flow) {
        note_reset(flow);
        for end in self.ends {
            sockets::abort(end.socket);
        }
    }

    /// Moves late bytes and a late FIN from each socket to the other. Tells whether there were any.
    fn carry(&mut self, flow: &Flow) -> io::Result<bool> {
        let mut carried = false;
        for from in 0..2 {
            let to = 1 - from;
            // The receiver's acknowledgements of what is carried are our socket's: the cut must say so before they can come.
            let cut = &flow.translations[to].ack_cut;
            if sockets::unread(&self.ends[from].socket)? > 0 {
                // Reading makes room in our queue, but the peer's next bytes are not for it.
                sockets::hold_window(&self.ends[from].socket)?;
                let mut buffer = vec![0; LATE_BUFFER];
                let read = match sockets::receive(&self.ends[from].socket, &mut buffer) {
                    Ok(read) => read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error),
                };
                cut.set(cut.get().wrapping_add(read as u32));
                self.ends[to].unsent.extend_from_slice(&buffer[..read]);
                carried = true;
            } else if !self.ends[to].fin_wanted {
                match sockets::peer(&self.ends[from].socket)? {
                    Peer::Open => {}
                    Peer::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
                    Peer::Closed => {
                        cut.set(cut.get().wrapping_add(1));
                        // In the closing side's own space, as the kernel programs would have noted it.
                        let own = cut.get().wrapping_sub(flow.translations[from].seq_delta.get());
                        flow.progress[from].fin_end.set(own);
                        flow.progress[from].fin_seen.set(1);
                        self.ends[to].fin_wanted = true;
                        carried = true;
                    }
                }
            }
            self.ends[to].write()?;
        }
        Ok(carried)
    }
}

/// Whether nothing is in custody any more, as far as the kernel programs have seen acknowledgements.
pub fn all_acknowledged(flow: &Flow) -> bool {
    (0..2).all(|side| seq_before_eq(flow.translations[side].ack_cut.get(), flow.progress[side].max_ack.get()))
}

/// From here on every packet is translated.
pub fn make_direct(flow: &Flow) {
    for translation in &flow.translations {
        translation.traits.set(translation.traits.get() | FLAG_DIRECT);
    }
}

/// The flow is to expire, and resets from this host may pass.
pub fn note_reset(flow: &Flow) {
    for progress in &flow.progress {
        progress.rst_seen.set(1);
    }
}

impl End {
    fn has_written_all(&self) -> bool {
        self.unsent.is_empty() && self.fin_wanted == self.fin_sent
    }

    fn write(&mut self) -> io::Result<()> {
        if !self.unsent.is_empty() {
            match sockets::send(&self.socket, &self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if self.unsent.is_empty() && self.fin_wanted && !self.fin_sent {
            SockRef::from(&self.socket).shutdown(Shutdown::Write)?;
            self.fin_sent = true;
        }
        Ok(())
    }
}

/// The wards of all workers, and the thread that looks after them.
#[derive(Debug, Default)]
pub struct Wards {
    list: Mutex<Vec<Ward>>,
    arrived: Condvar,
}

impl Wards {
    pub fn add(&self, ward: Ward) {
        let mut list = self.lock();
        list.push(ward);
        self.arrived.notify_one();
    }

    /// One round: waits up to `patience` for a ward to arrive, then looks at every ward.
    pub fn look_after(&self, patience: Duration, flows: &[Flow]) {
        let mut list = self.lock();
        if list.is_empty() {
            list = self.arrived.wait_timeout(list, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        if list.is_empty() {
            return;
        }
        // Workers must not wait while sockets are looked at.
        let mut wards = std::mem::take(&mut *list);
        drop(list);
        std::thread::sleep(TICK);
        let now = Instant::now();
        let mut kept = Vec::with_capacity(wards.len());
        for mut ward in wards.drain(..) {
            let flow = &flows[ward.slot as usize];
            match ward.look(flow, now) {
                Outlook::Keep => kept.push(ward),
                Outlook::Free => ward.release(flow),
                Outlook::Lost => {
                    tracing::debug!(
                        slot = ward.slot,
                        "custody ended without acknowledgement; both sides are reset"
                    );
                    ward.abort(flow);
                }
            }
        }
        self.lock().append(&mut kept);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Ward>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Room for all late bytes of a test before anybody reads.
        SockRef::from(&listener).set_recv_buffer_size(1 << 20).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (peer, listener.accept().unwrap().0)
    }

    /// A ward between two peers whose acknowledgements are recorded before anybody looks.
    fn ward() -> (TcpStream, TcpStream, Ward, Flow) {
        let ((client, ours), (instance, theirs)) = (pair(), pair());
        let flow = Flow::default();
        for progress in &flow.progress {
            progress.max_ack.set(1 << 30);
        }
        (client, instance, Ward::new(0, ours.into(), theirs.into(), Vec::new()), flow)
    }

    fn free(ward: &mut Ward, flow: &Flow) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while ward.look(flow, Instant::now()) != Outlook::Free {
            assert!(Instant::now() < deadline, "the ward is never free");
        }
    }

    #[test]
    fn a_ward_is_not_free_while_late_bytes_wait_even_if_all_is_acknowledged() {
        let (mut client, mut instance, mut ward, flow) = ward();
        let late: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
        instance.write_all(&late).unwrap();
        while (sockets::unread(&ward.ends[1].socket).unwrap() as usize) < late.len() {
            std::thread::yield_now();
        }
        let reader = std::thread::spawn(move || {
            let mut received = vec![0; 200_000];
            client.read_exact(&mut received).unwrap();
            (received, client)
        });
        free(&mut ward, &flow);
        assert_eq!(flow.translations[0].ack_cut.get(), 200_000);
        assert_eq!(reader.join().unwrap().0, late);
    }

    #[test]
    fn a_late_fin_is_sent_on_and_noted_as_the_kernel_would() {
        let (client, mut instance, mut ward, flow) = ward();
        flow.translations[0].seq_delta.set(1_000);
        flow.translations[1].ack_cut.set(5_000);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        free(&mut ward, &flow);
        assert_eq!(flow.progress[0].fin_seen.get(), 1);
        assert_eq!(flow.progress[0].fin_end.get(), 4_001);
        assert_eq!(instance.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn a_side_that_is_gone_ends_the_ward_with_a_reset_of_the_other() {
        let (client, mut instance, mut ward, flow) = ward();
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let deadline = Instant::now() + Duration::from_secs(5);
        while ward.look(&flow, Instant::now()) != Outlook::Lost {
            assert!(Instant::now() < deadline);
        }
        ward.abort(&flow);
        assert_eq!(instance.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(flow.progress[0].rst_seen.get(), 1);
    }
}
