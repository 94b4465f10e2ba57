//! The gRPC services, etcd's error table, and the plain HTTP endpoints.
