//! What the kernel knows of a process: proc_pid_stat(5) and proc_pid_status(5).

use std::io;
use std::time::Duration;

/// The unit of times in /proc/PID/stat, USER_HZ: 100 a second on every machine Linux lets user space see.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of a process with all its threads, those that ended too.
pub fn cpu_time(process: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    parse_stat(&text)
        .ok_or_else(|| io::Error::other(format!("cannot read the times in /proc/{process}/stat: {text:?}")))
}

/// utime and stime: fields 14 and 15, the third is the first behind the name in parentheses.
fn parse_stat(text: &str) -> Option<Duration> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u32>);
    Some(TICK * (times.next()?.ok()? + times.next()?.ok()?))
}

/// Resident bytes of a process: all of them, and those without a file behind them.
pub fn resident_bytes(process: u32) -> io::Result<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let read = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        number
            .map(|kib| kib << 10)
            .ok_or_else(|| io::Error::other(format!("no {name} in /proc/{process}/status")))
    };
    Ok((read("VmRSS:")?, read("RssAnon:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let text = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 3 0 100";
        assert_eq!(parse_stat(text), Some(Duration::from_secs(3)));
        assert_eq!(parse_stat("12 (name) S 1 2"), None);
    }

    #[test]
    fn this_process_is_resident() {
        let (all, anonymous) = resident_bytes(std::process::id()).unwrap();
        assert!(all > 0 && anonymous <= all);
    }
}
