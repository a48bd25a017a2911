//! An instance that behaves as a story wants: a server in this process, on a backend of the lab.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::TcpStreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::SockRef;

use crate::lab::{Family, Host, Lab};

/// Serves each connection in a thread of its own until dropped.
#[derive(Debug)]
pub struct Peer {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Listens on `port` of a backend's IPv4 address. An error of `serve` ends its connection only: many stories end in one.
    pub fn start(
        lab: &Lab,
        backend: u8,
        port: u16,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_over(Family::V4, lab, backend, port, serve)
    }

    /// The same, on its address of this family.
    pub fn start_over(
        family: Family,
        lab: &Lab,
        backend: u8,
        port: u16,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let address = SocketAddr::new(family.address(Host::Backend(backend)), port);
        let listener = lab.inside(Host::Backend(backend), || TcpListener::bind(address));
        let listener = listener.expect("the lab is up").expect("the port is free");
        // Accepts at once, and looks from time to time whether it is still wanted.
        let patience = Some(Duration::from_millis(50));
        SockRef::from(&listener).set_read_timeout(patience).expect("the time is not zero");
        // As on connections that have been talking for a while, acknowledgements wait for an answer to travel with. Accepted sockets
        // inherit it; once they are accepted, the first bytes may have come.
        SockRef::from(&listener).set_tcp_quickack(false).expect("Linux has this option");
        let stopping = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicUsize::new(0));
        let thread = thread::spawn({
            let (stopping, accepted) = (Arc::clone(&stopping), Arc::clone(&accepted));
            let serve = Arc::new(serve);
            move || {
                while !stopping.load(Ordering::Relaxed) {
                    let Ok((stream, _)) = listener.accept() else { continue };
                    accepted.fetch_add(1, Ordering::Relaxed);
                    let serve = Arc::clone(&serve);
                    thread::spawn(move || prepare(&stream).and_then(|()| serve(stream)));
                }
            }
        });
        Self { address, stopping, accepted, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))
}

/// Reads a request's head, its empty line included.
pub fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

/// Answers one request with `body`, without a length, and closes first.
pub fn close_first(mut stream: TcpStream, body: &[u8]) -> io::Result<()> {
    read_head(&mut stream)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    stream.write_all(body)?;
    stream.shutdown(Shutdown::Both)
}

/// Reads the head and everything behind it up to the client's end, and only then answers with what came.
pub fn answer_at_the_end(mut stream: TcpStream) -> io::Result<()> {
    read_head(&mut stream)?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", received.len())?;
    stream.write_all(&received)?;
    stream.shutdown(Shutdown::Write)
}

/// Reads a request with a body of `length` bytes, acknowledging as late as the kernel allows, and answers with the body.
pub fn acknowledge_late(mut stream: TcpStream, length: usize) -> io::Result<()> {
    stream.set_quickack(false)?;
    read_head(&mut stream)?;
    let mut received = vec![0; length];
    let mut filled = 0;
    while filled < length {
        // The kernel falls back to quick acknowledgements by itself.
        stream.set_quickack(false)?;
        match stream.read(&mut received[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
    stream.write_all(&received)
}
