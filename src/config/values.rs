//! The forms that flag values take: Go durations, byte sizes, booleans, lists, URLs.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Reads a duration in Go's form: `1h30m`, `300ms`, `1.5s`, `0`. The error says what is wrong with it.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let wrong = || format!("{text:?} is not a duration such as 300ms, 5s or 1h30m");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut seconds = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit_end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit = match &rest[..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        seconds += number * unit;
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Reads a boolean as Go's flag package does.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// Reads a size in bytes: a whole number, possibly with KiB, MiB, GiB or TiB (also k, M, G, T, all powers of 1024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size such as 536870912, 512MiB or 4GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let shift = match text[digits..].trim() {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// How history is compacted without being asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Not at all.
    #[default]
    Off,
    /// What is older than this goes.
    Periodic(Duration),
    /// All but this many of the newest revisions goes.
    Revision(i64),
}

impl AutoCompaction {
    /// From `--auto-compaction-mode` and `--auto-compaction-retention`. As in etcd a whole number is hours or
    /// revisions, and anything else a duration, whose nanoseconds are revisions in mode `revision`.
    pub fn parse(mode: &str, retention: &str) -> Result<AutoCompaction, String> {
        let wrong = || format!("{retention:?} is neither a whole number nor a duration such as 30m (or is too large)");
        let is_revision = match mode {
            "periodic" => false,
            "revision" => true,
            _ => return Err(format!("{mode:?} is neither periodic nor revision")),
        };
        let retention = if retention.is_empty() { "0" } else { retention };
        let number = retention.parse::<i64>().ok().filter(|number| *number >= 0);
        let nanoseconds = match number {
            Some(revisions) if is_revision => revisions,
            Some(hours) => hours.checked_mul(3_600_000_000_000).ok_or_else(wrong)?,
            None => {
                let duration = duration(retention).map_err(|_| wrong())?;
                i64::try_from(duration.as_nanos()).map_err(|_| wrong())?
            }
        };
        Ok(match nanoseconds {
            0 => AutoCompaction::Off,
            revisions if is_revision => AutoCompaction::Revision(revisions),
            nanoseconds => AutoCompaction::Periodic(Duration::from_nanos(nanoseconds.unsigned_abs())),
        })
    }
}

/// Splits a comma-separated list; empty text is an empty list.
pub fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(String::from)
        .collect()
}

/// A plaintext URL this server listens on or tells others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Url {
    /// As given.
    pub text: String,
    /// Host without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Reads an `http://host:port` URL. `https` and unix sockets are refused with the reason.
pub fn url(text: &str) -> Result<Url, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("URL {text:?} has no scheme; write http://host:port"));
    };
    match scheme {
        "http" => {}
        "https" => {
            return Err(format!(
                "URL {text:?} asks for TLS, which is not built yet; use an http URL"
            ));
        }
        "unix" | "unixs" => return Err(format!("URL {text:?}: unix sockets are not built yet; use an http URL")),
        _ => return Err(format!("URL scheme must be http, https, unix, or unixs: {text}")),
    }
    if rest.contains('/') {
        return Err(format!("URL must not contain a path: {text}"));
    }
    let Some((host, port)) = rest.rsplit_once(':') else {
        return Err(format!("URL address does not have the form \"host:port\": {text}"));
    };
    let port = port.parse().map_err(|_| format!("URL {text:?} has no valid port"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
    Ok(Url {
        text: text.to_string(),
        host,
        port,
    })
}

impl Url {
    /// Whether it can be bound: only addresses and `localhost` can, as etcd has it.
    pub fn is_bindable(&self) -> bool {
        matches!(self.host.as_str(), "" | "localhost") || self.host.parse::<IpAddr>().is_ok()
    }

    /// The address to bind, IPv4 first.
    pub fn bind_address(&self) -> Result<SocketAddr, String> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, self.port));
        }
        if self.host.is_empty() {
            return Ok(SocketAddr::from(([0, 0, 0, 0], self.port)));
        }
        if self.host != "localhost" {
            return Err(format!("expected IP in URL for binding ({})", self.text));
        }
        let addresses = ("localhost", self.port)
            .to_socket_addrs()
            .map_err(|error| format!("localhost: {error}"))?;
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort_by_key(|address| address.is_ipv6());
        addresses
            .first()
            .copied()
            .ok_or_else(|| "localhost has no address".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        assert_eq!(duration("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("300ms").unwrap(), Duration::from_millis(300));
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("0").unwrap(), Duration::ZERO);
        for wrong in ["", "5", "s", "5x", "-1s", "1h30"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn retentions_are_etcds() {
        let hour = Duration::from_secs(3600);
        for (mode, retention, expected) in [
            ("periodic", "0", AutoCompaction::Off),
            ("revision", "0", AutoCompaction::Off),
            ("periodic", "", AutoCompaction::Off),
            ("periodic", "0s", AutoCompaction::Off),
            ("periodic", "10", AutoCompaction::Periodic(10 * hour)),
            ("periodic", "1h", AutoCompaction::Periodic(hour)),
            ("periodic", "5m30s", AutoCompaction::Periodic(Duration::from_secs(330))),
            ("revision", "10", AutoCompaction::Revision(10)),
            ("revision", "1us", AutoCompaction::Revision(1000)),
        ] {
            assert_eq!(
                AutoCompaction::parse(mode, retention),
                Ok(expected),
                "{mode} {retention}"
            );
        }
        for wrong in ["-1", "-1h", "x", "1.5", "2562048", "99999999999999999999"] {
            assert!(AutoCompaction::parse("periodic", wrong).is_err(), "{wrong}");
        }
        assert!(AutoCompaction::parse("sometimes", "1").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("512MiB").unwrap(), 512 << 20);
        assert_eq!(bytes("7").unwrap(), 7);
        assert!(bytes("x").is_err());
        assert!(bytes("99999999999TiB").is_err());
    }

    #[test]
    fn urls() {
        assert_eq!(
            url("http://127.0.0.1:2379").unwrap().bind_address().unwrap(),
            "127.0.0.1:2379".parse().unwrap()
        );
        assert!(url("http://localhost:0").unwrap().bind_address().unwrap().is_ipv4());
        assert_eq!(
            url("http://[::1]:1").unwrap().bind_address().unwrap(),
            "[::1]:1".parse().unwrap()
        );
        assert!(url("https://127.0.0.1:1").unwrap_err().contains("TLS"));
        assert!(url("http://h:1/x").is_err());
        assert!(url("127.0.0.1:1").is_err());
        let name = url("http://example.com:1").unwrap();
        assert_eq!(
            name.bind_address().unwrap_err(),
            "expected IP in URL for binding (http://example.com:1)"
        );
    }
}
