//! Listening sockets: binding as etcd does, and saying plainly why it did not work.

use crate::limits;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An address and port; a port of 0 lets the system choose.
    Tcp(SocketAddr),
    /// A path in the file system.
    Unix(PathBuf),
}

impl ListenAddress {
    /// From the host of a listen URL: an IP address, `localhost` (IPv4 first, as etcd's resolver has it) or nothing,
    /// which is every address. `None` if it is something else.
    pub fn from_host(host: &str, port: u16) -> Option<ListenAddress> {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let address = match bare {
            "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            literal => literal.parse().ok()?,
        };
        Some(ListenAddress::Tcp(SocketAddr::new(address, port)))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(formatter, "{address}"),
            ListenAddress::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// `--socket-reuse-port`, `--socket-reuse-address`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenOptions {
    /// SO_REUSEPORT: other processes may listen on the same port.
    pub reuse_port: bool,
}

/// Why an address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another socket listens there.
    #[error("{0}: address already in use; stop whoever listens there (`ss -ltnp`) or give another URL")]
    InUse(ListenAddress),
    /// The address is none of this machine's.
    #[error("{0}: cannot assign requested address; it must be an address of this machine")]
    NotHere(ListenAddress),
    /// The port or path needs a privilege.
    #[error("{0}: permission denied; ports below 1024 need CAP_NET_BIND_SERVICE, a Unix socket a writable directory")]
    Denied(ListenAddress),
    /// Anything else.
    #[error("{address}: {source}")]
    Other {
        /// Where it was to listen.
        address: ListenAddress,
        /// The system's error.
        source: io::Error,
    },
}

/// A socket that listens, for `accept::Acceptor`.
#[derive(Debug)]
pub struct ListenSocket {
    socket: Socket,
    address: ListenAddress,
}

impl ListenSocket {
    /// Another handle of the same socket: it listens until the last one is closed.
    pub fn another(&self) -> std::io::Result<ListenSocket> {
        Ok(ListenSocket {
            socket: self.socket.try_clone()?,
            address: self.address.clone(),
        })
    }

    /// Binds and listens. A wildcard address takes IPv4 and IPv6, as etcd's does, where the machine has IPv6.
    pub fn bind(address: &ListenAddress, options: ListenOptions) -> Result<ListenSocket, BindError> {
        let bound = match address {
            ListenAddress::Tcp(address) => bind_tcp(*address, options),
            ListenAddress::Unix(path) => bind_unix(path),
        };
        bound
            .and_then(|socket| {
                socket.listen(limits::ACCEPT_BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            })
            .map(|socket| ListenSocket {
                socket,
                address: address.clone(),
            })
            .map_err(|source| refusal(address.clone(), source))
    }

    /// Where it listens, with the port that the system chose if it was asked to.
    pub fn local_address(&self) -> ListenAddress {
        match self.socket.local_addr().ok().and_then(|address| address.as_socket()) {
            Some(address) => ListenAddress::Tcp(address),
            None => self.address.clone(),
        }
    }

    /// A connection that waits to be accepted, or `WouldBlock`.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        // Accepted sockets are made non-blocking by nobody: the executor passes its own flag with each call.
        self.socket.accept().map(|(socket, _)| socket.into())
    }
}

impl AsRawFd for ListenSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        if let ListenAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: SocketAddr, options: ListenOptions) -> io::Result<Socket> {
    if address.ip().is_unspecified() {
        let all = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
        match bind_one(all, options, Some(false)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {}
            other => return other,
        }
    }
    bind_one(address, options, None)
}

fn bind_one(address: SocketAddr, options: ListenOptions, only_v6: Option<bool>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if let Some(only_v6) = only_v6 {
        socket.set_only_v6(only_v6)?;
    }
    // Lets a restart bind while old connections linger; two listeners on one port it does not allow.
    socket.set_reuse_address(true)?;
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Binds to a path. A socket file that nobody listens on any more is replaced.
fn bind_unix(path: &PathBuf) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            match probe.connect(&address) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                _ => return Err(error),
            }
            socket.bind(&address)?;
        }
        other => other?,
    }
    Ok(socket)
}

fn refusal(address: ListenAddress, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address),
        io::ErrorKind::AddrNotAvailable => BindError::NotHere(address),
        io::ErrorKind::PermissionDenied => BindError::Denied(address),
        _ => BindError::Other { address, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(port: u16) -> ListenAddress {
        ListenAddress::from_host("127.0.0.1", port).unwrap()
    }

    fn port_of(socket: &ListenSocket) -> u16 {
        match socket.local_address() {
            ListenAddress::Tcp(address) => address.port(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn hosts_of_listen_urls() {
        assert_eq!(ListenAddress::from_host("localhost", 1), Some(local(1)));
        assert_eq!(ListenAddress::from_host("[::1]", 5).unwrap().to_string(), "[::1]:5");
        assert_eq!(ListenAddress::from_host("", 5).unwrap().to_string(), "0.0.0.0:5");
        assert_eq!(ListenAddress::from_host("example.com", 5), None);
    }

    #[test]
    fn a_port_in_use_is_seen_unless_shared() {
        let first = ListenSocket::bind(&local(0), ListenOptions::default()).unwrap();
        let address = local(port_of(&first));
        let error = ListenSocket::bind(&address, ListenOptions::default()).unwrap_err();
        assert!(matches!(error, BindError::InUse(_)), "{error}");
        assert!(error.to_string().contains(&address.to_string()));
        drop(first);
        let shared = ListenOptions { reuse_port: true };
        let _one = ListenSocket::bind(&address, shared).unwrap();
        let _two = ListenSocket::bind(&address, shared).unwrap();
    }

    #[test]
    fn an_address_of_another_machine_is_refused() {
        let address = ListenAddress::from_host("192.0.2.1", 0).unwrap();
        let error = ListenSocket::bind(&address, ListenOptions::default()).unwrap_err();
        assert!(matches!(error, BindError::NotHere(_)), "{error}");
    }

    #[test]
    fn every_address_means_both_families() {
        let socket = ListenSocket::bind(
            &ListenAddress::from_host("0.0.0.0", 0).unwrap(),
            ListenOptions::default(),
        );
        let port = port_of(&socket.unwrap());
        assert_ne!(port, 0);
        let socket = ListenSocket::bind(&ListenAddress::from_host("", 0).unwrap(), ListenOptions::default()).unwrap();
        std::net::TcpStream::connect(("127.0.0.1", port_of(&socket))).unwrap();
        if matches!(socket.local_address(), ListenAddress::Tcp(SocketAddr::V6(_))) {
            std::net::TcpStream::connect(("::1", port_of(&socket))).unwrap();
        }
    }

    #[test]
    fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ringd.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let address = ListenAddress::Unix(path.clone());
        let socket = ListenSocket::bind(&address, ListenOptions::default()).unwrap();
        assert!(matches!(
            ListenSocket::bind(&address, ListenOptions::default()),
            Err(BindError::InUse(_))
        ));
        drop(socket);
        assert!(!path.exists());
    }
}
