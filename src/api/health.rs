//! `/health`, `/livez` and `/readyz`: what is looked at, and the words for what was found.

use super::http::{Response, TEXT};
use crate::proto::etcdserverpb::AlarmType;
use crate::raft::messages::Status;

/// Why a check could not be made or failed.
pub(super) type Failure<'a> = &'a str;

/// What a set of checks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whether the process has to be started again.
    Live,
    /// Whether requests may be sent to it.
    Ready,
}

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Kind {
    /// Its name in paths and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Live => "livez",
            Kind::Ready => "readyz",
        }
    }

    /// What it consists of.
    pub fn checks(self) -> &'static [Check] {
        match self {
            Kind::Live => &[Check::SerializableRead],
            Kind::Ready => &[
                Check::DataCorruption,
                Check::SerializableRead,
                Check::LinearizableRead,
                Check::NonLearner,
            ],
        }
    }

    /// What a path names: all checks of a kind, or one.
    pub fn of_path(path: &str) -> Option<(Kind, Option<Check>)> {
        for kind in [Kind::Live, Kind::Ready] {
            let Some(rest) = path.strip_prefix('/').and_then(|path| path.strip_prefix(kind.name())) else {
                continue;
            };
            if rest.is_empty() {
                return Some((kind, None));
            }
            let name = rest.strip_prefix('/')?;
            let check = kind.checks().iter().find(|check| check.name() == name)?;
            return Some((kind, Some(*check)));
        }
        None
    }
}

/// The number of a check in the metrics, below `CHECKS`.
pub(super) fn check_number(kind: Kind, check: Check) -> usize {
    match kind {
        Kind::Live => 0,
        Kind::Ready => 1 + check as usize,
    }
}

/// How many checks there are.
pub(super) const CHECKS: usize = 5;

impl Check {
    /// Its name in paths, answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    /// Whether the log core is asked. A serializable read is answered from what this core can see, whoever else is
    /// stuck.
    pub fn needs_status(self) -> bool {
        self != Check::SerializableRead
    }

    /// Whether etcd makes it by a range.
    pub fn reads(self) -> bool {
        matches!(self, Check::SerializableRead | Check::LinearizableRead)
    }

    /// Makes the check for the member `own` whose state is `status`.
    pub fn run(self, own: u64, status: Result<&Status, Failure>) -> Result<(), String> {
        if self == Check::SerializableRead {
            return Ok(());
        }
        let status = status.map_err(str::to_string)?;
        match self {
            Check::DataCorruption if status.has_alarm(AlarmType::Corrupt) => {
                Err("alarm activated: CORRUPT".to_string())
            }
            Check::LinearizableRead if status.leader == 0 => Err("etcdserver: no leader".to_string()),
            Check::NonLearner
                if status
                    .members
                    .iter()
                    .any(|member| member.id == own && member.is_learner) =>
            {
                Err("not supported for learner".to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Why `/health` is false, if it is.
pub(super) fn problem(status: &Status, excluded: &[String], serializable: bool) -> Option<String> {
    for alarm in &status.alarms {
        let alarm = AlarmType::try_from(alarm.alarm).unwrap_or(AlarmType::None);
        if !excluded.iter().any(|name| name == alarm.as_str_name()) {
            return Some(match alarm {
                AlarmType::Nospace | AlarmType::Corrupt => format!("ALARM {}", alarm.as_str_name()),
                AlarmType::None => "ALARM UNKNOWN".to_string(),
            });
        }
    }
    (!serializable && status.leader == 0).then(|| "RAFT NO LEADER".to_string())
}

/// The answer of `/health`.
pub(super) fn response(problem: Option<String>) -> Response {
    match problem {
        None => Response::new(200, TEXT, r#"{"health":"true","reason":""}"#.to_string()),
        Some(reason) => {
            let reason = serde_json::Value::from(reason);
            let body = format!(r#"{{"health":"false","reason":{reason}}}"#);
            tracing::warn!(output = body, "status-code" = 503, "/health error");
            Response::error(503, &body)
        }
    }
}

/// The answer of `/livez`, `/readyz` and the paths below them. What failed is always told, the rest with `verbose`.
pub(super) fn checked(kind: Kind, results: &[(Check, Result<(), String>)], verbose: bool) -> Response {
    let mut reason = String::new();
    for (check, result) in results {
        let name = check.name();
        match result {
            Ok(()) => reason.push_str(&format!("[+]{name} ok\n")),
            Err(failure) => reason.push_str(&format!("[-]{name} failed: {failure}\n")),
        }
    }
    if results.iter().any(|(_, result)| result.is_err()) {
        tracing::error!(path = kind.name(), reason, "status-code" = 503, "Health check error");
        return Response::error(503, &reason);
    }
    let reason = if verbose { reason } else { String::new() };
    Response::plain(200, format!("{reason}ok\n"))
}
