//! The generated protobuf types: the API's, the log's and the peers'.
//!
//! The texts are in `proto/`, ours, with the packages, names and numbers of etcd's API (`etcd-surface` 1.2 and 6.6).
//! Every `bytes` field is a [`bytes::Bytes`], so that a message decoded from a `Bytes` shares its memory. prost is
//! built without its recursion limit: whoever decodes a request bounds its depth first (`state::validate`).

#![allow(missing_docs, clippy::doc_lazy_continuation, clippy::large_enum_variant)]

pub mod schema;

/// Keys, values and events.
pub mod mvccpb {
    include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
}

/// Users, roles and permissions.
pub mod authpb {
    include!(concat!(env!("OUT_DIR"), "/authpb.rs"));
}

/// The client API and the payload of raft entries.
pub mod etcdserverpb {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

/// Requests about the cluster.
pub mod membershippb {
    include!(concat!(env!("OUT_DIR"), "/membershippb.rs"));
}

/// Leases as stored.
pub mod leasepb {
    include!(concat!(env!("OUT_DIR"), "/leasepb.rs"));
}

/// gRPC's health service.
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

#[cfg(test)]
mod tests {
    use super::{etcdserverpb as pb, mvccpb};
    use bytes::Bytes;
    use prost::Message;

    /// The two field numbers of the API that surprise, and the record's byte form against prost's.
    #[test]
    fn surprising_field_numbers() {
        let event = mvccpb::Event {
            r#type: 1,
            ..Default::default()
        };
        let watch = pb::WatchResponse {
            events: vec![event],
            ..Default::default()
        };
        assert_eq!(watch.encode_to_vec(), [11 << 3 | 2, 2, 0x08, 1]);
        let compare = pb::Compare {
            range_end: Bytes::from_static(b"x"),
            ..Default::default()
        };
        assert_eq!(compare.encode_to_vec(), [0x82, 0x04, 1, b'x']);
        let request = pb::InternalRaftRequest {
            header: Some(pb::RequestHeader {
                id: 7,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(request.encode_to_vec(), [0xa2, 0x06, 2, 0x08, 7]);
    }

    #[test]
    fn record_encoding_is_prosts() {
        let kv = mvccpb::KeyValue {
            key: Bytes::from_static(b"key"),
            create_revision: 2,
            mod_revision: i64::MAX,
            version: 77,
            value: Bytes::from_static(b"value"),
            lease: -3,
        };
        let bytes = kv.encode_to_vec();
        let view = crate::mvcc::record::KeyValueView::decode(&bytes).unwrap();
        let mut ours = Vec::new();
        view.encode(&mut ours);
        assert_eq!(ours, bytes);
    }
}
