//! The config file: YAML (or JSON, which YAML contains) with the flags' names as keys.
//!
//! Durations are whole nanoseconds there, and the security blocks are nested (`etcd-surface` 3.1). A file replaces
//! flags and environment.

use super::ConfigError;
use super::flags::{self, Kind};
use super::parse::Texts;
use serde_yaml_ng::Value;

/// Names of the two nested blocks and the prefix their keys have as flags.
const BLOCKS: &[(&str, &str)] = &[("client-transport-security", ""), ("peer-transport-security", "peer-")];

/// Reads the file into flag texts.
pub fn read(path: &str) -> Result<Texts, ConfigError> {
    let wrong = |problem: String| ConfigError::new(format!("config file {path}: {problem}"));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(|error| wrong(error.to_string()))
}

fn parse(text: &str) -> Result<Texts, ConfigError> {
    let document: Value = serde_yaml_ng::from_str(text).map_err(|error| ConfigError::new(error.to_string()))?;
    let mut texts = Texts::default();
    let entries = match document {
        Value::Mapping(entries) => entries,
        Value::Null => Default::default(),
        _ => return Err(ConfigError::new("is not a mapping of flag names to values".to_string())),
    };
    for (key, value) in entries {
        let key = key
            .as_str()
            .ok_or_else(|| ConfigError::new(format!("{key:?} is not a flag name")))?
            .to_string();
        let block = BLOCKS.iter().find(|(name, _)| *name == key);
        match (block, value) {
            (_, Value::Null) => {}
            (Some((_, prefix)), Value::Mapping(inner)) => {
                for (name, value) in inner {
                    let name = name.as_str().unwrap_or_default();
                    set(&mut texts, &security_flag(prefix, name), value)?;
                }
            }
            (_, value) => set(&mut texts, &key, value)?,
        }
    }
    texts.finish()?;
    Ok(texts)
}

/// The flag that a key of a security block stands for.
fn security_flag(prefix: &str, name: &str) -> String {
    match (prefix, name) {
        ("", "allowed-hostname") => "client-cert-allowed-hostname".to_string(),
        ("peer-", "allowed-cn") => "peer-cert-allowed-cn".to_string(),
        ("peer-", "allowed-hostname") => "peer-cert-allowed-hostname".to_string(),
        ("", "cert-file" | "key-file" | "trusted-ca-file" | "auto-tls") => name.to_string(),
        ("", "client-cert-auth" | "client-cert-file" | "client-key-file") => name.to_string(),
        _ => format!("{prefix}{name}"),
    }
}

fn set(texts: &mut Texts, name: &str, value: Value) -> Result<(), ConfigError> {
    let Some(flag) = flags::find(name) else {
        texts.warnings.push(format!("config file: {name} is no flag"));
        return Ok(());
    };
    let text = match value {
        Value::String(text) => text,
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) if flag.kind == Kind::Duration => format!("{number}ns"),
        Value::Number(number) => number.to_string(),
        Value::Sequence(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Value::Null => return Ok(()),
        other => return Err(ConfigError::new(format!("{name}: {other:?} is not a value"))),
    };
    if text.is_empty() && flag.kind != Kind::Text && flag.kind != Kind::List {
        return Ok(());
    }
    texts.set(flag, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_yaml_and_json() {
        let yaml = "name: m\nlisten-client-urls: http://127.0.0.1:1,http://127.0.0.1:2\nmax-wals: 7\n\
                    grpc-keepalive-interval: 5000000000\nclient-transport-security:\n  cert-file:\n  auto-tls: false\n";
        let texts = parse(yaml).unwrap();
        assert_eq!(texts.get("name"), "m");
        assert_eq!(texts.get("max-wals"), "7");
        assert_eq!(texts.get("grpc-keepalive-interval"), "5000000000ns");
        assert_eq!(parse("{\"name\": \"j\"}").unwrap().get("name"), "j");
        assert_eq!(parse("").unwrap().get("name"), "default");
        assert!(parse("[1]").is_err());
    }

    #[test]
    fn a_security_block_is_refused_like_its_flags() {
        let error = parse("client-transport-security:\n  client-cert-auth: true\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("--client-cert-auth"), "{error}");
        let error = parse("peer-transport-security:\n  cert-file: x\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("--peer-cert-file"), "{error}");
    }
}
