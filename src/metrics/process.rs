//! What the system tells of this process.

use std::fs;

/// Clock ticks in a second, in which Linux tells CPU time to every process.
const TICKS_PER_SECOND: f64 = 100.0;

/// A reading of `/proc/self`. What could not be read is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// CPU time used, in seconds.
    pub cpu_s: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Most address space allowed; infinite without a limit.
    pub virtual_max_bytes: f64,
    /// Open file descriptors.
    pub descriptors: u64,
    /// Most file descriptors allowed.
    pub descriptors_max: f64,
    /// When the process started, in seconds since 1970.
    pub started_s: f64,
    /// Bytes received over IP by everything in the process's network namespace.
    pub network_received_bytes: u64,
    /// Bytes sent over IP by the same.
    pub network_sent_bytes: u64,
}

impl Process {
    /// Reads it: a few small files, and where the kernel is older than 6.2 a directory entry for every descriptor.
    pub fn read() -> Process {
        let file = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let (stat, status, limits) = (file("stat"), file("status"), file("limits"));
        // The program's name may hold anything; what counts comes behind its last parenthesis, from field 3 on.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok()).unwrap_or(0.0);
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot_s = number_behind(&boot, "btime").unwrap_or(0);
        let network = file("net/netstat");
        Process {
            cpu_s: (field(14) + field(15)) / TICKS_PER_SECOND,
            resident_bytes: number_behind(&status, "VmRSS:").unwrap_or(0) << 10,
            virtual_bytes: number_behind(&status, "VmSize:").unwrap_or(0) << 10,
            virtual_max_bytes: limit(&limits, "Max address space"),
            descriptors: descriptors(),
            descriptors_max: limit(&limits, "Max open files"),
            started_s: boot_s as f64 + field(22) / TICKS_PER_SECOND,
            network_received_bytes: network_number(&network, "InOctets"),
            network_sent_bytes: network_number(&network, "OutOctets"),
        }
    }
}

fn number_behind(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A number of the section on IP: a line of names, then one of numbers.
fn network_number(netstat: &str, name: &str) -> u64 {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let mut pairs = names.split_whitespace().zip(numbers.split_whitespace());
    let number = pairs.find_map(|(found, number)| (found == name).then(|| number.parse().ok()));
    number.flatten().unwrap_or(0)
}

fn limit(limits: &str, name: &str) -> f64 {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name));
    match soft.and_then(|rest| rest.split_whitespace().next()) {
        Some("unlimited") => f64::INFINITY,
        text => text.and_then(|text| text.parse().ok()).unwrap_or(0.0),
    }
}

fn descriptors() -> u64 {
    let counted = fs::metadata("/proc/self/fd").map_or(0, |directory| directory.len());
    if counted > 0 {
        return counted;
    }
    // The descriptor that reads the directory is not counted.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| (entries.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described() {
        let held: Vec<u8> = vec![1; 8 << 20];
        let before = Process::read();
        assert!(before.resident_bytes > held.len() as u64);
        assert!(before.virtual_bytes > before.resident_bytes);
        assert!(before.virtual_max_bytes >= before.virtual_bytes as f64);
        assert!(before.descriptors >= 3 && before.descriptors_max >= before.descriptors as f64);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!(
            before.started_s > now - 86_400.0 && before.started_s < now + 2.0,
            "{before:?} at {now}"
        );
        let files: Vec<_> = (0..40).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 60 {
            std::hint::black_box(&files);
        }
        let after = Process::read();
        // Other tests of this process open and close some of theirs meanwhile.
        assert!(after.descriptors >= before.descriptors + 20, "{before:?} {after:?}");
        assert!(after.cpu_s > before.cpu_s);
    }

    #[test]
    fn limits_are_read() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024    4096   files\n\
            Max address space   unlimited  unlimited  bytes\n";
        assert_eq!(limit(limits, "Max open files"), 1024.0);
        assert_eq!(limit(limits, "Max address space"), f64::INFINITY);
        assert_eq!(limit(limits, "Max nothing"), 0.0);
    }

    #[test]
    fn network_bytes_are_read() {
        let netstat = "TcpExt: A InOctets\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 345 678\n";
        let numbers = ["InOctets", "OutOctets", "A"].map(|name| network_number(netstat, name));
        assert_eq!(numbers, [345, 678, 0]);
        assert_eq!(network_number("IpExt: InOctets", "InOctets"), 0);
    }
}
