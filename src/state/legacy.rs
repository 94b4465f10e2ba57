//! What members before 3.7 need, or write: the membership in the form of etcd's second API, which rides with snapshots
//! and which 3.5 and 3.6 can't do without, and the requests of that API by which 3.5 tells of itself.

use crate::proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use crate::proto::membershippb::{Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use crate::state::members::{Member, Members, json};
use prost::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json as object};

/// Where members' own words about themselves lie.
const MEMBERS: &str = "/0/members/";
/// Where the cluster's version lies.
const VERSION: &str = "/0/version";

/// A request of etcd's second API, as far as it still occurs in logs.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(string, tag = "3")]
    path: String,
    #[prost(string, tag = "4")]
    value: String,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    name: String,
    #[serde(rename = "clientURLs", default)]
    client_urls: Option<Vec<String>>,
}

/// What an entry says that is a request of the second API; `None` if it is none that 3.5 writes.
pub fn request(entry: &[u8]) -> Option<InternalRaftRequest> {
    let request = Request::decode(entry).ok().filter(|request| request.method == "PUT")?;
    let mut found = InternalRaftRequest {
        header: Some(RequestHeader {
            id: request.id,
            ..Default::default()
        }),
        ..Default::default()
    };
    if request.path == VERSION {
        found.cluster_version_set = Some(ClusterVersionSetRequest { ver: request.value });
        return Some(found);
    }
    let id = request.path.strip_prefix(MEMBERS)?.strip_suffix("/attributes")?;
    let said: Said = serde_json::from_str(&request.value).ok()?;
    found.cluster_member_attr_set = Some(ClusterMemberAttrSetRequest {
        member_id: u64::from_str_radix(id, 16).ok()?,
        member_attributes: Some(Attributes {
            name: said.name,
            client_urls: said.client_urls.unwrap_or_default(),
        }),
    });
    Some(found)
}

/// Go's zero time: what lies here does not end.
const FOR_EVER: &str = "0001-01-01T00:00:00Z";

/// The store of the second API: places are counted as they are made.
struct Store {
    index: u64,
}

impl Store {
    fn node(&self, path: &str, value: &str, children: Value) -> Value {
        object!({
            "Path": path, "CreatedIndex": self.index, "ModifiedIndex": self.index, "ExpireTime": FOR_EVER,
            "Value": value, "Children": children,
        })
    }

    fn leaf(&mut self, path: &str, value: &str) -> Value {
        self.index += 1;
        self.node(path, value, Value::Null)
    }

    fn member(&mut self, member: &Member) -> Value {
        let path = format!("{MEMBERS}{:x}", member.id);
        let text = |value: Value| String::from_utf8_lossy(&json(&value)).into_owned();
        let mut raft = object!({ "peerURLs": member.peer_urls });
        if member.is_learner {
            raft["isLearner"] = true.into();
        }
        let mut children = Map::new();
        let raft = self.leaf(&format!("{path}/raftAttributes"), &text(raft));
        children.insert("raftAttributes".into(), raft);
        if !member.client_urls.is_empty() {
            let mut said = object!({ "clientURLs": member.client_urls });
            if !member.name.is_empty() {
                said["name"] = member.name.clone().into();
            }
            let said = self.leaf(&format!("{path}/attributes"), &text(said));
            children.insert("attributes".into(), said);
        }
        self.node(&path, "", children.into())
    }
}

