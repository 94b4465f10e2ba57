//! With whom a new cluster begins where the command line does not say it: by SRV records of the DNS
//! (`--discovery-srv`), or by a running etcd where the founders write themselves down (`--discovery-endpoints`, etcd's
//! v3 discovery).

use super::dns::{Place, Resolver};
use crate::client::unary::{CallError, Patience, call};
use crate::config::Config;
use crate::config::cluster::{InitialCluster, Registry, ServiceRecords};
use crate::limits::{DISCOVERY_LOOK, DISCOVERY_PAUSE_DOUBLINGS};
use crate::proto::etcdserverpb::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use crate::proto::mvccpb::KeyValue;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// The founders, as the DNS names them.
///
/// Who resolves to one of this member's own peer URLs is this member; the others have no names there and get numbers.
pub fn by_services(config: &Config, records: &ServiceRecords, resolver: &Resolver) -> Result<InitialCluster, String> {
    let suffix = match records.name.as_str() {
        "" => String::new(),
        name => format!("-{name}"),
    };
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for (scheme, service) in [("https", "etcd-server-ssl"), ("http", "etcd-server")] {
        let name = format!("_{service}{suffix}._tcp.{}", records.domain);
        match resolver.places(&name) {
            Ok(places) => found.extend(founders(config, scheme, &places)?),
            Err(problem) => problems.push(format!(
                "error querying DNS SRV records for _{service}{suffix} {problem}"
            )),
        }
    }
    if found.is_empty() {
        return Err(problems.join("; "));
    }
    for founder in &found {
        tracing::info!(node = founder, "got bootstrap from DNS for etcd-server");
    }
    let cluster = InitialCluster::parse(&found.join(","), config.initial_cluster.exists);
    let cluster = cluster.map_err(|error| error.to_string())?;
    if !cluster.members.contains_key(&config.name) {
        return Err(format!(
            "cannot find local etcd member {:?} in SRV records",
            config.name
        ));
    }
    Ok(cluster)
}

fn founders(config: &Config, scheme: &str, places: &[Place]) -> Result<Vec<String>, String> {
    let own: Vec<SocketAddr> = config
        .advertise_peer_urls
        .iter()
        .flat_map(|url| addresses(url))
        .collect();
    let mut numbers = 0..;
    let mut found = Vec::new();
    for Place { host, port, .. } in places {
        let Ok(mut resolved) = (host.as_str(), *port).to_socket_addrs() else {
            tracing::warn!(host, port, "a member that the DNS names has no address");
            continue;
        };
        let is_own = resolved.any(|address| own.contains(&address));
        let name = match is_own {
            true => config.name.clone(),
            false => numbers.next().unwrap_or(0u32).to_string(),
        };
        if is_own && scheme != "http" {
            return Err(format!(
                "bootstrap at {scheme}://{host}:{port} from DNS has scheme mismatch with expected peer {}",
                config.advertise_peer_urls.join(",")
            ));
        }
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.clone()
        };
        found.push(format!("{name}={scheme}://{host}:{port}"));
    }
    Ok(found)
}

fn addresses(url: &str) -> Vec<SocketAddr> {
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    place
        .trim_end_matches('/')
        .to_socket_addrs()
        .into_iter()
        .flatten()
        .collect()
}

/// Where founders of one cluster write themselves down.
struct Register<'a> {
    registry: &'a Registry,
    /// Which of the endpoints answered last.
    endpoint: usize,
}

/// The founders, as they have written themselves down; waits until all of them have. `id` is this member's.
pub fn by_registry(config: &Config, registry: &Registry, id: u64) -> Result<InitialCluster, String> {
    let mut register = Register { registry, endpoint: 0 };
    let own = format!("{}/{id:x}", register.members());
    register.founders(&own)?;
    let urls = config.advertise_peer_urls.iter();
    let said: Vec<String> = urls.map(|url| format!("{}={url}", config.name)).collect();
    let put = PutRequest {
        key: own.clone().into(),
        value: said.join(",").into(),
        ..Default::default()
    };
    register.ask::<PutResponse>("/etcdserverpb.KV/Put", &put);
    tracing::info!("member-key" = own, "register member itself successfully");
    loop {
        if let Some(founders) = register.founders(&own)? {
            let cluster = InitialCluster::parse(&founders.join(","), false);
            let cluster = cluster.map_err(|_| "discovery: invalid peer URL".to_string())?;
            return cluster.with_urls_once().map_err(|error| error.to_string());
        }
        std::thread::sleep(DISCOVERY_LOOK);
    }
}

