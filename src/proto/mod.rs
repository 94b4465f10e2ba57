//! The generated protobuf types: the API's, the log's and the peers'.
