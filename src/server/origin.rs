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
        has_not_run(&told, url, own)?;
    }
    Ok(())
}

/// Refuses to begin without data where a member of the cluster knows that this one has run: it has forgotten its votes,
/// and what it acknowledged.
///
/// Once a member is up it says through the log where clients reach it, and nothing but its removal takes that away: no
/// change of URLs, no promotion, no restart of a cluster from one member. As long as it has no log of its own it can't
/// have said so. A name alone shows nothing: founders have theirs before they run.
///
/// etcd looks at this only before it founds a cluster. Its members that join without their data run on, or end when
/// their leader speaks of what they had.
fn has_not_run(told: &Told, url: &str, own: u64) -> Result<(), ServerError> {
    let has_run = |member: &Member| member.id == own && !member.client_urls.is_empty();
    if told.members.iter().any(has_run) {
        return Err(ServerError::HasRun {
            id: own,
            url: url.to_string(),
        });
    }
    Ok(())
}

/// The first member that answers says which of the cluster's members this one is. Any of them may have fallen behind
/// the others, so all are asked whether it has run.
fn join(config: &Config) -> Result<Origin, ServerError> {
    let mut problems = Vec::new();
    let mut found: Option<(Told, Identity)> = None;
    for url in config.initial_cluster.others(&config.name) {
        let told = match ask(url) {
            Ok(told) => told,
            Err(problem) => {
                problems.push(format!("{url}: {problem}"));
                continue;
            }
        };
        let identity = match &found {
            Some((_, identity)) => *identity,
            None => joined(config, url, &told)?,
        };
        // Ids are random enough to be those of one cluster only.
        has_not_run(&told, url, identity.member_id)?;
        found.get_or_insert((told, identity));
    }
    if let Some((told, identity)) = found {
        is_compatible(&told, identity)?;
        return Ok(Origin {
            identity: Some(identity),
            founders: Vec::new(),
        });
    }
    let problem = if problems.is_empty() {
        "--initial-cluster names no other member to ask".to_string()
    } else {
        format!("no member answered: {}", problems.join("; "))
    };
    Err(ServerError::Join { problem })
}

/// Finds this member among those of a cluster, by its peer URLs; the others have to be as the command line says.
fn joined(config: &Config, url: &str, told: &Told) -> Result<Identity, ServerError> {
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
    Ok(Identity {
        cluster_id: told.cluster_id,
        member_id: own.id,
    })
}

