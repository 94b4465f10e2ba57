//! `--initial-cluster` and what goes with it: with whom a new cluster begins, or which one this member joins.

use super::parse::Texts;
use super::{ConfigError, values};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The cluster as the command line describes it. Not looked at when there is a log, which knows better: a member may be
/// started anew with another name or other URLs and the old flag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialCluster {
    /// Peer URLs by member name, this member's among them; nobody's when there is a log.
    pub members: BTreeMap<String, Vec<String>>,
    /// Whether it exists already, and this member joins it.
    pub exists: bool,
}

/// What has to agree with the initial cluster: this member itself.
pub(super) struct Own<'a> {
    /// `--name`.
    pub name: &'a str,
    /// `--initial-advertise-peer-urls`.
    pub peer_urls: &'a [String],
    /// Whether it was a member before.
    pub has_log: bool,
}

/// Whether there is a log in a directory, that is, whether its member has begun already.
pub fn has_log(wal_directory: &Path) -> bool {
    let names = std::fs::read_dir(wal_directory).into_iter().flatten().flatten();
    let mut names = names.map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().ends_with(".wal"))
}

/// Who tells with whom a new cluster begins, if it is not the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// The DNS.
    Services(ServiceRecords),
    /// A running etcd.
    Registry(Registry),
}

/// `--discovery-srv` and `--discovery-srv-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecords {
    /// The domain that has the records.
    pub domain: String,
    /// What is added to the services' names; may be empty.
    pub name: String,
}

/// `--discovery-endpoints` and what goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// `host:port` of its members.
    pub endpoints: Vec<String>,
    /// The cluster's name there.
    pub token: String,
    /// `--discovery-dial-timeout`.
    pub dial_timeout: Duration,
    /// `--discovery-request-timeout`.
    pub request_timeout: Duration,
}

impl Discovery {
    /// What the flags say; `None` if the command line names the members.
    pub(super) fn from_texts(texts: &Texts) -> Result<Option<Discovery>, ConfigError> {
        let wrong = |message: &str| Err(ConfigError::new(message.to_string()));
        let (domain, token) = (texts.get("discovery-srv"), texts.get("discovery-token"));
        let endpoints = values::list(texts.get("discovery-endpoints"));
        let set = [
            !texts.get("initial-cluster").is_empty(),
            !domain.is_empty(),
            !endpoints.is_empty(),
        ];
        if set.into_iter().filter(|set| *set).count() > 1 {
            return wrong(
                "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
                 \"discovery-endpoints\" or \"discovery-srv\"",
            );
        }
        if token.is_empty() != endpoints.is_empty() {
            return wrong("both --discovery-token and --discovery-endpoints must be set");
        }
        if !domain.is_empty() {
            return Ok(Some(Discovery::Services(ServiceRecords {
                domain: domain.to_string(),
                name: texts.get("discovery-srv-name").to_string(),
            })));
        }
        if endpoints.is_empty() {
            return Ok(None);
        }
        if texts.get("initial-cluster-state") == "existing" {
            return wrong("--discovery-endpoints must not be set when joining existing initial cluster");
        }
        Ok(Some(Discovery::Registry(Registry {
            endpoints: endpoints
                .iter()
                .map(|endpoint| place(endpoint))
                .collect::<Result<_, _>>()?,
            token: token.to_string(),
            dial_timeout: super::duration(texts, "discovery-dial-timeout")?,
            request_timeout: super::duration(texts, "discovery-request-timeout")?,
        })))
    }
}

/// An endpoint's `host:port`.
fn place(endpoint: &str) -> Result<String, ConfigError> {
    let with_scheme = match endpoint.contains("://") {
        true => endpoint.to_string(),
        false => format!("http://{endpoint}"),
    };
    let url =
        values::url(&with_scheme).map_err(|problem| ConfigError::new(format!("--discovery-endpoints: {problem}")))?;
    let host = if url.host.contains(':') {
        format!("[{}]", url.host)
    } else {
        url.host
    };
    Ok(format!("{host}:{}", url.port))
}

impl InitialCluster {
    /// What the flags say of `own`.
    pub(super) fn from_texts(
        texts: &Texts,
        own: &Own,
        discovery: Option<&Discovery>,
    ) -> Result<InitialCluster, ConfigError> {
        let exists = match texts.get("initial-cluster-state") {
            "new" => false,
            "existing" => true,
            other => {
                return Err(ConfigError::new(format!(
                    "--initial-cluster-state: {other:?} is none of new, existing"
                )));
            }
        };
        if own.has_log {
            return Ok(InitialCluster {
                exists,
                ..Default::default()
            });
        }
        let mut cluster = InitialCluster::parse(texts.get("initial-cluster"), exists)?;
        if cluster.members.is_empty() {
            // Who the others are is found out later, if it is at all.
            cluster.members.insert(own.name.to_string(), own.peer_urls.to_vec());
        }
        if discovery.is_none() {
            cluster.check(own.name, own.peer_urls.to_vec())?;
        }
        Ok(cluster)
    }

    /// Reads `name=URL,name=URL`.
    pub fn parse(text: &str, exists: bool) -> Result<InitialCluster, ConfigError> {
        let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in values::list(text) {
            let Some((member, url)) = pair.split_once('=') else {
                return Err(ConfigError::new(format!(
                    "--initial-cluster: {pair:?} is not of the form name=URL"
                )));
            };
            let url = values::url(url).map_err(|problem| ConfigError::new(format!("--initial-cluster: {problem}")))?;
            members.entry(member.to_string()).or_default().push(url.text);
        }
        Ok(InitialCluster { members, exists })
    }

    fn check(&self, name: &str, mut advertised: Vec<String>) -> Result<(), ConfigError> {
        let Some(named) = self.members.get(name) else {
            let names: Vec<_> = self.members.keys().map(String::as_str).collect();
            return Err(ConfigError::new(format!(
                "--initial-cluster does not name this member: --name is {name:?}, it names {}",
                names.join(", ")
            )));
        };
        let mut named = named.clone();
        advertised.sort();
        named.sort();
        if named != advertised {
            return Err(ConfigError::new(format!(
                "--initial-cluster has {name}={} but --initial-advertise-peer-urls={}; make them equal",
                named.join(","),
                advertised.join(",")
            )));
        }
        self.clone().with_urls_once().map(drop)
    }

    /// The same, if no URL stands in it twice.
    pub fn with_urls_once(self) -> Result<InitialCluster, ConfigError> {
        let mut urls: Vec<&String> = self.members.values().flatten().collect();
        urls.sort();
        match urls.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ConfigError::new(format!(
                "the initial cluster has the URL {} twice; each member needs its own",
                pair[0]
            ))),
            None => Ok(self),
        }
    }

    /// The peer URLs of all members but `name`.
    pub fn others(&self, name: &str) -> impl Iterator<Item = &String> {
        let others = self.members.iter().filter(move |(member, _)| *member != name);
        others.flat_map(|(_, urls)| urls)
    }
}
