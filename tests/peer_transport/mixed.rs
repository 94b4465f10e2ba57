//! Clusters of a real etcd and our transport.
