//! From the command line, the environment and the config file to one text per flag, and what must be said about it.
//!
//! Precedence is etcd's: a config file alone when one is named; else flag, `ETCD_*` variable, default (`etcd-surface`
//! 3.1). Command line syntax is Go's: one or two dashes, `-x v` or `-x=v`, a boolean's value only after `=`, the last
//! of a repeated flag wins.

use super::flags::{self, EXPERIMENTAL, FLAGS, Flag, Handling, IGNORED, Kind};
use super::gates::Gates;
use super::{ConfigError, values};
use std::collections::BTreeMap;

/// Every flag's text, and the warnings that reading them gave rise to.
#[derive(Debug, Default)]
pub struct Texts {
    /// Flags that were set, by name.
    set: BTreeMap<&'static str, String>,
    /// Feature gates.
    pub gates: Gates,
    /// Lines to log once logging works.
    pub warnings: Vec<String>,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Request {
    /// Start with these.
    Start(Texts),
    /// Print the help and end.
    Help,
    /// Print the version and end.
    Version,
}

/// Reads arguments (without the program's name) and `ETCD_*` variables; reads the config file they name.
pub fn read(
    arguments: impl IntoIterator<Item = String>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Request, ConfigError> {
    let mut texts = Texts::default();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(name) = argument
            .strip_prefix("--")
            .or_else(|| argument.strip_prefix('-'))
            .filter(|n| !n.is_empty())
        else {
            return Err(ConfigError::new(format!("{argument:?} is not a valid flag")));
        };
        let (name, inline) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (name, None),
        };
        match name {
            "h" | "help" => return Ok(Request::Help),
            "version" if inline.as_deref().is_none_or(|value| value == "true") => return Ok(Request::Version),
            _ => {}
        }
        texts.argument(name, inline, || arguments.next())?;
    }
    // As etcd's flags do, an empty variable leaves the default; lists of variables have such lines.
    let environment: Vec<_> = environment
        .into_iter()
        .filter(|(name, value)| name.starts_with("ETCD_") && !value.is_empty())
        .collect();
    let file_variable = environment
        .iter()
        .find(|(name, _)| name == "ETCD_CONFIG_FILE")
        .map(|(_, file)| file.clone());
    let file = texts
        .set
        .get("config-file")
        .cloned()
        .or(file_variable)
        .filter(|file| !file.is_empty());
    if let Some(file) = file {
        return Ok(Request::Start(super::file::read(&file)?));
    }
    for (name, value) in environment {
        texts.variable(&name, value)?;
    }
    texts.finish()?;
    Ok(Request::Start(texts))
}

impl Texts {
    /// A flag's text: as set, else its default.
    pub fn get(&self, name: &str) -> &str {
        let flag = flags::find(name).expect("a flag of the table");
        self.set.get(name).map_or(flag.default, String::as_str)
    }

    /// Whether a flag was set at all.
    pub fn is_set(&self, name: &str) -> bool {
        self.set.contains_key(name)
    }

    /// Sets a flag after checking its form.
    pub fn set(&mut self, flag: &'static Flag, value: String) -> Result<(), ConfigError> {
        let checked = match flag.kind {
            Kind::Boolean => values::boolean(&value).map(|_| ()),
            Kind::Integer => value
                .parse::<i64>()
                .map(|_| ())
                .map_err(|_| format!("{value:?} is not a whole number")),
            Kind::Duration => values::duration(&value).map(|_| ()),
            Kind::Text | Kind::List => Ok(()),
        };
        checked.map_err(|problem| ConfigError::new(format!("--{}: {problem}", flag.name)))?;
        match self.set.get_mut(flag.name) {
            // The one flag of which every use counts.
            Some(gates) if flag.name == "feature-gates" => gates.extend([",", &value]),
            _ => {
                self.set.insert(flag.name, value);
            }
        }
        Ok(())
    }

