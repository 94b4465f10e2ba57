//! What a process claims for itself before anything starts: its sockets, its directories.

use super::ServerError;
use crate::api::http::Offer;
use crate::config::Config;
use crate::net::Speaks;
use crate::reactor::ListenSocket;
use crate::reactor::accept::Goes;
use crate::reactor::socket::{ListenAddress, ListenOptions};
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Binds every URL that is listened on.
pub fn listen(config: &Config) -> Result<Vec<(ListenSocket, Goes)>, ServerError> {
    let options = ListenOptions {
        reuse_port: config.reuse_port,
    };
    let lists = [
        ("listen-client-urls", &config.listen_client_urls),
        ("listen-client-http-urls", &config.listen_client_http_urls),
        ("listen-metrics-urls", &config.listen_metrics_urls),
        ("listen-peer-urls", &config.listen_peer_urls),
    ];
    let mut sockets = Vec::new();
    // Their order is that of `listener_kinds`.
    for (flag, urls) in lists {
        let goes = match flag {
            "listen-peer-urls" => Goes::ToFirst,
            _ => Goes::ToLeastLoaded,
        };
        for url in urls {
            let address = url
                .bind_address()
                .map_err(|problem| ServerError::Listen { flag, problem })?;
            let socket = ListenSocket::bind(&ListenAddress::Tcp(address), options);
            let socket = socket.map_err(|source| ServerError::Bind { flag, source })?;
            sockets.push((socket, goes));
        }
    }
    Ok(sockets)
}

/// What is spoken and offered on each listener, in the order in which `listen` binds them.
pub fn listener_kinds(config: &Config) -> Vec<(Speaks, Offer)> {
    let client = match config.listen_client_http_urls.is_empty() {
        true => Speaks::Both,
        false => Speaks::Grpc,
    };
    let lists = [
        (&config.listen_client_urls, (client, Offer::Client)),
        (&config.listen_client_http_urls, (Speaks::Http1, Offer::Client)),
        (&config.listen_metrics_urls, (Speaks::Http1, Offer::Metrics)),
        (&config.listen_peer_urls, (Speaks::Http1, Offer::Peer)),
    ];
    lists
        .iter()
        .flat_map(|(urls, kind)| urls.iter().map(|_| *kind))
        .collect()
}

/// Takes the data directory, and that of the log if it lies elsewhere, for this process alone until the files are
/// closed. Nothing is written: the directory may turn out to be etcd's.
pub fn lock(config: &Config) -> Result<Vec<File>, ServerError> {
    let mut locks = vec![lock_one("data-dir", &config.data_directory)?];
    if !config.wal_directory.starts_with(&config.data_directory) {
        locks.push(lock_one("wal-dir", &config.wal_directory)?);
    }
    Ok(locks)
}

fn lock_one(flag: &'static str, directory: &Path) -> Result<File, ServerError> {
    let wrong = |problem: String| ServerError::Directory {
        flag,
        path: directory.to_path_buf(),
        problem,
    };
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(|error| wrong(format!("it can't be made: {error}; name one that ringd may write to")))?;
    let file = File::open(directory).map_err(|error| wrong(format!("it can't be opened: {error}")))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(wrong(
            "it is locked: another ringd is running on it; stop that one, or name another directory".to_string(),
        )),
        Err(std::fs::TryLockError::Error(error)) => Err(wrong(format!(
            "it can't be locked: {error}; it must lie on a local file system"
        ))),
    }
}
