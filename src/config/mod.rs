//! Flags, `ETCD_*` environment, YAML file and feature gates as one struct with etcd's names and defaults.
