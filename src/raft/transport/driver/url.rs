//! Peers' URLs, and which of several is tried.

use crate::reactor::serve;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Where a peer listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerUrl {
    /// Without brackets.
    host: String,
    port: u16,
}

impl PeerUrl {
    /// Reads `http://host:port`.
    pub fn parse(text: &str) -> io::Result<PeerUrl> {
        let wrong = |why: &str| {
            let text = format!(
                "peer URL {:?}: {why}",
                crate::raft::transport::identity::shortened(text)
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(("https", _)) => return Err(wrong("TLS between peers is not supported yet")),
            _ => return Err(wrong("not http://host:port")),
        };
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let port = port.parse().map_err(|_| wrong("its port is no number"))?;
        if bare.is_empty() || bare.contains(['/', '@', ' ', '\r', '\n']) {
            return Err(wrong("not http://host:port"));
        }
        let host = bare.to_string();
        Ok(PeerUrl { host, port })
    }

    /// What the Host field says.
    pub fn authority(&self) -> String {
        let PeerUrl { host, port } = self;
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }

    /// The addresses of the host. Names are resolved aside, without blocking the core.
    pub async fn resolve(&self) -> io::Result<SocketAddr> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, self.port));
        }
        let name = (self.host.clone(), self.port);
        let found = serve::run_blocking(move || name.to_socket_addrs().map(|mut all| all.next())).await?;
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", self.host)))
    }
}

/// A peer's URLs, and the one in use: it stays until it fails.
#[derive(Debug, Default)]
pub(super) struct Picker {
    urls: Vec<String>,
    picked: usize,
}

impl Picker {
    pub fn new(mut urls: Vec<String>) -> Picker {
        urls.truncate(crate::limits::transport::URLS_MAX);
        Picker { urls, picked: 0 }
    }

    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The URL in use.
    pub fn pick(&self) -> io::Result<String> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "no URL of it is known");
        self.urls.get(self.picked).cloned().ok_or_else(none)
    }

    /// A URL failed. If it is still in use the next one is.
    pub fn failed(&mut self, url: &str) {
        if self.urls.get(self.picked).is_some_and(|picked| picked == url) {
            self.picked = (self.picked + 1) % self.urls.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_host_and_port() {
        let authority = |text| PeerUrl::parse(text).map(|url| url.authority()).ok();
        assert_eq!(authority("http://10.0.0.1:2380").as_deref(), Some("10.0.0.1:2380"));
        assert_eq!(authority("http://[::1]:2380/").as_deref(), Some("[::1]:2380"));
        assert_eq!(authority("http://a.example:1").as_deref(), Some("a.example:1"));
        for text in [
            "",
            "a:1",
            "http://a",
            "http://:1",
            "http://a:x",
            "http://a b:1",
            "unix://a:1",
            "https://a:1",
        ] {
            let error = PeerUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn the_next_url_is_used_when_one_fails() {
        let mut picker = Picker::new(vec!["a".into(), "b".into()]);
        assert_eq!(picker.pick().unwrap(), "a");
        picker.failed("b");
        assert_eq!(picker.pick().unwrap(), "a");
        picker.failed("a");
        assert_eq!(picker.pick().unwrap(), "b");
        picker.failed("b");
        assert_eq!(picker.pick().unwrap(), "a");
        assert!(Picker::default().pick().is_err());
    }
}
