//! A client's connection, held in hand: for what curl does not do, such as pausing, half-closing or resetting.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::Reply;
use crate::lab::{Host, Lab};

/// Nothing in a story may wait longer than this for a byte.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Connects from `host` to `target`, for example `10.77.1.10:80`.
    pub fn open(lab: &Lab, host: Host, target: &str) -> io::Result<Self> {
        let target: SocketAddr = target.parse().map_err(io::Error::other)?;
        let stream = lab
            .inside(host, || TcpStream::connect_timeout(&target, PATIENCE))
            .map_err(io::Error::other)??;
        Self::over(stream)
    }

    /// Connects from an address of `host` that is not its first.
    pub fn open_from(lab: &Lab, host: Host, source: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        let connect = || {
            let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&source.into())?;
            socket.connect_timeout(&target.into(), PATIENCE)?;
            Ok::<_, io::Error>(TcpStream::from(socket))
        };
        Self::over(lab.inside(host, connect).map_err(io::Error::other)??)
    }

    /// Over a stream that is connected already.
    pub fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::with_capacity(256 << 10, stream) })
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// The stream alone. Nothing may have been received.
    pub fn into_stream(self) -> TcpStream {
        self.reader.into_inner()
    }

    /// Reading gives up after this long.
    pub fn wait_at_most(&self, limit: Duration) {
        self.stream().set_read_timeout(Some(limit)).expect("the limit is not zero");
    }

    pub fn local_address(&self) -> SocketAddr {
        self.stream().local_addr().expect("the socket is connected")
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes.as_ref())
    }

    /// A second handle, to send while the first waits for the reply.
    pub fn sender(&self) -> io::Result<TcpStream> {
        self.stream().try_clone()
    }

    /// Sends a GET that keeps the connection alive and reads the reply.
    pub fn get(&mut self, path: &str) -> io::Result<Reply> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n"))?;
        self.reply()
    }

    /// Reads one reply with a `Content-Length`, or without one up to the end of the connection.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.reader.read_until(b'\n', &mut head)? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "closed before the end of the head",
                ));
            }
        }
        let mut reply = Reply::parse(&head, 0);
        match reply.headers.get("content-length") {
            Some(length) => {
                let length: usize = length.parse().map_err(io::Error::other)?;
                reply.body = self.receive(length)?;
            }
            None => {
                self.reader.read_to_end(&mut reply.body)?;
            }
        }
        Ok(reply)
    }

    /// Reads exactly this many bytes.
    pub fn receive(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads to the end of the connection.
    pub fn receive_all(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends the end of our direction; the other stays open.
    pub fn end(&mut self) -> io::Result<()> {
        self.stream().shutdown(Shutdown::Write)
    }

    /// Closes with a reset.
    pub fn reset(self) -> io::Result<()> {
        SockRef::from(self.stream()).set_linger(Some(Duration::ZERO))
    }
}
