//! The feature gates of etcd 3.7: which there are, how they are set, what they need of each other (`etcd-surface` 3.3).
//!
//! A gate that nobody knows is an error. `AllAlpha` and `AllBeta` set the gates of a stage that are not set by name.

use super::ConfigError;
use super::values;
use std::collections::BTreeMap;

/// How far a feature has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// On unless refused.
    Beta,
}

impl Stage {
    /// Its name where etcd tells it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
        }
    }
}

/// Every gate but the two that stand for a stage. What is on by default is what is [`Stage::Beta`].
const GATES: &[(&str, Stage)] = &[
    ("CompactHashCheck", Stage::Alpha),
    ("FastLeaseKeepAlive", Stage::Beta),
    ("InitialCorruptCheck", Stage::Alpha),
    ("LeaseCheckpoint", Stage::Alpha),
    ("LeaseCheckpointPersist", Stage::Alpha),
    ("PriorityRequest", Stage::Alpha),
    ("SetMemberLocalAddr", Stage::Alpha),
    ("StopGRPCServiceOnDefrag", Stage::Alpha),
    ("TxnModeWriteWithSharedBuffer", Stage::Beta),
];

/// The gates that set all of a stage.
const STAGES: &[(&str, Stage)] = &[("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// What was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    set: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// Takes over a text of the form `A=true,B=false`.
    pub fn parse(&mut self, text: &str) -> Result<(), ConfigError> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = match pair.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim()),
                None => return Err(wrong(format!("missing bool value for {}", pair.trim()))),
            };
            let value = values::boolean(value);
            let value = value.map_err(|problem| wrong(format!("invalid value of {name}: {problem}")))?;
            self.set(name, value)?;
        }
        Ok(())
    }

    /// Sets one gate.
    pub fn set(&mut self, name: &str, value: bool) -> Result<(), ConfigError> {
        let known = GATES.iter().chain(STAGES).map(|(known, _)| *known);
        let Some(name) = known.clone().find(|known| *known == name) else {
            let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(known, name));
            let nearest = nearest.unwrap_or_default();
            return Err(wrong(format!(
                "unrecognized feature gate: {name}; did you mean {nearest}?"
            )));
        };
        self.set.insert(name, value);
        Ok(())
    }

    /// Whether a gate of the table is open.
    pub fn is_open(&self, name: &str) -> bool {
        let (name, stage) = GATES
            .iter()
            .find(|(known, _)| *known == name)
            .expect("a gate of the table");
        let of_stage = STAGES.iter().find(|(_, all)| all == stage);
        let of_stage = of_stage.and_then(|(all, _)| self.set.get(all));
        let set = self.set.get(name).or(of_stage);
        set.copied().unwrap_or(*stage == Stage::Beta)
    }

    /// Every gate with its stage and whether it is open, those that stand for a stage first.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        let stages = STAGES
            .iter()
            .map(|(name, stage)| (*name, *stage, self.set.get(name).copied().unwrap_or(false)));
        let gates = GATES.iter().map(|(name, stage)| (*name, *stage, self.is_open(name)));
        stages.chain(gates)
    }

    /// Checks what gates need of each other; what is to be warned of.
    pub fn check(&self) -> Result<Option<String>, ConfigError> {
        match (self.is_open("LeaseCheckpoint"), self.is_open("LeaseCheckpointPersist")) {
            (false, true) => Err(wrong(
                "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint"
                    .to_string(),
            )),
            (true, false) => Ok(Some(
                "LeaseCheckpoint is enabled without LeaseCheckpointPersist; remaining times are persisted anyway"
                    .to_string(),
            )),
            _ => Ok(None),
        }
    }
}

fn wrong(problem: String) -> ConfigError {
    ConfigError::new(format!("--feature-gates: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(text: &str) -> Result<Gates, String> {
        let mut gates = Gates::default();
        gates.parse(text).map_err(|error| error.to_string())?;
        gates.check().map_err(|error| error.to_string())?;
        Ok(gates)
    }

    #[test]
    fn stages_set_what_is_not_set_by_name() {
        let defaults = gates("").unwrap();
        assert!(defaults.is_open("FastLeaseKeepAlive") && !defaults.is_open("LeaseCheckpoint"));
        let all =
            gates("PriorityRequest=false,AllAlpha=true,AllBeta=false, TxnModeWriteWithSharedBuffer = true").unwrap();
        assert!(all.is_open("LeaseCheckpoint") && all.is_open("LeaseCheckpointPersist"));
        assert!(!all.is_open("PriorityRequest") && !all.is_open("FastLeaseKeepAlive"));
        assert!(all.is_open("TxnModeWriteWithSharedBuffer"));
    }

    #[test]
    fn all_gates_are_told_by_name() {
        let told = gates("AllBeta=false,FastLeaseKeepAlive=true").unwrap();
        let told: Vec<_> = told.all().collect();
        assert_eq!(told.len(), GATES.len() + STAGES.len());
        assert!(told.is_sorted_by_key(|(name, ..)| *name), "{told:?}");
        assert!(told.contains(&("AllBeta", Stage::Beta, false)));
        assert!(told.contains(&("FastLeaseKeepAlive", Stage::Beta, true)));
        assert!(told.contains(&("TxnModeWriteWithSharedBuffer", Stage::Beta, false)));
    }

    #[test]
    fn errors_are_etcds_and_name_what_is_wrong() {
        for (text, said) in [
            ("Nope=true", "unrecognized feature gate: Nope"),
            ("LeaseCheckpoints=true", "did you mean LeaseCheckpoint?"),
            ("LeaseCheckpoint", "missing bool value for LeaseCheckpoint"),
            ("LeaseCheckpoint=maybe", "invalid value of LeaseCheckpoint: \"maybe\""),
            (
                "LeaseCheckpointPersist=true",
                "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint",
            ),
        ] {
            let error = gates(text).unwrap_err();
            assert!(
                error.contains(said) && error.contains("--feature-gates"),
                "{text}: {error}"
            );
        }
        let mut gates = Gates::default();
        gates.parse("LeaseCheckpoint=true").unwrap();
        assert!(gates.check().unwrap().is_some());
    }
}
