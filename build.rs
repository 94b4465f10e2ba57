//! Compiles `proto/*.proto` to Rust without a system protoc, and to a table of which field is of which type;
//! and has the linker lead the making of the executor's rings to `reactor::serve`.

use std::{collections::BTreeSet, env, error::Error, fmt::Write, fs, path::PathBuf};

/// The field number that `state::depth` writes over fields of a wrong type: no message may have it.
const UNUSED_FIELD: i32 = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["rpc.proto", "raft_internal.proto", "lease.proto", "health.proto"];
    println!("cargo:rerun-if-changed=proto");
    // See src/reactor/serve/setup.rs.
    println!("cargo:rustc-link-arg=-Wl,--wrap=__sys_io_uring_setup");
    let descriptors = protox::compile(files, ["proto"])?;
    let directory = PathBuf::from(env::var("OUT_DIR")?);
    let messages = descriptors.file.iter().flat_map(|file| {
        let messages = file.message_type.iter();
        messages.map(|message| (format!(".{}.{}", file.package(), message.name()), message))
    });
    let known: BTreeSet<String> = messages.clone().map(|(name, _)| name).collect();
    let mut schemas = String::new();
    for (name, message) in messages {
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let fields = fields.into_iter().map(|field| {
            assert_ne!(field.number(), UNUSED_FIELD, "{name} has field {UNUSED_FIELD}");
            let wire_type = wire_type(field.r#type().as_str_name());
            let packs = wire_type != 2 && field.label().as_str_name() == "LABEL_REPEATED";
            let child = known
                .get(field.type_name())
                .map_or("None".into(), |name| format!("Some(&{})", constant(name)));
            format!(
                "Field {{ number: {}, wire_type: {wire_type}, packs: {packs}, child: {child} }},",
                field.number()
            )
        });
        let fields: String = fields.collect();
        writeln!(
            schemas,
            "static {}: Schema = Schema {{ fields: &[{fields}] }};",
            constant(&name)
        )?;
        let path = rust_path(&name);
        let constant = constant(&name);
        writeln!(
            schemas,
            "impl Described for {path} {{ const SCHEMA: &'static Schema = &{constant}; }}"
        )?;
    }
    fs::write(directory.join("schema.rs"), schemas)?;
    prost_build::Config::new()
        .bytes(["."])
        .out_dir(directory)
        .compile_fds(descriptors)?;
    Ok(())
}

fn wire_type(name: &str) -> u8 {
    match name {
        "TYPE_STRING" | "TYPE_BYTES" | "TYPE_MESSAGE" => 2,
        "TYPE_DOUBLE" | "TYPE_FIXED64" | "TYPE_SFIXED64" => 1,
        "TYPE_FLOAT" | "TYPE_FIXED32" | "TYPE_SFIXED32" => 5,
        _ => 0,
    }
}

/// The name of a message's table: `.package.Name` as `PACKAGE_NAME`.
fn constant(name: &str) -> String {
    name[1..].replace('.', "_").to_uppercase()
}

/// The path of a message's type below `crate::proto`.
fn rust_path(name: &str) -> String {
    let (package, message) = name[1..].rsplit_once('.').expect("a message is in a package");
    let module = if package == "grpc.health.v1" { "health" } else { package };
    // prost's spelling.
    let message = message.replace("KV", "Kv");
    format!("super::{module}::{message}")
}
