//! What the system tells of the process, under the names of Prometheus' own client.

use super::put_numbers;
use crate::metrics::Kind::{Counter, Gauge};
use crate::metrics::{Process, Registry, Text};

/// All series about the process and about scrapes.
pub(super) fn put(text: &mut Text, registry: &Registry) {
    let process = Process::read();
    let (descriptors, most) = (process.descriptors as f64, process.descriptors_max);
    let (resident, address_space) = (process.resident_bytes as f64, process.virtual_bytes as f64);
    let (received, sent) = (process.network_received_bytes, process.network_sent_bytes);
    put_numbers(
        text,
        &[
            ("os_fd_limit", Gauge, "Most file descriptors.", most),
            ("os_fd_used", Gauge, "File descriptors open.", descriptors),
            ("process_cpu_seconds_total", Counter, "CPU time used.", process.cpu_s),
            ("process_max_fds", Gauge, "Most file descriptors.", most),
            (
                "process_network_receive_bytes_total",
                Counter,
                "Bytes that all in this network namespace received over IP.",
                received as f64,
            ),
            (
                "process_network_transmit_bytes_total",
                Counter,
                "Bytes that all in this network namespace sent over IP.",
                sent as f64,
            ),
            ("process_open_fds", Gauge, "File descriptors open.", descriptors),
            ("process_resident_memory_bytes", Gauge, "Resident memory.", resident),
            (
                "process_start_time_seconds",
                Gauge,
                "When the process started, since 1970.",
                process.started_s,
            ),
            ("process_virtual_memory_bytes", Gauge, "Address space.", address_space),
            (
                "process_virtual_memory_max_bytes",
                Gauge,
                "Most address space.",
                process.virtual_max_bytes,
            ),
            (
                "promhttp_metric_handler_requests_in_flight",
                Gauge,
                "Scrapes being answered: this one.",
                1.0,
            ),
        ],
    );
    let help = "Scrapes answered, by HTTP status.";
    text.family("promhttp_metric_handler_requests_total", Counter, help);
    let answered = registry.sum(|core| &core.scrapes) as f64;
    for (code, count) in [("200", answered), ("500", 0.0), ("503", 0.0)] {
        text.series(&[("code", code)], count);
    }
}
