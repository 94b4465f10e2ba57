//! Compiles `proto/*.proto` to Rust without a system protoc.

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["rpc.proto", "raft_internal.proto", "lease.proto", "health.proto"];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new()
        .bytes(["."])
        .out_dir(PathBuf::from(env::var("OUT_DIR")?))
        .compile_fds(descriptors)?;
    Ok(())
}