    fn argument(
        &mut self,
        name: &str,
        inline: Option<String>,
        next: impl FnOnce() -> Option<String>,
    ) -> Result<(), ConfigError> {
        let missing = || ConfigError::new(format!("flag needs an argument: --{name}"));
        if IGNORED.contains(&name) {
            if inline.is_none() {
                next();
            }
            self.warnings.push(format!("--{name} has no effect any more"));
            return Ok(());
        }
        if let Some(flag) = flags::find(name) {
            let value = match inline {
                Some(value) => value,
                None if flag.kind == Kind::Boolean => "true".to_string(),
                None => next().ok_or_else(missing)?,
            };
            return self.set(flag, value);
        }
        let experimental = name.strip_prefix("experimental-");
        let known = experimental.and_then(|old| EXPERIMENTAL.iter().find(|(spelling, _)| *spelling == old));
        let Some((_, now)) = known else {
            return Err(unknown(name));
        };
        self.warnings.push(format!(
            "--{name} is etcd 3.6's spelling; write --{}",
            now.replace(':', "=")
        ));
        if let Some(gate) = now.strip_prefix("feature-gates:") {
            let value = values::boolean(inline.as_deref().unwrap_or("true"))
                .map_err(|problem| ConfigError::new(format!("--{name}: {problem}")))?;
            return self.gates.set(gate, value);
        }
        self.argument(now, inline, next)
    }

    fn variable(&mut self, name: &str, value: String) -> Result<(), ConfigError> {
        const NOT_FLAGS: &[&str] = &["ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY", "ETCD_CONFIG_FILE"];
        if NOT_FLAGS.contains(&name) {
            return Ok(());
        }
        let flag = name["ETCD_".len()..].to_ascii_lowercase().replace('_', "-");
        let Some(flag) = flags::find(&flag) else {
            self.warnings
                .push(format!("the environment variable {name} names no flag"));
            return Ok(());
        };
        if self.is_set(flag.name) {
            self.warnings.push(format!(
                "the environment variable {name} is shadowed by --{}",
                flag.name
            ));
            return Ok(());
        }
        self.set(flag, value)
            .map_err(|error| ConfigError::new(format!("{name}: {error}")))
    }

    /// Reads the feature gates and says what is refused and what has no effect.
    pub(super) fn finish(&mut self) -> Result<(), ConfigError> {
        let gates = self.get("feature-gates").to_string();
        self.gates.parse(&gates)?;
        self.warnings.extend(self.gates.check()?);
        let differs = |flag: &Flag, text: &str| match flag.kind {
            Kind::Boolean => values::boolean(text) != values::boolean(flag.default),
            Kind::Duration => values::duration(text) != values::duration(flag.default),
            _ => text != flag.default,
        };
        let mut without_effect = Vec::new();
        for flag in FLAGS {
            if !self.set.get(flag.name).is_some_and(|text| differs(flag, text)) {
                continue;
            }
            match flag.handling {
                Handling::Used => {}
                Handling::Tuning => without_effect.push(format!("--{}", flag.name)),
                Handling::Refused => {
                    return Err(ConfigError::new(format!(
                        "--{}={} is not built yet ({}), and starting without it would change who may do what or who \
                         belongs to the cluster; remove the flag to start without it",
                        flag.name,
                        self.get(flag.name),
                        flag.help
                    )));
                }
            }
        }
        if !without_effect.is_empty() {
            self.warnings
                .push(format!("without effect in ringd: {}", without_effect.join(", ")));
        }
        Ok(())
    }
}

