//! etcd's names of buckets and of their fixed keys.

/// The history, by revision.
pub const KEY: &[u8] = b"key";
/// Where the log is in it, and how far compactions came.
pub const META: &[u8] = b"meta";
/// Leases by id.
pub const LEASE: &[u8] = b"lease";
/// Alarms that are raised.
pub const ALARM: &[u8] = b"alarm";
/// The cluster's version, and its downgrade.
pub const CLUSTER: &[u8] = b"cluster";
/// Members by id.
pub const MEMBERS: &[u8] = b"members";
/// Ids of members that were removed.
pub const MEMBERS_REMOVED: &[u8] = b"members_removed";
/// Whether authentication is on, and its revision.
pub const AUTH: &[u8] = b"auth";
/// Users by name.
pub const AUTH_USERS: &[u8] = b"authUsers";
/// Roles by name.
pub const AUTH_ROLES: &[u8] = b"authRoles";

/// The buckets that every backend has, as they lie in the file.
pub const BUCKETS: [&[u8]; 10] = [
    ALARM,
    AUTH,
    AUTH_ROLES,
    AUTH_USERS,
    CLUSTER,
    KEY,
    LEASE,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
];

/// In `auth`.
pub const AUTH_ENABLED: &[u8] = b"authEnabled";
pub const AUTH_REVISION: &[u8] = b"authRevision";
/// In `cluster`.
pub const CLUSTER_VERSION: &[u8] = b"clusterVersion";
pub const DOWNGRADE: &[u8] = b"downgrade";
/// In `meta`.
pub const CONF_STATE: &[u8] = b"confState";
pub const CONSISTENT_INDEX: &[u8] = b"consistent_index";
pub const FINISHED_COMPACTION: &[u8] = b"finishedCompactRev";
pub const SCHEDULED_COMPACTION: &[u8] = b"scheduledCompactRev";
pub const STORAGE_VERSION: &[u8] = b"storageVersion";
pub const TERM: &[u8] = b"term";
/// In `members_removed`: every id's value.
pub const REMOVED: &[u8] = b"removed";
