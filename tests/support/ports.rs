//! Loopback ports that a test has for itself for as long as it wants them.
//!
//! A port that the kernel handed out and that was closed again may be handed out a second time before a server listens
//! on it, or while one is killed and started anew: to another test, or to somebody's outgoing connection. So ports are
//! taken from where the kernel takes none by itself, and each is reserved, across processes, by a name that exists as
//! long as the reservation: that of a Unix socket in the abstract namespace, which is the network namespace's own.

use std::{
    fs, io,
    net::TcpListener,
    ops::RangeInclusive,
    os::{linux::net::SocketAddrExt, unix::net},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Where ports are looked for, as far as the kernel does not take them for itself.
const CANDIDATES: RangeInclusive<u16> = 10_000..=65_000;
/// Linux's range of ports for those who ask for none, where it can't be read.
const DEFAULT_EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;
/// Processes begin their search this far apart, so that they rarely meet.
const STRIDE: u32 = 64;

/// A port that is reserved until this is dropped.
pub struct Port {
    number: u16,
    _reservation: net::UnixListener,
}

impl Port {
    /// A port that nobody listens on, and that no other test takes.
    pub fn reserve() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ephemeral = ephemeral();
        let candidates: Vec<u16> = CANDIDATES.filter(|number| !ephemeral.contains(number)).collect();
        assert!(
            !candidates.is_empty(),
            "the kernel takes all ports for itself: {ephemeral:?}"
        );
        for _ in 0..candidates.len() {
            let place = process::id() * STRIDE + NEXT.fetch_add(1, Ordering::Relaxed);
            if let Some(port) = Self::try_reserve(candidates[place as usize % candidates.len()]) {
                return port;
            }
        }
        panic!("none of {} ports is free", candidates.len());
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let name = net::SocketAddr::from_abstract_name(format!("ringd-test-port-{number}")).expect("a short name");
        let reservation = match net::UnixListener::bind_addr(&name) {
            Ok(reservation) => reservation,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return None,
            Err(error) => panic!("port {number} can't be reserved: {error}"),
        };
        // Whoever is no test of ours may listen there.
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Self {
            number,
            _reservation: reservation,
        })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The ports that the kernel gives to those who ask for none.
fn ephemeral() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(low), Some(high)) => low..=high,
        _ => DEFAULT_EPHEMERAL,
    }
}
