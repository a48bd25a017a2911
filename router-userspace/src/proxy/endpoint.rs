//! One side of a connection.
//!
//! A socket joins the runtime only when it has to wait: most first requests are there when the connection is
//! accepted, and a connection that is handed off at once never needs the runtime at all.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::buffer::Buffer;

/// A non-blocking TCP socket.
#[derive(Debug)]
pub enum Endpoint {
    /// Not known to the runtime.
    Detached(Socket),
    /// Registered with this worker's runtime.
    Registered(TcpStream),
}

impl Endpoint {
    pub fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Detached(socket) => SockRef::from(socket),
            Self::Registered(stream) => SockRef::from(stream),
        }
    }

    /// Its own address; `None` if the socket is gone.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket().local_addr().ok()?.as_socket()
    }

    /// Receives what is there now. `Ok(0)` is the end of the stream.
    pub fn receive(&mut self, buffer: &mut Buffer) -> io::Result<usize> {
        let receive = |socket: SockRef<'_>, spare: &mut [MaybeUninit<u8>]| socket.recv(spare);
        let count = match self {
            Self::Detached(socket) => receive(SockRef::from(&*socket), buffer.spare())?,
            Self::Registered(stream) => {
                stream.try_io(Interest::READABLE, || receive(SockRef::from(&*stream), buffer.spare()))?
            }
        };
        // SAFETY: `recv` has initialised the first `count` bytes of the spare room.
        unsafe { buffer.filled(count) };
        Ok(count)
    }

    /// Looks at the first `limit` bytes, at most a buffer's capacity, of what is there now, and leaves them there. `Ok(0)` is the end of
    /// the stream.
    pub fn peek(&mut self, buffer: &mut Buffer, limit: usize) -> io::Result<usize> {
        let peek = |socket: SockRef<'_>, spare: &mut [MaybeUninit<u8>]| socket.peek(&mut spare[..limit]);
        let count = match self {
            Self::Detached(socket) => peek(SockRef::from(&*socket), buffer.spare())?,
            Self::Registered(stream) => {
                stream.try_io(Interest::READABLE, || peek(SockRef::from(&*stream), buffer.spare()))?
            }
        };
        // SAFETY: `peek` has initialised the first `count` bytes of the spare room.
        unsafe { buffer.filled(count) };
        Ok(count)
    }

    /// Takes the first `count` bytes of what [`Self::peek`] has shown.
    pub fn discard(&mut self, count: usize) -> io::Result<()> {
        let mut taken = 0;
        let mut buffer = Buffer::take();
        while taken < count {
            let spare = &mut buffer.spare()[..count - taken];
            match self.socket().recv(spare)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => taken += more,
            }
        }
        Ok(())
    }

    /// Sends as much as the socket takes now.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Detached(socket) => socket.send_with_flags(bytes, libc::MSG_NOSIGNAL),
            Self::Registered(stream) => stream.try_write(bytes),
        }
    }

    /// Waits until something, or the end, can be received.
    pub async fn readable(&self) -> io::Result<()> {
        self.stream()?.readable().await
    }

    /// Waits until something can be sent, or until connecting has failed.
    pub async fn writable(&self) -> io::Result<()> {
        self.stream()?.writable().await
    }

    /// Joins the runtime, if it has not yet. If that fails the socket is closed.
    pub fn register(self) -> io::Result<Self> {
        match self {
            Self::Detached(socket) => TcpStream::from_std(socket.into()).map(Self::Registered),
            Self::Registered(_) => Ok(self),
        }
    }

    /// Joins the runtime, and becomes the runtime's own kind of socket.
    pub fn into_stream(self) -> io::Result<TcpStream> {
        match self {
            Self::Detached(socket) => TcpStream::from_std(socket.into()),
            Self::Registered(stream) => Ok(stream),
        }
    }

    /// Joins the runtime where it is. For a moment the socket has two descriptors.
    fn join(&mut self) -> io::Result<&mut TcpStream> {
        if let Self::Detached(socket) = self {
            *self = Self::Registered(TcpStream::from_std(socket.try_clone()?.into())?);
        }
        match self {
            Self::Registered(stream) => Ok(stream),
            Self::Detached(_) => Err(io::Error::other("the socket has not joined the runtime")),
        }
    }

    fn stream(&self) -> io::Result<&TcpStream> {
        match self {
            Self::Registered(stream) => Ok(stream),
            Self::Detached(_) => Err(io::Error::other("the socket has not joined the runtime")),
        }
    }

    /// Leaves the runtime, if it has joined.
    pub fn detach(self) -> io::Result<OwnedFd> {
        match self {
            Self::Detached(socket) => Ok(socket.into()),
            Self::Registered(stream) => Ok(stream.into_std()?.into()),
        }
    }

    /// Whether the handshake is complete.
    pub fn is_connected(&self) -> bool {
        self.socket().peer_addr().is_ok()
    }

    /// Closes with RST: what was not yet delivered is discarded.
    pub fn reset(self) {
        // If the option cannot be set the peer sees an ordinary end, which is the best that is left.
        let _ = self.socket().set_linger(Some(Duration::ZERO));
    }

    /// Receives what is there, or asks to be woken. Joins the runtime, if it has not yet.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        let stream = self.join()?;
        let mut read = ReadBuf::uninit(buffer.spare());
        ready!(Pin::new(stream).poll_read(cx, &mut read))?;
        let count = read.filled().len();
        // SAFETY: `ReadBuf` counts only bytes that have been initialised.
        unsafe { buffer.filled(count) };
        Poll::Ready(Ok(count))
    }

    /// Sends as much as the socket takes, or asks to be woken; joins the runtime only for that. With `end_follows` the kernel waits for the end,
    /// so that both share a segment.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        end_follows: bool,
    ) -> Poll<io::Result<usize>> {
        let flags = if end_follows { libc::MSG_MORE | libc::MSG_NOSIGNAL } else { libc::MSG_NOSIGNAL };
        if let Self::Detached(socket) = self {
            match socket.send_with_flags(bytes, flags) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
        let stream = self.join()?;
        loop {
            ready!(stream.poll_write_ready(cx))?;
            let send = || SockRef::from(&*stream).send_with_flags(bytes, flags);
            match stream.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Detached(socket) => socket.as_fd(),
            Self::Registered(stream) => stream.as_fd(),
        }
    }
}

impl From<OwnedFd> for Endpoint {
    fn from(socket: OwnedFd) -> Self {
        Self::Detached(socket.into())
    }
}