impl Register<'_> {
    fn prefix(&self) -> String {
        format!("/_etcd/registry/{}", self.registry.token)
    }

    fn members(&self) -> String {
        format!("{}/members", self.prefix())
    }

    /// Asks until somebody answers, with longer and longer pauses.
    fn ask<R: prost::Message + Default>(&mut self, path: &str, request: &impl prost::Message) -> R {
        let patience = Patience {
            dial: self.registry.dial_timeout,
            request: self.registry.request_timeout,
        };
        for attempt in 1u32.. {
            let endpoints = &self.registry.endpoints;
            for _ in 0..endpoints.len() {
                let endpoint = &endpoints[self.endpoint % endpoints.len()];
                match call(endpoint, path, request, patience) {
                    Ok(answer) => return answer,
                    Err(error) => self.complain(&error),
                }
                self.endpoint += 1;
            }
            let pause = Duration::from_secs(2 << (attempt - 1).min(DISCOVERY_PAUSE_DOUBLINGS));
            tracing::warn!(?pause, "retry connecting to discovery service");
            std::thread::sleep(pause);
        }
        unreachable!("it goes on until it is answered")
    }

    fn complain(&self, error: &CallError) {
        tracing::warn!(
            "discovery-token" = self.registry.token,
            "the discovery service did not answer: {error}"
        );
    }

    /// How many founders there are to be.
    fn size(&mut self) -> Result<usize, String> {
        let request = RangeRequest {
            key: format!("{}/_config/size", self.prefix()).into(),
            ..Default::default()
        };
        let found: RangeResponse = self.ask("/etcdserverpb.KV/Range", &request);
        let size = found.kvs.first().ok_or("discovery: size key not found")?;
        let size = std::str::from_utf8(&size.value).ok().and_then(|size| size.parse().ok());
        size.filter(|size| *size > 0)
            .ok_or_else(|| "discovery: size key is bad".to_string())
    }

    /// All founders, those first who were; `None` while some have still to come. An error if this one is not among them
    /// and there is no room for it.
    fn founders(&mut self, own: &str) -> Result<Option<Vec<String>>, String> {
        let size = self.size()?;
        let prefix = self.members();
        let request = RangeRequest {
            key: format!("{prefix}/").into(),
            range_end: format!("{prefix}0").into(),
            ..Default::default()
        };
        let found: RangeResponse = self.ask("/etcdserverpb.KV/Range", &request);
        let founders = first(found.kvs, size);
        let is_among = founders.iter().any(|(key, _)| key == own);
        if !is_among && founders.len() == size {
            return Err("discovery: cluster is full".to_string());
        }
        let whole = founders.len() == size;
        Ok(whole.then(|| founders.into_iter().map(|(_, said)| said).collect()))
    }
}

/// Of those who wrote themselves down, the first `size`: key, and what they said.
fn first(mut rows: Vec<KeyValue>, size: usize) -> Vec<(String, String)> {
    rows.sort_by_key(|row| row.create_revision);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    let said = rows.iter().map(|row| (text(&row.key), text(&row.value)));
    // It is of the form name=URL, or nobody's.
    said.filter(|(_, said)| said.contains('=')).take(size).collect()
}

#[cfg(test)]
mod tests {
    use super::super::dns::tests::serve;
    use super::*;
    use crate::config::parse;

    fn config(arguments: &[&str]) -> Config {
        match parse::read(arguments.iter().map(|argument| argument.to_string()), []) {
            Ok(parse::Request::Start(texts)) => Config::from_texts(texts).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn founders_are_found_by_their_addresses() {
        let places = vec![(0, 2, 2381, "localhost"), (0, 1, 2382, "localhost")];
        let known = vec![
            ("_etcd-server._tcp.example", places.clone()),
            ("_etcd-server-x._tcp.example", places),
        ];
        let resolver = Resolver::with(vec![serve(known)]);
        let with = |name, url: &str| {
            let url = format!("--initial-advertise-peer-urls={url}");
            let config = config(&["--name=one", "--discovery-srv=example", &url]);
            let records = ServiceRecords {
                domain: "example".into(),
                name,
            };
            by_services(&config, &records, &resolver)
        };
        for name in ["", "x"] {
            let found = with(name.to_string(), "http://127.0.0.1:2382").unwrap();
            let urls = |port| vec![format!("http://localhost:{port}")];
            let expected = [("0".to_string(), urls(2381)), ("one".to_string(), urls(2382))];
            assert_eq!(found.members.into_iter().collect::<Vec<_>>(), expected);
        }
        let error = with(String::new(), "http://127.0.0.1:2383").unwrap_err();
        assert_eq!(error, "cannot find local etcd member \"one\" in SRV records");
        let error = with("other".to_string(), "http://127.0.0.1:2382").unwrap_err();
        assert!(
            error.contains("error querying DNS SRV records for _etcd-server-other"),
            "{error}"
        );
    }

    #[test]
    fn the_first_to_register_are_the_founders() {
        let row = |key: &str, value: &str, create_revision| KeyValue {
            key: key.to_string().into(),
            value: value.to_string().into(),
            create_revision,
            ..Default::default()
        };
        let rows = vec![
            row("c", "c=u3", 9),
            row("a", "a=u1 ", 4),
            row("x", "nobody", 1),
            row("b", "b=u2", 5),
        ];
        let found: Vec<_> = first(rows, 2).into_iter().map(|(_, said)| said).collect();
        assert_eq!(found, ["a=u1", "b=u2"]);
    }
}
