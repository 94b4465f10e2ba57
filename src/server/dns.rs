//! SRV records of the DNS (RFC 1035, RFC 2782), asked for once at a start, blocking.
//!
//! Names that are told are resolved by the system; only for this type it has no call. What servers answer is read
//! within bounds and believed no further.

use crate::limits::{DNS_ATTEMPTS, DNS_JUMPS_MAX, DNS_MESSAGE_BYTES_MAX, DNS_TIMEOUT};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};

/// The type and class asked for.
const SRV: u16 = 33;
const INTERNET: u16 = 1;
/// Bits of the second 16 of a message.
const RESPONSE: u16 = 0x8000;
const TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
const CODE: u16 = 0x000f;
/// Bytes before the question.
const HEADER: usize = 12;

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    priority: u16,
    weight: u16,
    /// The port.
    pub port: u16,
    /// The host, without a dot at its end.
    pub host: String,
}

/// Asks name servers.
pub struct Resolver {
    servers: Vec<SocketAddr>,
}

impl Resolver {
    /// Those of the system; that of this machine where none are named.
    pub fn of_system() -> Resolver {
        Resolver::of(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
    }

    fn of(configuration: &str) -> Resolver {
        let named = configuration.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let server = words.next().filter(|word| *word == "nameserver").and(words.next())?;
            server.parse::<IpAddr>().ok()
        });
        let mut servers: Vec<SocketAddr> = named.map(|server| SocketAddr::new(server, 53)).collect();
        if servers.is_empty() {
            servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53));
        }
        Resolver { servers }
    }

    /// These.
    #[cfg(test)]
    pub fn with(servers: Vec<SocketAddr>) -> Resolver {
        Resolver { servers }
    }

    /// Where a service is, the places that go first at the beginning. None is an error.
    pub fn places(&self, name: &str) -> Result<Vec<Place>, String> {
        let mut last = String::new();
        for _ in 0..DNS_ATTEMPTS {
            for server in &self.servers {
                match ask(*server, name) {
                    Ok(Answer::Places(places)) if !places.is_empty() => return Ok(places),
                    Ok(Answer::Places(_) | Answer::Code(3)) => return Err(format!("lookup {name}: no such host")),
                    Ok(Answer::Code(code)) => last = format!("lookup {name} on {server}: it answers with error {code}"),
                    Ok(Answer::Truncated) => last = format!("lookup {name} on {server}: its answer is cut"),
                    Err(error) => last = format!("lookup {name} on {server}: {error}"),
                }
            }
        }
        Err(last)
    }
}

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Places(Vec<Place>),
    Truncated,
    Code(u16),
}

fn ask(server: SocketAddr, name: &str) -> io::Result<Answer> {
    let id = rand::random();
    let question = question(id, name).ok_or_else(|| io::Error::other("that is no name of the DNS"))?;
    match over_udp(server, &question, id)? {
        Answer::Truncated => over_tcp(server, &question, id),
        answer => Ok(answer),
    }
}

