//! `ringd-bench`: loads one etcd server and prints what it saw as one JSON object; `scripts/bench` and
//! `scripts/compare.sh` compare servers with it.

mod load;
mod scenario;
mod watch;
mod wire;

use hdrhistogram::serialization::{Serializer, V2Serializer};
use load::{Report, process, series};
use scenario::{Scenario, parse};
use serde_json::json;
use std::fs::File;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    if let Some(code) = watch::main() {
        return code;
    }
    let mut scenario = match parse(std::env::args().skip(1)) {
        Ok(scenario) => scenario,
        Err(error) => {
            eprintln!("ringd-bench: {error}\n{}", scenario::USAGE);
            return ExitCode::from(2);
        }
    };
    let outcome = load::run(&scenario.options, &mut *scenario.workload).and_then(|report| {
        println!("{}", describe(&scenario, &report)?);
        if let Some(path) = &scenario.histogram {
            let mut serializer = V2Serializer::new();
            let mut file = File::create(path)?;
            serializer
                .serialize(&report.latency_ns, &mut file)
                .map_err(std::io::Error::other)?;
        }
        Ok(faults(&report))
    });
    let faults = outcome.unwrap_or_else(|error| vec![format!("{}: {error}", scenario.options.address)]);
    for fault in &faults {
        eprintln!("ringd-bench: {fault}");
    }
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn describe(scenario: &Scenario, report: &Report) -> std::io::Result<serde_json::Value> {
    let at = |share: f64| report.latency_ns.value_at_quantile(share) as f64 / 1e3;
    let per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / report.measured.max(1) as f64;
    let resident = scenario.options.process.map(process::resident_bytes).transpose()?;
    Ok(json!({
        "calls": report.measured,
        "seconds": report.elapsed.as_secs_f64(),
        "rate": report.measured as f64 / report.elapsed.as_secs_f64(),
        "bytes": report.bytes,
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": report.latency_ns.max() as f64 / 1e3,
        "server_cpu_us": report.server_cpu.map(per_call),
        "client_cpu_us": per_call(report.client_cpu),
        "client_busy": report.client_cpu.as_secs_f64() / report.elapsed.as_secs_f64(),
        "rss_bytes": resident.map(|(all, _)| all),
        "rss_anonymous_bytes": resident.map(|(_, anonymous)| anonymous),
        "failed": report.failed,
        "revision_rose": report.revisions.1 - report.revisions.0,
        "latency": series::distribution(&report.latency_ns),
        "series": report.series.iter().map(series::Second::to_json).collect::<Vec<_>>(),
    }))
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
