//! Where a member comes from: its log, a new cluster that it founds, or one that exists and that it joins.
//!
//! Only a member without a log looks at `--initial-cluster` and its neighbours, as etcd does (`etcd-surface` 4.10 and
//! 6.7). It asks the others who they are: before it founds a cluster, whether they have done so with this member
//! already; to join one, which of its members it is.

use super::dns::Resolver;
use super::{ServerError, discovery};
use crate::config::Config;
use crate::config::cluster::{Discovery, has_log};
use crate::limits::{PEER_ASK_BYTES, PEER_ASK_TIMEOUT};
use crate::raft::replica::Identity;
use crate::state::identity::{cluster_id, member_id};
use crate::state::members::Member;
use crate::state::version;
use std::collections::BTreeSet;

/// Where a member comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Who it is; `None` when its log says so.
    pub identity: Option<Identity>,
    /// With whom it founds a cluster, this member among them.
    pub founders: Vec<Member>,
}

/// What another member says of its cluster.
struct Told {
    cluster_id: u64,
    members: Vec<Member>,
}

impl Origin {
    /// Finds out.
    pub fn of(config: &Config) -> Result<Origin, ServerError> {
        if has_log(&config.wal_directory) {
            return Ok(Origin::default());
        }
        let found = match &config.discovery {
            None => config.clone(),
            Some(discovery) => discovered(config, discovery).map_err(|problem| ServerError::Discovery { problem })?,
        };
        let config = &found;
        if config.initial_cluster.exists {
            return join(config);
        }
        let founders: Vec<Member> = config
            .initial_cluster
            .members
            .iter()
            .map(|(name, urls)| Member {
                id: member_id(urls, &config.cluster_token),
                peer_urls: urls.clone(),
                name: name.clone(),
                ..Default::default()
            })
            .collect();
        let ids: Vec<u64> = founders.iter().map(|member| member.id).collect();
        let identity = Identity {
            cluster_id: cluster_id(&ids),
            member_id: own_id(config),
        };
        if ids.len() > 1 {
            was_founded(config, identity.member_id)?;
        }
        Ok(Origin {
            identity: Some(identity),
            founders,
        })
    }
}

/// The id of a founder by its URLs in the cluster, which may not be letter for letter what it advertises.
fn own_id(config: &Config) -> u64 {
    let named = config.initial_cluster.members.get(&config.name);
    member_id(named.unwrap_or(&config.advertise_peer_urls), &config.cluster_token)
}

/// The configuration with the cluster that was found.
fn discovered(config: &Config, discovery: &Discovery) -> Result<Config, String> {
    let mut config = config.clone();
    match discovery {
        Discovery::Services(records) => {
            config.initial_cluster = discovery::by_services(&config, records, &Resolver::of_system())?;
        }
        Discovery::Registry(registry) => {
            config.cluster_token = registry.token.clone();
            let id = own_id(&config);
            config.initial_cluster = discovery::by_registry(&config, registry, id)?;
        }
    }
    Ok(config)
}

/// Refuses to found a cluster that was founded: this member has lost its data, and its id with it.
fn was_founded(config: &Config, own: u64) -> Result<(), ServerError> {
    for url in config.initial_cluster.others(&config.name) {
        let Ok(told) = ask(url) else { continue };
        let is_known = |member: &Member| member.id == own && !member.client_urls.is_empty();
        if told.members.iter().any(is_known) {
            return Err(ServerError::Founded {
                id: own,
                url: url.clone(),
            });
        }
    }
    Ok(())
}

fn join(config: &Config) -> Result<Origin, ServerError> {
    let mut problems = Vec::new();
    for url in config.initial_cluster.others(&config.name) {
        match ask(url) {
            Ok(told) => {
                let origin = joined(config, url, &told)?;
                is_compatible(&told, origin.identity)?;
                return Ok(origin);
            }
            Err(problem) => problems.push(format!("{url}: {problem}")),
        }
    }
    let problem = if problems.is_empty() {
        "--initial-cluster names no other member to ask".to_string()
    } else {
        format!("no member answered: {}", problems.join("; "))
    };
    Err(ServerError::Join { problem })
}

