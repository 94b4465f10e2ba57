//! The write-ahead log in etcd's format: frames, segments, group commit, recovery and repair.