fn over_udp(server: SocketAddr, question: &[u8], id: u16) -> io::Result<Answer> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(DNS_TIMEOUT))?;
    socket.send(question)?;
    let mut buffer = [0; DNS_MESSAGE_BYTES_MAX];
    let until = std::time::Instant::now() + DNS_TIMEOUT;
    while std::time::Instant::now() < until {
        let length = socket.recv(&mut buffer)?;
        // What is not the answer to this question is somebody else's.
        if let Some(answer) = read(&buffer[..length], id) {
            return Ok(answer);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn over_tcp(server: SocketAddr, question: &[u8], id: u16) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, DNS_TIMEOUT)?;
    stream.set_read_timeout(Some(DNS_TIMEOUT))?;
    stream.set_write_timeout(Some(DNS_TIMEOUT))?;
    let length = (question.len() as u16).to_be_bytes();
    stream.write_all(&[&length, question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    read(&message, id).ok_or_else(|| io::Error::other("its answer can't be read"))
}

fn question(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for number in [id, RECURSION_DESIRED, 1, 0, 0, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..64).contains(length))?;
        out.push(length);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    for number in [SRV, INTERNET] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    (out.len() < 300).then_some(out)
}

/// Reads an answer; `None` if it is none to this question.
fn read(message: &[u8], id: u16) -> Option<Answer> {
    let number = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let flags = number(2)?;
    if number(0)? != id || flags & RESPONSE == 0 {
        return None;
    }
    if flags & CODE != 0 {
        return Some(Answer::Code(flags & CODE));
    }
    if flags & TRUNCATED != 0 {
        return Some(Answer::Truncated);
    }
    let mut at = HEADER;
    for _ in 0..number(4)? {
        at = name(message, at)?.1 + 4;
    }
    let mut places = Vec::new();
    for _ in 0..number(6)? {
        at = name(message, at)?.1;
        let (kind, data) = (number(at)?, at + 10);
        if kind == SRV {
            places.push(Place {
                priority: number(data)?,
                weight: number(data + 2)?,
                port: number(data + 4)?,
                host: name(message, data + 6)?.0,
            });
        }
        at = data + usize::from(number(at + 8)?);
    }
    places.sort_by_key(|place| (place.priority, u16::MAX - place.weight));
    Some(Answer::Places(places))
}

/// The name at a place, and where what follows it begins.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels: Vec<String> = Vec::new();
    let mut behind = None;
    for _ in 0..DNS_JUMPS_MAX {
        let length = *message.get(at)?;
        match length {
            0 => return Some((labels.join("."), behind.unwrap_or(at + 1))),
            1..64 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                labels.push(String::from_utf8_lossy(label).into_owned());
                at += 1 + usize::from(length);
            }
            192.. => {
                behind.get_or_insert(at + 2);
                at = usize::from(length & 63) << 8 | usize::from(*message.get(at + 1)?);
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An answer that names these places of `name`, each as priority, weight, port and host.
    fn answer(question: &[u8], places: &[(u16, u16, u16, &str)], flags: u16) -> Vec<u8> {
        let mut out = question[..2].to_vec();
        for number in [RESPONSE | flags, 1, places.len() as u16, 0, 0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&question[HEADER..]);
        for (priority, weight, port, host) in places {
            // The name is the question's.
            out.extend_from_slice(&[192, HEADER as u8]);
            for number in [SRV, INTERNET, 0, 0] {
                out.extend_from_slice(&number.to_be_bytes());
            }
            let mut data = Vec::new();
            for number in [priority, weight, port] {
                data.extend_from_slice(&number.to_be_bytes());
            }
            for label in host.split('.') {
                data.push(label.len() as u8);
                data.extend_from_slice(label.as_bytes());
            }
            data.push(0);
            out.extend_from_slice(&(data.len() as u16).to_be_bytes());
            out.extend(data);
        }
        out
    }

    /// Priority, weight, port and host.
    type Known = (u16, u16, u16, &'static str);

    /// A name server that knows these names; of all else there is none.
    pub fn serve(known: Vec<(&'static str, Vec<Known>)>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let asked = name(&buffer[..length], HEADER).unwrap().0;
                let found = known.iter().find(|(name, _)| *name == asked);
                let out = match found {
                    Some((_, places)) => answer(&buffer[..length], places, 0),
                    None => answer(&buffer[..length], &[], 3),
                };
                // One that is not ours goes before.
                socket.send_to(&[0; 12], from).unwrap();
                socket.send_to(&out, from).unwrap();
            }
        });
        address
    }

    #[test]
    fn places_come_in_their_order() {
        let places = vec![(2, 0, 1, "c.example"), (1, 1, 2, "b.example"), (1, 9, 3, "a.example")];
        let server = serve(vec![("_etcd-server._tcp.example", places)]);
        let resolver = Resolver::with(vec![server]);
        let found = resolver.places("_etcd-server._tcp.example").unwrap();
        let hosts: Vec<_> = found.iter().map(|place| (&*place.host, place.port)).collect();
        assert_eq!(hosts, [("a.example", 3), ("b.example", 2), ("c.example", 1)]);
        assert!(
            resolver
                .places("_other._tcp.example")
                .unwrap_err()
                .contains("no such host")
        );
        assert!(resolver.places("a..b").is_err());
    }

    #[test]
    fn a_long_answer_is_asked_for_by_tcp() {
        // A port that is free for both.
        let (socket, listener) = std::iter::repeat_with(|| UdpSocket::bind("127.0.0.1:0").unwrap())
            .find_map(|socket| {
                let listener = std::net::TcpListener::bind(socket.local_addr().unwrap()).ok()?;
                Some((socket, listener))
            })
            .unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            socket
                .send_to(&answer(&buffer[..length], &[], TRUNCATED), from)
                .unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = vec![0; length + 2];
            stream.read_exact(&mut question).unwrap();
            let out = answer(&question[2..], &[(0, 0, 7, "a.example")], 0);
            stream.write_all(&(out.len() as u16).to_be_bytes()).unwrap();
            stream.write_all(&out).unwrap();
        });
        let found = Resolver::with(vec![address]).places("x.example").unwrap();
        assert_eq!(found[0].port, 7);
    }

    #[test]
    fn servers_are_those_of_the_system() {
        let of = |text| Resolver::of(text).servers;
        let expected: Vec<SocketAddr> = vec!["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()];
        assert_eq!(
            of("# x\nsearch a\nnameserver 10.0.0.1\nnameserver ::1\nnameserver x\n"),
            expected
        );
        assert_eq!(of(""), ["127.0.0.1:53".parse().unwrap()]);
    }

    #[test]
    fn damaged_answers_end() {
        let question = question(7, "a.example").unwrap();
        let whole = answer(&question, &[(0, 0, 7, "b.example")], 0);
        assert!(matches!(read(&whole, 7), Some(Answer::Places(_))));
        for length in 0..whole.len() {
            assert!(!matches!(read(&whole[..length], 7), Some(Answer::Places(places)) if !places.is_empty()));
        }
        let mut looping = whole.clone();
        // The answer's name points at itself.
        let at = question.len();
        looping[at..at + 2].copy_from_slice(&[192, at as u8]);
        assert_eq!(read(&looping, 7), None);
        assert_eq!(read(&whole, 8), None);
    }
}