/// Refuses to join a cluster of a version that this member can't follow. Members that are down say nothing, and one
/// that says something is enough.
fn is_compatible(told: &Told, own: Identity) -> Result<(), ServerError> {
    #[derive(serde::Deserialize)]
    struct Version {
        etcdcluster: String,
    }
    let mut versions = Vec::new();
    let mut is_downgrading = None;
    let others = told.members.iter().filter(|member| member.id != own.member_id);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// This member's peer URL, at which nobody is.
    const OWN: &str = "http://127.0.0.1:1";

    /// A member that answers, and at which URL. It runs as long as the tests.
    fn peer() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, url)
    }

    fn answer(listener: TcpListener, members: &[Member]) {
        let members = serde_json::to_string(members).unwrap();
        let serve = move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut asked = Vec::new();
                let mut byte = [0];
                while !asked.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    asked.push(byte[0]);
                }
                let asked = String::from_utf8_lossy(&asked);
                let body = match asked.split(' ').nth(1) {
                    Some("/members") => &members[..],
                    Some("/version") => r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0"}"#,
                    _ => "false",
                };
                let length = format!("Content-Length: {}", body.len());
                let head = format!("HTTP/1.1 200 OK\r\nX-Etcd-Cluster-Id: c\r\n{length}\r\nConnection: close");
                let _ = write!(stream, "{head}\r\n\r\n{body}");
            }
        };
        std::thread::spawn(serve);
    }

    fn member(id: u64, url: &str, name: &str, client_urls: &[&str]) -> Member {
        Member {
            id,
            name: name.to_string(),
            peer_urls: vec![url.to_string()],
            client_urls: client_urls.iter().map(|url| url.to_string()).collect(),
            ..Default::default()
        }
    }

    fn config(state: &str, others: &[(&str, &str)]) -> Config {
        let directory = tempfile::tempdir().unwrap();
        let named = others.iter().map(|(name, url)| format!(",{name}={url}"));
        let arguments = [
            format!("--data-dir={}", directory.path().display()),
            "--name=own".to_string(),
            format!("--initial-advertise-peer-urls={OWN}"),
            format!("--initial-cluster=own={OWN}{}", named.collect::<String>()),
            format!("--initial-cluster-state={state}"),
        ];
        match parse::read(arguments, []) {
            Ok(parse::Request::Start(texts)) => Config::from_texts(texts).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Joins a cluster of two others, `a` first; what each of the two says of this member.
    fn join_by(of_a: &Member, of_b: &Member) -> Result<Origin, ServerError> {
        let [(a, a_url), (b, b_url)] = [peer(), peer()];
        let others = [
            member(1, &a_url, "a", &["http://a"]),
            member(2, &b_url, "b", &["http://b"]),
        ];
        answer(a, &[others[0].clone(), others[1].clone(), of_a.clone()]);
        answer(b, &[others[0].clone(), others[1].clone(), of_b.clone()]);
        Origin::of(&config("existing", &[("a", &a_url), ("b", &b_url)]))
    }

    #[test]
    fn who_joins_has_not_run_before() {
        let new = member(3, OWN, "", &[]);
        let identity = Some(Identity {
            cluster_id: 0xc,
            member_id: 3,
        });
        let founders = Vec::new();
        let joined = Origin { identity, founders };
        assert_eq!(join_by(&new, &new).unwrap(), joined);
        // A founder has its name from the others, and may never have run.
        let founder = member(3, OWN, "own", &[]);
        assert_eq!(join_by(&founder, &founder).unwrap(), joined);
        // One of the two may not know yet that a member at this place was removed and another added.
        let before = member(4, OWN, "own", &["http://own"]);
        assert_eq!(join_by(&new, &before).unwrap(), joined);

        let ran = member(3, OWN, "own", &["http://own"]);
        let learner = Member {
            is_learner: true,
            ..ran.clone()
        };
        for (of_a, of_b) in [(&ran, &ran), (&ran, &new), (&new, &ran), (&founder, &learner)] {
            let refused = join_by(of_a, of_b).unwrap_err();
            assert!(matches!(refused, ServerError::HasRun { id: 3, .. }), "{refused}");
            let said = refused.to_string();
            assert!(said.contains("etcdctl member remove 3`"), "{said}");
        }
    }

    #[test]
    fn who_does_not_answer_is_passed_over() {
        let (listener, url) = peer();
        let (nobody, dead) = peer();
        drop(nobody);
        let others = [
            member(1, &dead, "a", &["http://a"]),
            member(2, &url, "b", &["http://b"]),
        ];
        let [a, b] = others;
        answer(listener, &[a, b, member(3, OWN, "own", &["http://own"])]);
        let refused = Origin::of(&config("existing", &[("a", &dead), ("b", &url)])).unwrap_err();
        assert!(matches!(refused, ServerError::HasRun { id: 3, .. }), "{refused}");
        let unheard = Origin::of(&config("existing", &[("a", &dead)])).unwrap_err();
        assert!(unheard.to_string().contains("no member answered"), "{unheard}");
    }

    #[test]
    fn who_founds_has_not_run_before() {
        let (listener, url) = peer();
        let config = config("new", &[("a", &url)]);
        let own = own_id(&config);
        answer(
            listener,
            &[member(1, &url, "a", &["http://a"]), member(own, OWN, "own", &[])],
        );
        let origin = Origin::of(&config).unwrap();
        assert_eq!(origin.identity.map(|identity| identity.member_id), Some(own));
        assert_eq!(origin.founders.len(), 2);
        let (listener, url) = peer();
        let config = self::config("new", &[("a", &url)]);
        answer(listener, &[member(own, OWN, "own", &["http://own"])]);
        let refused = Origin::of(&config).unwrap_err();
        assert!(
            matches!(&refused, ServerError::HasRun { id, .. } if *id == own),
            "{refused}"
        );
    }
}
