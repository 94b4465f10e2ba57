//! Sans-IO gRPC: message framing, status, metadata, deadlines.
