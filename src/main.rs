//! The `ringd` program: reads its configuration, sets up logging, runs the server.

use ringd::config::{self, Config, ConfigError, parse};
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// etcd's exit code for a command line it does not understand.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let config = match configure() {
        Ok(Some(config)) => config,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringd: {error}");
            eprintln!("Run ringd --help for the flags.");
            return ExitCode::from(USAGE);
        }
    };
    log(&config);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    match ringd::server::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("ringd: {error}");
            ExitCode::FAILURE
        }
    }
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

fn log(config: &Config) {
    let level = match config.log_level.as_str() {
        "debug" => LevelFilter::DEBUG,
        "warn" => LevelFilter::WARN,
        "error" | "dpanic" | "panic" | "fatal" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    };
    let stdout = config.log_to_stdout;
    let writer = move || -> Box<dyn std::io::Write> {
        if stdout {
            Box::new(std::io::stdout())
        } else {
            Box::new(std::io::stderr())
        }
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_target(false);
    if config.log_json {
        builder.json().flatten_event(true).init();
    } else {
        builder.init();
    }
}
