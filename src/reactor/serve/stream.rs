//! A connected socket on a serve core: one task reads, one writes.

use crate::limits;
use bytes::{Bytes, BytesMut};
use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

thread_local! {
    /// What the core's sockets receive into: received bytes are split off, so that a connection that is silent holds no
    /// buffer. All of its length is initialised.
    static RECEIVE: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// A connected stream socket (TCP or Unix). Clones are the same socket; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct Stream {
    socket: Rc<RefCell<TcpStream>>,
}

impl Stream {
    /// Takes over a connected socket. TCP_NODELAY is set if it is a TCP socket.
    pub fn from_socket(socket: OwnedFd) -> Stream {
        // SAFETY: the descriptor is given up here and owned by the stream alone.
        let socket = unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) };
        // Fails on a Unix socket, which has no delay to turn off.
        let _ = socket.set_nodelay(true);
        Stream {
            socket: Rc::new(RefCell::new(socket)),
        }
    }

    /// Connects to `address`, waiting at most `bound`.
    pub async fn connect(address: SocketAddr, bound: Duration) -> io::Result<Stream> {
        let socket = TcpStream::connect_timeout(address, bound)
            .await
            .map_err(io::Error::from)?;
        socket.set_nodelay(true).map_err(io::Error::from)?;
        Ok(Stream {
            socket: Rc::new(RefCell::new(socket)),
        })
    }

    /// The peer's address; `None` for a Unix socket or a connection that is gone.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.socket.borrow().peer_addr().ok()
    }

    /// Waits for bytes and returns what is there, at most `limits::RECEIVE_BYTES`; empty when the peer has ended its
    /// side.
    pub async fn receive(&self) -> io::Result<Bytes> {
        poll_fn(|context| RECEIVE.with_borrow_mut(|buffer| self.poll_receive(context, buffer))).await
    }

    fn poll_receive(&self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<Bytes>> {
        if buffer.len() < limits::RECEIVE_BYTES_LEAST {
            buffer.clear();
            buffer.reserve(limits::RECEIVE_BYTES);
            buffer.resize(limits::RECEIVE_BYTES, 0);
        }
        let mut socket = self.socket.borrow_mut();
        match Pin::new(&mut *socket).poll_read(context, buffer) {
            Poll::Ready(Ok(length)) => Poll::Ready(Ok(buffer.split_to(length).freeze())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Waits for bytes and fills `buffer` with what is there; 0 when the peer has ended its side.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *self.socket.borrow_mut()).poll_read(context, buffer)).await
    }

    /// Sends as much of `parts` as the socket takes at once, in one system call. `WouldBlock` when it takes nothing.
    pub fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: msghdr is plain data for which zeros are a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len().min(limits::WRITE_PARTS) as _;
        let descriptor = self.socket.borrow().as_raw_fd();
        loop {
            // SAFETY: IoSlice has the layout of iovec, and `parts` outlives the call, which only reads.
            let sent = unsafe { libc::sendmsg(descriptor, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
            match usize::try_from(sent).map_err(|_| io::Error::last_os_error()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Waits until the socket takes some of `bytes` and says how many.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *self.socket.borrow_mut()).poll_write(context, bytes)).await
    }

    /// Sends all of `bytes`.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.write(bytes).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Whether both are the same socket.
    pub fn is_same(&self, other: &Stream) -> bool {
        Rc::ptr_eq(&self.socket, &other.socket)
    }

    /// Ends one side or both: pending reads see the end of the stream.
    pub fn shutdown(&self, side: Shutdown) {
        let how = match side {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: no pointers are involved. A socket that is not connected any more needs no shutdown.
        let _ = unsafe { libc::shutdown(self.socket.borrow().as_raw_fd(), how) };
    }
}
