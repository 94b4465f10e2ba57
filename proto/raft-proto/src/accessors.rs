//! The accessors and the `protobuf::Message` implementations that raft 0.7 calls.

use crate::eraftpb::*;
use bytes::Bytes;
use prost::Message as ProstMessage;
use protobuf::{CodedInputStream, CodedOutputStream, ProtobufError, ProtobufResult, UnknownFields};

/// raft calls these on enumerations, plain values, byte strings, lists and nested messages.
macro_rules! accessors {
    ($message:ident {
        $($kind:ident $field:ident: $type:ty, $get:ident, $set:ident, $take:ident, $mutable:ident;)*
    }) => {
        #[allow(missing_docs)]
        impl $message {
            $(accessors!(@$kind $field, $type, $get, $set, $take, $mutable);)*
        }
    };
    (@enumeration $field:ident, $type:ty, $get:ident, $set:ident, $take:ident, $mutable:ident) => {
        // prost derives the getter under the field's name.
        pub fn $get(&self) -> $type { self.$field() }
    };
    (@value $field:ident, $type:ty, $get:ident, $set:ident, $take:ident, $mutable:ident) => {
        pub fn $get(&self) -> $type { self.$field }
        pub fn $set(&mut self, value: $type) { self.$field = value; }
    };
    (@bytes $field:ident, $type:ty, $get:ident, $set:ident, $take:ident, $mutable:ident) => {
        pub fn $get(&self) -> &[u8] { &self.$field }
        pub fn $set(&mut self, value: $type) { self.$field = value; }
        pub fn $take(&mut self) -> $type { std::mem::take(&mut self.$field) }
    };
    (@list $field:ident, $type:ty, $get:ident, $set:ident, $take:ident, $mutable:ident) => {
        pub fn $get(&self) -> &[$type] { &self.$field }
        pub fn $set(&mut self, value: Vec<$type>) { self.$field = value; }
        pub fn $take(&mut self) -> Vec<$type> { std::mem::take(&mut self.$field) }
        pub fn $mutable(&mut self) -> &mut Vec<$type> { &mut self.$field }
    };
    (@nested $field:ident, $type:ty, $get:ident, $set:ident, $take:ident, $mutable:ident) => {
        pub fn $get(&self) -> &$type {
            self.$field.as_ref().unwrap_or_else(|| <$type as DefaultInstance>::default_ref())
        }
        pub fn $set(&mut self, value: $type) { self.$field = Some(value); }
        pub fn $take(&mut self) -> $type { self.$field.take().unwrap_or_default() }
        pub fn $mutable(&mut self) -> &mut $type { self.$field.get_or_insert_default() }
    };
}

/// A shared empty message for getters of fields that are not set.
trait DefaultInstance: 'static {
    fn default_ref() -> &'static Self;
}

macro_rules! default_instance {
    ($($message:ident = $value:expr;)*) => {$(
        impl DefaultInstance for $message {
            fn default_ref() -> &'static Self {
                static INSTANCE: $message = $value;
                &INSTANCE
            }
        }
    )*};
}

const EMPTY_CONF_STATE: ConfState = ConfState {
    voters: Vec::new(),
    learners: Vec::new(),
    voters_outgoing: Vec::new(),
    learners_next: Vec::new(),
    auto_leave: false,
};

default_instance! {
    ConfState = EMPTY_CONF_STATE;
    SnapshotMetadata = SnapshotMetadata { conf_state: None, index: 0, term: 0 };
    Snapshot = Snapshot { data: Bytes::new(), metadata: None };
}

