//! Both forms of a membership change under one trait, and small helpers raft uses on configurations.

use crate::eraftpb::{ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// A step that does `change_type` to `node_id`.
pub fn new_conf_change_single(node_id: u64, change_type: ConfChangeType) -> ConfChangeSingle {
    ConfChangeSingle {
        change_type: change_type as i32,
        node_id,
    }
}

/// Reads steps written as `v1 l2 r3`: voter, learner, removal.
pub fn parse_conf_change(text: &str) -> Result<Vec<ConfChangeSingle>, String> {
    text.split_ascii_whitespace()
        .map(|token| {
            let change_type = match token.as_bytes().first() {
                Some(b'v') => ConfChangeType::AddNode,
                Some(b'l') => ConfChangeType::AddLearnerNode,
                Some(b'r') => ConfChangeType::RemoveNode,
                _ => return Err(format!("conf change step {token:?} does not begin with v, l or r")),
            };
            let node_id = token[1..]
                .parse()
                .map_err(|error| format!("conf change step {token:?}: {error}"))?;
            Ok(new_conf_change_single(node_id, change_type))
        })
        .collect()
}

/// The text that `parse_conf_change` reads.
pub fn stringify_conf_change(changes: &[ConfChangeSingle]) -> String {
    let steps = changes.iter().map(|change| {
        let letter = match change.get_change_type() {
            ConfChangeType::AddNode => 'v',
            ConfChangeType::AddLearnerNode => 'l',
            ConfChangeType::RemoveNode => 'r',
        };
        format!("{letter}{}", change.node_id)
    });
    steps.collect::<Vec<_>>().join(" ")
}

/// A membership change of either version.
pub trait ConfChangeI {
    /// As version 2.
    fn into_v2(self) -> ConfChangeV2;
    /// As version 2, borrowed when it is one.
    fn as_v2(&self) -> Cow<'_, ConfChangeV2>;
    /// As version 1, when it is one.
    fn as_v1(&self) -> Option<&ConfChange>;
}

impl ConfChangeI for ConfChange {
    fn into_v2(self) -> ConfChangeV2 {
        ConfChangeV2 {
            transition: ConfChangeTransition::Auto as i32,
            changes: vec![ConfChangeSingle {
                change_type: self.change_type,
                node_id: self.node_id,
            }],
            context: self.context,
        }
    }

    fn as_v2(&self) -> Cow<'_, ConfChangeV2> {
        Cow::Owned(self.clone().into_v2())
    }

    fn as_v1(&self) -> Option<&ConfChange> {
        Some(self)
    }
}

impl ConfChangeI for ConfChangeV2 {
    fn into_v2(self) -> ConfChangeV2 {
        self
    }

    fn as_v2(&self) -> Cow<'_, ConfChangeV2> {
        Cow::Borrowed(self)
    }

    fn as_v1(&self) -> Option<&ConfChange> {
        None
    }
}

impl ConfChangeV2 {
    /// Whether the change goes through joint consensus, and then whether raft leaves it by itself.
    pub fn enter_joint(&self) -> Option<bool> {
        match self.get_transition() {
            ConfChangeTransition::Auto if self.changes.len() <= 1 => None,
            ConfChangeTransition::Explicit => Some(false),
            _ => Some(true),
        }
    }

    /// Whether the change leaves a joint configuration: one that says nothing.
    pub fn leave_joint(&self) -> bool {
        self.get_transition() == ConfChangeTransition::Auto && self.changes.is_empty()
    }
}

/// Whether both name the same configuration, in whatever order.
#[must_use]
pub fn conf_state_eq(left: &ConfState, right: &ConfState) -> bool {
    let same = |a: &[u64], b: &[u64]| a.iter().collect::<BTreeSet<_>>() == b.iter().collect::<BTreeSet<_>>();
    same(&left.voters, &right.voters)
        && same(&left.learners, &right.learners)
        && same(&left.voters_outgoing, &right.voters_outgoing)
        && same(&left.learners_next, &right.learners_next)
        && left.auto_leave == right.auto_leave
}

#[cfg(test)]
mod tests {
    use super::*;
    use protobuf::Message as _;

    #[test]
    fn steps_survive_their_text() {
        let steps = parse_conf_change("v1 l2 r3").unwrap();
        assert_eq!(stringify_conf_change(&steps), "v1 l2 r3");
        assert!(parse_conf_change("x1").is_err());
        assert!(parse_conf_change("v").is_err());
    }

    #[test]
    fn messages_pass_through_the_protobuf_trait() {
        let change = ConfChange {
            change_type: 2,
            node_id: 9,
            context: "c".into(),
            id: 4,
        };
        let bytes = change.write_to_bytes().unwrap();
        let mut read = ConfChange::default();
        read.merge_from_bytes(&bytes).unwrap();
        assert_eq!(read, change);
        assert_eq!(change.compute_size() as usize, bytes.len());
    }

    #[test]
    fn order_does_not_matter_to_equality() {
        let left = ConfState {
            voters: vec![1, 2],
            ..Default::default()
        };
        let right = ConfState {
            voters: vec![2, 1],
            ..Default::default()
        };
        assert!(conf_state_eq(&left, &right));
        assert!(!conf_state_eq(
            &left,
            &ConfState {
                voters: vec![1],
                ..Default::default()
            }
        ));
    }
}