/// The members, who was removed and the cluster's version as the store of the second API, in its JSON. What its history
/// and its counters would be is left out: who reads it keeps its own.
pub fn snapshot(members: &Members) -> Vec<u8> {
    let mut store = Store { index: 0 };
    let mut cluster = Map::new();
    let present: Map<String, Value> = members
        .iter()
        .map(|member| (format!("{:x}", member.id), store.member(member)))
        .collect();
    if !present.is_empty() {
        cluster.insert("members".into(), store.node("/0/members", "", present.into()));
    }
    let leaf_of = |id: u64| (format!("{id:x}"), format!("/0/removed_members/{id:x}"));
    let removed: Map<String, Value> = members
        .removed()
        .map(leaf_of)
        .map(|(name, path)| (name, store.leaf(&path, "")))
        .collect();
    if !removed.is_empty() {
        cluster.insert(
            "removed_members".into(),
            store.node("/0/removed_members", "", removed.into()),
        );
    }
    if let Some(version) = members.version() {
        cluster.insert("version".into(), store.leaf(VERSION, version));
    }
    let index = store.index;
    let empty = || Value::Object(Map::new());
    let cluster = store.node("/0", "", cluster.into());
    let keys = store.node("/1", "", empty());
    let root = store.node("/", "", object!({ "0": cluster, "1": keys }));
    json(&object!({ "Root": root, "CurrentIndex": index, "CurrentVersion": 2 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, value: &str) -> Vec<u8> {
        let request = Request {
            id: 9,
            method: "PUT".into(),
            path: path.into(),
            value: value.into(),
        };
        request.encode_to_vec()
    }

    #[test]
    fn what_3_5_says_of_itself_is_understood() {
        let said = r#"{"name":"n","clientURLs":["http://h:2379"]}"#;
        let found = request(&entry("/0/members/8e9e/attributes", said)).unwrap();
        let attributes = found.cluster_member_attr_set.unwrap();
        assert_eq!((found.header.unwrap().id, attributes.member_id), (9, 0x8e9e));
        let attributes = attributes.member_attributes.unwrap();
        assert_eq!(
            (&*attributes.name, attributes.client_urls),
            ("n", vec!["http://h:2379".to_string()])
        );
        let found = request(&entry("/0/version", "3.5.0")).unwrap();
        assert_eq!(found.cluster_version_set.unwrap().ver, "3.5.0");
        for (path, value) in [
            ("/1/key", "x"),
            ("/0/members/zz/attributes", "{}"),
            ("/0/members/1/attributes", "{"),
        ] {
            assert_eq!(request(&entry(path, value)), None, "{path}");
        }
        assert_eq!(request(b"\xff"), None);
    }

    /// As `GetMembershipInfoInV2Format` of etcd 3.7.1 wrote it for a like cluster, without history and counters.
    #[test]
    fn a_snapshots_members_are_in_etcds_old_form() {
        let mut members = Members::default();
        members.add(Member {
            id: 0x8e9e,
            peer_urls: vec!["http://h:2380".into()],
            name: "a<&>".into(),
            client_urls: vec!["http://h:2379".into()],
            ..Default::default()
        });
        members.add(Member {
            id: 7,
            peer_urls: vec!["http://i:2380".into()],
            is_learner: true,
            ..Default::default()
        });
        members.add(Member::default());
        members.remove(0);
        let version = ClusterVersionSetRequest { ver: "3.6.0".into() };
        members.set_version(&version).unwrap();
        let written = snapshot(&members);
        let told: Value = serde_json::from_slice(&written).unwrap();
        let at = |path: &str| told.pointer(path).cloned().unwrap_or_default();
        let members = "/Root/Children/0/Children/members/Children";
        assert_eq!(
            at(&format!("{members}/7/Children/raftAttributes/Value")),
            r#"{"isLearner":true,"peerURLs":["http://i:2380"]}"#
        );
        assert_eq!(at(&format!("{members}/7/Children/attributes")), Value::Null);
        assert_eq!(
            at(&format!("{members}/8e9e/Children/attributes")),
            object!({
                "Path": "/0/members/8e9e/attributes", "CreatedIndex": 3, "ModifiedIndex": 3, "ExpireTime": FOR_EVER,
                "Value": r#"{"clientURLs":["http://h:2379"],"name":"a\u003c\u0026\u003e"}"#, "Children": null,
            })
        );
        assert_eq!(at("/Root/Children/0/Children/version/Value"), "3.6.0");
        assert_eq!(
            at("/Root/Children/0/Children/removed_members/Children/0/Path"),
            "/0/removed_members/0"
        );
        assert_eq!(at("/Root/Children/1/Children"), object!({}));
        assert_eq!(at("/CurrentVersion"), 2);
        let text = String::from_utf8(written).unwrap();
        assert!(
            text.contains(r"\\u003c"),
            "the member's own JSON is escaped once and quoted: {text}"
        );
    }
}