accessors!(Entry {
    enumeration entry_type: EntryType, get_entry_type, set_entry_type, take_entry_type, mut_entry_type;
    value term: u64, get_term, set_term, take_term, mut_term;
    value index: u64, get_index, set_index, take_index, mut_index;
    bytes data: Bytes, get_data, set_data, take_data, mut_data;
    bytes context: Bytes, get_context, set_context, take_context, mut_context;
});
accessors!(SnapshotMetadata {
    nested conf_state: ConfState, get_conf_state, set_conf_state, take_conf_state, mut_conf_state;
    value index: u64, get_index, set_index, take_index, mut_index;
    value term: u64, get_term, set_term, take_term, mut_term;
});
accessors!(Snapshot {
    bytes data: Bytes, get_data, set_data, take_data, mut_data;
    nested metadata: SnapshotMetadata, get_metadata, set_metadata, take_metadata, mut_metadata;
});
accessors!(Message {
    enumeration msg_type: MessageType, get_msg_type, set_msg_type, take_msg_type, mut_msg_type;
    value to: u64, get_to, set_to, take_to, mut_to;
    value from: u64, get_from, set_from, take_from, mut_from;
    value term: u64, get_term, set_term, take_term, mut_term;
    value log_term: u64, get_log_term, set_log_term, take_log_term, mut_log_term;
    value index: u64, get_index, set_index, take_index, mut_index;
    list entries: Entry, get_entries, set_entries, take_entries, mut_entries;
    value commit: u64, get_commit, set_commit, take_commit, mut_commit;
    value commit_term: u64, get_commit_term, set_commit_term, take_commit_term, mut_commit_term;
    nested snapshot: Snapshot, get_snapshot, set_snapshot, take_snapshot, mut_snapshot;
    value request_snapshot: u64,
        get_request_snapshot, set_request_snapshot, take_request_snapshot, mut_request_snapshot;
    value reject: bool, get_reject, set_reject, take_reject, mut_reject;
    value reject_hint: u64, get_reject_hint, set_reject_hint, take_reject_hint, mut_reject_hint;
    bytes context: Bytes, get_context, set_context, take_context, mut_context;
    value priority: i64, get_priority, set_priority, take_priority, mut_priority;
});
accessors!(HardState {
    value term: u64, get_term, set_term, take_term, mut_term;
    value vote: u64, get_vote, set_vote, take_vote, mut_vote;
    value commit: u64, get_commit, set_commit, take_commit, mut_commit;
});
accessors!(ConfState {
    list voters: u64, get_voters, set_voters, take_voters, mut_voters;
    list learners: u64, get_learners, set_learners, take_learners, mut_learners;
    list voters_outgoing: u64, get_voters_outgoing, set_voters_outgoing, take_voters_outgoing, mut_voters_outgoing;
    list learners_next: u64, get_learners_next, set_learners_next, take_learners_next, mut_learners_next;
    value auto_leave: bool, get_auto_leave, set_auto_leave, take_auto_leave, mut_auto_leave;
});
accessors!(ConfChange {
    enumeration change_type: ConfChangeType, get_change_type, set_change_type, take_change_type, mut_change_type;
    value node_id: u64, get_node_id, set_node_id, take_node_id, mut_node_id;
    bytes context: Bytes, get_context, set_context, take_context, mut_context;
    value id: u64, get_id, set_id, take_id, mut_id;
});
accessors!(ConfChangeSingle {
    enumeration change_type: ConfChangeType, get_change_type, set_change_type, take_change_type, mut_change_type;
    value node_id: u64, get_node_id, set_node_id, take_node_id, mut_node_id;
});
accessors!(ConfChangeV2 {
    enumeration transition: ConfChangeTransition, get_transition, set_transition, take_transition, mut_transition;
    list changes: ConfChangeSingle, get_changes, set_changes, take_changes, mut_changes;
    bytes context: Bytes, get_context, set_context, take_context, mut_context;
});

/// raft bounds batches by `compute_size` and encodes membership changes through this trait; the rest of it is never
/// called on our messages.
macro_rules! protobuf_message {
    ($($message:ident),*) => {$(
        impl protobuf::Clear for $message {
            fn clear(&mut self) {
                ProstMessage::clear(self);
            }
        }

        impl protobuf::Message for $message {
            fn descriptor(&self) -> &'static protobuf::reflect::MessageDescriptor {
                unreachable!("raft asks for no descriptors")
            }

            fn is_initialized(&self) -> bool {
                true
            }

            fn merge_from(&mut self, input: &mut CodedInputStream<'_>) -> ProtobufResult<()> {
                let mut bytes = Vec::new();
                while !input.eof()? {
                    bytes.push(input.read_raw_byte()?);
                }
                self.merge(bytes.as_slice()).map_err(|error| {
                    ProtobufError::IoError(std::io::Error::new(std::io::ErrorKind::InvalidData, error))
                })
            }

            fn write_to_with_cached_sizes(&self, output: &mut CodedOutputStream<'_>) -> ProtobufResult<()> {
                output.write_raw_bytes(&self.encode_to_vec())
            }

            fn compute_size(&self) -> u32 {
                u32::try_from(self.encoded_len()).unwrap_or(u32::MAX)
            }

            fn get_cached_size(&self) -> u32 {
                protobuf::Message::compute_size(self)
            }

            fn get_unknown_fields(&self) -> &UnknownFields {
                unreachable!("raft reads no unknown fields")
            }

            fn mut_unknown_fields(&mut self) -> &mut UnknownFields {
                unreachable!("raft writes no unknown fields")
            }

            fn as_any(&self) -> &dyn std::any::Any {
                self
            }

            fn new() -> Self {
                Self::default()
            }

            fn default_instance() -> &'static Self {
                unreachable!("raft asks for no default instances")
            }
        }
    )*};
}

protobuf_message!(
    Entry,
    SnapshotMetadata,
    Snapshot,
    Message,
    HardState,
    ConfState,
    ConfChange,
    ConfChangeSingle,
    ConfChangeV2
);