/// The error for a flag nobody knows, with the nearest known name.
fn unknown(name: &str) -> ConfigError {
    let nearest = FLAGS
        .iter()
        .map(|flag| (strsim::damerau_levenshtein(flag.name, name), flag.name))
        .min()
        .filter(|(distance, _)| *distance <= 2.max(name.len() / 3));
    let hint = nearest
        .map(|(_, flag)| format!("; did you mean --{flag}?"))
        .unwrap_or_default();
    ConfigError::new(format!("flag provided but not defined: --{name}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Texts, String> {
        let environment = environment
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        match read(arguments.iter().map(|a| a.to_string()), environment) {
            Ok(Request::Start(texts)) => Ok(texts),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn syntax_is_gos() {
        let texts = start(
            &["-name", "a", "--name=b", "--pre-vote", "--unsafe-no-fsync=false"],
            &[],
        )
        .unwrap();
        assert_eq!(texts.get("name"), "b");
        assert_eq!(texts.get("pre-vote"), "true");
        assert_eq!(texts.get("unsafe-no-fsync"), "false");
        assert!(
            start(&["stray"], &[])
                .unwrap_err()
                .contains("\"stray\" is not a valid flag")
        );
        assert!(start(&["--name"], &[]).unwrap_err().contains("needs an argument"));
        assert!(start(&["--max-wals=x"], &[]).unwrap_err().contains("--max-wals"));
        let error = start(&["--data-dri=x"], &[]).unwrap_err();
        assert!(error.contains("did you mean --data-dir?"), "{error}");
    }

    #[test]
    fn a_flag_shadows_its_variable() {
        let texts = start(
            &["--name=a"],
            &[("ETCD_NAME", "b"), ("ETCD_DATA_DIR", "d"), ("ETCD_WHAT", "x")],
        )
        .unwrap();
        assert_eq!(texts.get("name"), "a");
        assert_eq!(texts.get("data-dir"), "d");
        assert_eq!(texts.warnings.len(), 2, "{:?}", texts.warnings);
    }

    #[test]
    fn empty_variables_leave_the_defaults() {
        let (with, without) = (
            start(
                &[],
                &[
                    ("ETCD_LOG_LEVEL", ""),
                    ("ETCD_PRE_VOTE", ""),
                    ("ETCD_WHAT", ""),
                    ("ETCD_NAME", ""),
                ],
            )
            .unwrap(),
            start(&[], &[]).unwrap(),
        );
        assert_eq!(with.warnings, without.warnings);
        for name in ["log-level", "pre-vote", "name"] {
            assert_eq!(with.get(name), without.get(name));
        }
    }

    #[test]
    fn what_cannot_be_ignored_is_refused() {
        for flag in [
            "--cert-file=x",
            "--client-cert-auth",
            "--discovery-user=x",
            "--auth-token=jwt",
            "--host-whitelist=a",
        ] {
            let error = start(&[flag], &[]).unwrap_err();
            let name = flag.split('=').next().unwrap();
            assert!(error.contains(name) && error.contains("not built yet"), "{error}");
        }
        assert!(start(&["--client-cert-auth=false", "--initial-cluster-state=new"], &[]).is_ok());
    }

    #[test]
    fn tuning_warns_in_one_line() {
        let texts = start(&["--snapshot-count=5", "--metrics=extensive", "--max-snapshots=5"], &[]).unwrap();
        assert_eq!(texts.warnings, ["without effect in ringd: --snapshot-count, --metrics"]);
    }

    #[test]
    fn experimental_spellings_and_gates() {
        let texts = start(
            &[
                "--experimental-watch-progress-notify-interval=5s",
                "--experimental-initial-corrupt-check=true",
            ],
            &[],
        )
        .unwrap();
        assert_eq!(texts.get("watch-progress-notify-interval"), "5s");
        assert_eq!(texts.warnings.len(), 2, "{:?}", texts.warnings);
        assert!(
            texts.warnings[0].contains("write --watch-progress-notify-interval"),
            "{:?}",
            texts.warnings
        );
        assert!(texts.gates.is_open("InitialCorruptCheck"));
        assert!(
            start(&["--feature-gates=Nope=true"], &[])
                .unwrap_err()
                .contains("unrecognized feature gate: Nope")
        );
        assert!(start(&["--experimental-nothing"], &[]).is_err());
        let twice = [
            "--feature-gates=LeaseCheckpoint=true",
            "--feature-gates=PriorityRequest=true",
        ];
        let texts = start(&twice, &[]).unwrap();
        assert!(texts.gates.is_open("LeaseCheckpoint") && texts.gates.is_open("PriorityRequest"));
    }
}