/// Finds this member among those of a cluster, by its peer URLs; the others have to be as the command line says.
fn joined(config: &Config, url: &str, told: &Told) -> Result<Origin, ServerError> {
    let refused = |problem: String| ServerError::Join {
        problem: format!("{problem}, says {url}; give --initial-cluster as `etcdctl member add` printed it"),
    };
    let named = &config.initial_cluster.members;
    if told.members.len() != named.len() {
        return Err(refused(format!(
            "the cluster has {} members and --initial-cluster {}",
            told.members.len(),
            named.len()
        )));
    }
    let set = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    for (name, urls) in named {
        let urls = set(urls);
        let matching = told.members.iter().any(|member| set(&member.peer_urls) == urls);
        if !matching {
            return Err(refused(format!(
                "no member has the peer URLs that --initial-cluster gives {name}"
            )));
        }
    }
    let own = set(&config.advertise_peer_urls);
    let own = told.members.iter().find(|member| set(&member.peer_urls) == own);
    let Some(own) = own else {
        return Err(refused("no member has this one's peer URLs".to_string()));
    };
    Ok(Origin {
        identity: Some(Identity {
            cluster_id: told.cluster_id,
            member_id: own.id,
        }),
        founders: Vec::new(),
    })
}

/// Refuses to join a cluster of a version that this member can't follow. Members that are down say nothing, and one
/// that says something is enough.
fn is_compatible(told: &Told, own: Option<Identity>) -> Result<(), ServerError> {
    #[derive(serde::Deserialize)]
    struct Version {
        etcdcluster: String,
    }
    let mut versions = Vec::new();
    let mut is_downgrading = None;
    let others = told
        .members
        .iter()
        .filter(|member| Some(member.id) != own.map(|own| own.member_id));
    for member in others {
        let said = first(&member.peer_urls, |url| {
            let (_, body) = fetch(url, "version")?;
            serde_json::from_slice::<Version>(&body).map_err(|error| error.to_string())
        });
        versions.extend(said.map(|version| version.etcdcluster));
        // Any member's answer is as good as another's.
        if is_downgrading.is_none() {
            is_downgrading = first(&member.peer_urls, |url| {
                let (_, body) = fetch(url, "downgrade/enabled")?;
                String::from_utf8_lossy(&body)
                    .parse::<bool>()
                    .map_err(|error| error.to_string())
            });
        }
    }
    version::may_join(&versions, is_downgrading.unwrap_or(false)).map_err(|problem| ServerError::Join {
        problem: format!("incompatible with current running cluster: {problem}"),
    })
}

/// What the first URL that has an answer says.
fn first<T>(urls: &[String], ask: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    urls.iter().find_map(|url| {
        let answer = ask(url);
        if let Err(problem) = &answer {
            tracing::warn!(url, "a member did not answer: {problem}");
        }
        answer.ok()
    })
}

/// Asks a member who is in its cluster.
fn ask(url: &str) -> Result<Told, String> {
    let (cluster_id, body) = fetch(url, "members")?;
    let cluster_id = cluster_id.ok_or("its answer does not name a cluster")?;
    let members = serde_json::from_slice(&body).map_err(|error| format!("its members are not etcd's JSON: {error}"))?;
    Ok(Told { cluster_id, members })
}

/// What a member has at a path, and the cluster that it names.
fn fetch(url: &str, path: &str) -> Result<(Option<u64>, Vec<u8>), String> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(PEER_ASK_TIMEOUT))
        // A proxy for the world is none for peers.
        .proxy(None)
        .build()
        .into();
    let path = format!("{}/{path}", url.trim_end_matches('/'));
    let mut response = agent.get(&path).call().map_err(|error| error.to_string())?;
    let id = response
        .headers()
        .get("X-Etcd-Cluster-Id")
        .and_then(|id| id.to_str().ok());
    let id = id.and_then(|id| u64::from_str_radix(id, 16).ok());
    let body = response.body_mut().with_config().limit(PEER_ASK_BYTES).read_to_vec();
    let body = body.map_err(|error| error.to_string())?;
    Ok((id, body))
}
