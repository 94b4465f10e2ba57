//! Requests of tests, and members that take them one by one.

use super::harness::Member;
use super::model::Answer;
use crate::proto::etcdserverpb::{
    self as pb, AlarmMember, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    request_op::Request, response_op::Response,
};
use crate::state::StateError;
use crate::state::outcome;
use bytes::Bytes;

pub fn put(key: &'static str, value: &'static str) -> PutRequest {
    PutRequest {
        key: key.into(),
        value: value.into(),
        ..Default::default()
    }
}

pub fn range(key: &'static str, end: &'static str) -> RangeRequest {
    RangeRequest {
        key: key.into(),
        range_end: end.into(),
        ..Default::default()
    }
}

pub fn delete(key: &'static str, end: &'static str) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
        prev_kv: false,
    }
}

pub fn operations(requests: Vec<Request>) -> Vec<RequestOp> {
    requests
        .into_iter()
        .map(|request| RequestOp { request: Some(request) })
        .collect()
}

pub fn txn(success: Vec<Request>) -> TxnRequest {
    TxnRequest {
        success: operations(success),
        ..Default::default()
    }
}

pub fn nested(request: TxnRequest) -> Request {
    Request::RequestTxn(request)
}

impl Member {
    pub fn put(&mut self, put: PutRequest) -> Result<pb::PutResponse, StateError> {
        match self.apply(&InternalRaftRequest {
            put: Some(put),
            ..Default::default()
        })? {
            Answer::Put(response) => Ok(response),
            answer => panic!("{answer:?}"),
        }
    }

    pub fn delete(&mut self, delete: DeleteRangeRequest) -> pb::DeleteRangeResponse {
        match self.apply(&InternalRaftRequest {
            delete_range: Some(delete),
            ..Default::default()
        }) {
            Ok(Answer::Delete(response)) => response,
            answer => panic!("{answer:?}"),
        }
    }

    pub fn txn(&mut self, txn: TxnRequest) -> Result<pb::TxnResponse, StateError> {
        match self.apply(&InternalRaftRequest {
            txn: Some(txn),
            ..Default::default()
        })? {
            Answer::Txn(response) => Ok(response),
            answer => panic!("{answer:?}"),
        }
    }

    pub fn ask_compact(&mut self, revision: i64) -> Result<(), StateError> {
        let compaction = pb::CompactionRequest {
            revision,
            physical: false,
        };
        self.apply(&InternalRaftRequest {
            compaction: Some(compaction),
            ..Default::default()
        })
        .map(|_| ())
    }

    pub fn grant(&mut self, id: i64, ttl: i64) -> Result<outcome::Answer, StateError> {
        let grant = pb::LeaseGrantRequest { id, ttl };
        self.apply_raw(&InternalRaftRequest {
            lease_grant: Some(grant),
            ..Default::default()
        })
        .answer
    }

    pub fn revoke(&mut self, id: i64) -> Result<outcome::Answer, StateError> {
        let revoke = pb::LeaseRevokeRequest { id };
        self.apply_raw(&InternalRaftRequest {
            lease_revoke: Some(revoke),
            ..Default::default()
        })
        .answer
    }

    pub fn alarm(&mut self, action: i32, member_id: u64, alarm: i32) -> Option<Vec<AlarmMember>> {
        let alarm = pb::AlarmRequest {
            action,
            member_id,
            alarm,
        };
        match self
            .apply_raw(&InternalRaftRequest {
                alarm: Some(alarm),
                ..Default::default()
            })
            .answer
        {
            Ok(outcome::Answer::Alarm(alarms)) => alarms,
            answer => panic!("{answer:?}"),
        }
    }

    pub fn value(&self, key: &'static str) -> Option<Bytes> {
        self.range(&range(key, "")).unwrap().kvs.pop().map(|kv| kv.value)
    }
}

pub fn revision_of(operation: &pb::ResponseOp) -> i64 {
    let header = match operation.response.as_ref().unwrap() {
        Response::ResponseRange(response) => response.header,
        Response::ResponsePut(response) => response.header,
        Response::ResponseDeleteRange(response) => response.header,
        Response::ResponseTxn(response) => response.header,
    };
    header.unwrap().revision
}
