//! The `ringd` program: reads its configuration, sets up logging, runs the server.

use ringd::config::{self, Config, ConfigError, parse};
use ringd::server::logging;
use std::io::{self, Write};
use std::process::ExitCode;

/// etcd's exit code for a command line it does not understand.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    end_on_panic();
    let config = match configure() {
        Ok(Some(config)) => config,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("ringd: {error}\nRun ringd --help for the flags."));
            return ExitCode::from(USAGE);
        }
    };
    logging::start(&config);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    match ringd::server::run(&config) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            tell(&format!("ringd: {error}"));
            if error.is_of_the_flags() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Says it on standard error, if that takes it: it may be a file on a full disk.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A core that panics takes the member with it, in builds that unwind as well: the others would wait for it for ever.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// The configuration; `None` when only help or version was asked for.
fn configure() -> Result<Option<Config>, ConfigError> {
    match parse::read(std::env::args().skip(1), std::env::vars())? {
        parse::Request::Help => print!("{}", config::help()),
        parse::Request::Version => print!("{}", config::version()),
        parse::Request::Start(texts) => return Config::from_texts(texts).map(Some),
    }
    Ok(None)
}
