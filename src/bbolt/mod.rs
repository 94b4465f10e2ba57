//! Reading and writing bbolt files, the interchange format of etcd's tools.
