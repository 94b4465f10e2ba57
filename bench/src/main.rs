//! `ringd-bench`: loads one etcd server and prints what it saw as one JSON object; `scripts/bench` and
//! `scripts/compare.sh` compare servers with it.

mod flags;
mod load;
mod scenario;
mod watch;
mod wire;

use load::{Beside, Report, process, series};
use scenario::{Scenario, parse};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    if let Some(code) = watch::main() {
        return code;
    }
    let Scenario {
        options,
        parts,
        histogram,
    } = match parse(std::env::args().skip(1)) {
        Ok(scenario) => scenario,
        Err(error) => {
            eprintln!("ringd-bench: {error}\n{}", scenario::USAGE);
            return ExitCode::from(2);
        }
    };
    let outcome = load::run(&options, parts).and_then(|report| {
        println!("{}", describe(options.process, &report)?);
        if let Some(path) = &histogram {
            series::store(&report.latency_ns, path)?;
        }
        Ok(faults(&report))
    });
    let faults = outcome.unwrap_or_else(|error| vec![format!("{}: {error}", options.address)]);
    for fault in &faults {
        eprintln!("ringd-bench: {fault}");
    }
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn describe(process: Option<process::Processes>, report: &Report) -> std::io::Result<serde_json::Value> {
    let at = |share: f64| report.latency_ns.value_at_quantile(share) as f64 / 1e3;
    let per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / report.measured.max(1) as f64;
    let resident = process.map(process::resident_bytes).transpose()?;
    let seconds = report.elapsed.as_secs_f64();
    let beside = report
        .beside
        .iter()
        .map(|part| (part.name.to_string(), describe_beside(part, seconds)));
    let mut described = json!({
        "calls": report.measured,
        "seconds": seconds,
        "rate": report.measured as f64 / seconds,
        "bytes": report.bytes,
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": report.latency_ns.max() as f64 / 1e3,
        "server_cpu_us": report.server_cpu.map(per_call),
        "client_cpu_us": per_call(report.client_cpu),
        "client_busy": report.client_cpu.as_secs_f64() / seconds,
        "rss_bytes": resident.map(|(all, _)| all),
        "rss_anonymous_bytes": resident.map(|(_, anonymous)| anonymous),
        "failed": report.failed,
        "refused_share": report.refused as f64 / (report.finished + report.refused).max(1) as f64,
        "revision_rose": report.revisions.1 - report.revisions.0,
        "events": report.events,
        "drained_seconds": report.drained.map(|drained| drained.as_secs_f64()),
        "beside": beside.collect::<serde_json::Map<_, _>>(),
        "latency": series::distribution(&report.latency_ns),
        "series": report.series.iter().map(series::Second::to_json).collect::<Vec<_>>(),
    });
    if let Some((name, number)) = report.told {
        described[name] = json!(number);
    }
    Ok(described)
}

fn describe_beside(part: &Beside, seconds: f64) -> serde_json::Value {
    let at = |share: f64| part.latency_ns.value_at_quantile(share) as f64 / 1e3;
    json!({
        "calls": part.measured,
        "rate": part.measured as f64 / seconds,
        "byte_rate": part.bytes as f64 / seconds,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "max_us": part.latency_ns.max() as f64 / 1e3,
    })
}

/// Why the run's numbers do not count.
fn faults(report: &Report) -> Vec<String> {
    let mut faults = Vec::new();
    if report.failed > 0 {
        faults.push(format!("{} of {} calls failed", report.failed, report.finished));
    }
    let rose = report.revisions.1 - report.revisions.0;
    if rose != report.expected as i64 {
        faults.push(format!(
            "the revision rose by {rose}, with {} changes acknowledged",
            report.expected
        ));
    }
    if report.measured == 0 {
        faults.push("not a single call ended".into());
    }
    faults
}
