//! `--initial-cluster` and what goes with it: with whom a new cluster begins, or which one this member joins.

use super::parse::Texts;
use super::{ConfigError, values};
use std::collections::BTreeMap;

/// The cluster as the command line describes it. Looked at only while there is no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCluster {
    /// Peer URLs by member name, this member's among them.
    pub members: BTreeMap<String, Vec<String>>,
    /// Whether it exists already, and this member joins it.
    pub exists: bool,
}

impl InitialCluster {
    /// What the flags say of the member `name`, whose own peer URLs are `advertised`.
    pub(super) fn from_texts(
        texts: &Texts,
        name: &str,
        advertised: Vec<String>,
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
        let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in values::list(texts.get("initial-cluster")) {
            let Some((member, url)) = pair.split_once('=') else {
                return Err(ConfigError::new(format!(
                    "--initial-cluster: {pair:?} is not of the form name=URL"
                )));
            };
            let url = values::url(url).map_err(|problem| ConfigError::new(format!("--initial-cluster: {problem}")))?;
            members.entry(member.to_string()).or_default().push(url.text);
        }
        if members.is_empty() {
            members.insert(name.to_string(), advertised.clone());
        }
        let cluster = InitialCluster { members, exists };
        cluster.check(name, advertised)?;
        Ok(cluster)
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
        let mut urls: Vec<&String> = self.members.values().flatten().collect();
        urls.sort();
        match urls.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ConfigError::new(format!(
                "--initial-cluster has the URL {} twice; each member needs its own",
                pair[0]
            ))),
            None => Ok(()),
        }
    }

    /// The peer URLs of all members but `name`.
    pub fn others(&self, name: &str) -> impl Iterator<Item = &String> {
        let others = self.members.iter().filter(move |(member, _)| *member != name);
        others.flat_map(|(_, urls)| urls)
    }
}
