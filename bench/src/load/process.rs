//! What the kernel knows of a process, or of several together: proc_pid_stat(5) and proc_pid_status(5).

use std::io;
use std::str::FromStr;
use std::time::Duration;

/// Members of a cluster whose figures are added up, at most.
const PROCESSES_MAX: usize = 8;

/// A server's process, or those of a cluster's members: `12` or `12,13,14`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    ids: [u32; PROCESSES_MAX],
    count: usize,
}

impl From<u32> for Processes {
    fn from(id: u32) -> Processes {
        let mut ids = [0; PROCESSES_MAX];
        ids[0] = id;
        Processes { ids, count: 1 }
    }
}

impl FromStr for Processes {
    type Err = String;

    fn from_str(text: &str) -> Result<Processes, String> {
        let mut processes = Processes {
            ids: [0; PROCESSES_MAX],
            count: 0,
        };
        for word in text.split(',') {
            let place = processes.ids.get_mut(processes.count);
            let place = place.ok_or_else(|| format!("more than {PROCESSES_MAX} processes in {text:?}"))?;
            *place = word
                .parse()
                .map_err(|_| format!("{word:?} in {text:?} is no process id"))?;
            processes.count += 1;
        }
        Ok(processes)
    }
}

impl Processes {
    fn ids(&self) -> &[u32] {
        &self.ids[..self.count]
    }
}

/// The unit of times in /proc/PID/stat, USER_HZ: 100 a second on every machine Linux lets user space see.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of processes with all their threads, those that ended too.
pub fn cpu_time(processes: impl Into<Processes>) -> io::Result<Duration> {
    processes.into().ids().iter().copied().map(cpu_time_of).sum()
}

fn cpu_time_of(process: u32) -> io::Result<Duration> {
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

/// Resident bytes of processes: all of them, and those without a file behind them.
pub fn resident_bytes(processes: impl Into<Processes>) -> io::Result<(u64, u64)> {
    let mut sum = (0, 0);
    for process in processes.into().ids() {
        let (all, anonymous) = resident_bytes_of(*process)?;
        sum = (sum.0 + all, sum.1 + anonymous);
    }
    Ok(sum)
}

fn resident_bytes_of(process: u32) -> io::Result<(u64, u64)> {
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
    fn several_processes_count_together() {
        let own = std::process::id();
        assert_eq!(own.to_string().parse(), Ok(Processes::from(own)));
        let twice: Processes = format!("{own},{own}").parse().unwrap();
        assert!(resident_bytes(twice).unwrap().0 > resident_bytes(own).unwrap().0 * 3 / 2);
        assert!(cpu_time(twice).unwrap() >= cpu_time(own).unwrap());
        for wrong in ["", "1,", "1,x", "1,2,3,4,5,6,7,8,9"] {
            assert!(wrong.parse::<Processes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn this_process_is_resident() {
        let (all, anonymous) = resident_bytes(std::process::id()).unwrap();
        assert!(all > 0 && anonymous <= all);
    }
}
