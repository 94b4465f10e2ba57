//! What the control groups of this process allow it: CPU time and memory, in versions 1 and 2.
//!
//! Each group on the way from the process's own to the root may bound it, so the least bound counts.

use std::path::Path;

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// CPU seconds per second that the quota pays for, if there is one.
pub fn cpu_quota() -> Option<f64> {
    least(Path::new(ROOT), &groups_of_this_process(), &CPU)
}

/// Bytes of memory that may be used, if there is a bound.
pub fn memory_limit() -> Option<u64> {
    least(Path::new(ROOT), &groups_of_this_process(), &MEMORY)
}

fn groups_of_this_process() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// How a group's bound is read in either version.
struct Bound<T> {
    /// The controller's name in version 1, which is also the directory of its hierarchy.
    controller: &'static str,
    version_1: fn(&Path) -> Option<T>,
    version_2: fn(&Path) -> Option<T>,
}

const CPU: Bound<f64> = Bound {
    controller: "cpu",
    version_1: quota_of_version_1,
    version_2: quota_of_version_2,
};

const MEMORY: Bound<u64> = Bound {
    controller: "memory",
    // Without a limit it is a number larger than any memory.
    version_1: |group| number(group, "memory.limit_in_bytes"),
    version_2: |group| number(group, "memory.max"),
};

/// The least bound, by the text of `/proc/self/cgroup`.
fn least<T: PartialOrd>(root: &Path, groups: &str, bound: &Bound<T>) -> Option<T> {
    let mut found: Vec<T> = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (read, base) = if controllers.is_empty() {
            (bound.version_2, root.to_path_buf())
        } else if controllers.split(',').any(|name| name == bound.controller) {
            (bound.version_1, root.join(bound.controller))
        } else {
            continue;
        };
        // Inside a container the path may be the host's: then only the root is there to be read.
        let relative = Path::new(path.trim_start_matches('/'));
        found.extend(relative.ancestors().filter_map(|ancestor| read(&base.join(ancestor))));
    }
    found
        .into_iter()
        .reduce(|one, other| if other < one { other } else { one })
}

/// `cpu.max`: `max 100000` or `200000 100000`, in microseconds per period.
fn quota_of_version_2(group: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut fields = text.split_whitespace();
    let quota: f64 = fields.next()?.parse().ok()?;
    let period: f64 = fields.next()?.parse().ok()?;
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// `cpu.cfs_quota_us` (-1: none) and `cpu.cfs_period_us`.
fn quota_of_version_1(group: &Path) -> Option<f64> {
    let quota: f64 = number(group, "cpu.cfs_quota_us")?;
    let period: f64 = number(group, "cpu.cfs_period_us")?;
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// What a file holds, if it is there and holds a number alone; `max` is none.
fn number<T: std::str::FromStr>(group: &Path, name: &str) -> Option<T> {
    std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn quotas_are_read_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cpu.max"), "max 100000\n").unwrap();
        assert_eq!(least(root.path(), "0::/a/b\n", &CPU), None);
        fs::write(root.path().join("a/cpu.max"), "150000 100000\n").unwrap();
        assert_eq!(least(root.path(), "0::/a/b\n", &CPU), Some(1.5));
        let group = root.path().join("cpu/docker/x");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cpu.cfs_quota_us"), "50000\n").unwrap();
        fs::write(group.join("cpu.cfs_period_us"), "100000\n").unwrap();
        let groups = "4:memory:/x\n3:cpu,cpuacct:/docker/x\n";
        assert_eq!(least(root.path(), groups, &CPU), Some(0.5));
    }

    /// A service's limit is that of its own group, and the root has none to be read.
    #[test]
    fn the_least_memory_limit_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("system.slice/ringd.service");
        fs::create_dir_all(&group).unwrap();
        let groups = "0::/system.slice/ringd.service\n";
        assert_eq!(least(root.path(), groups, &MEMORY), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(least(root.path(), groups, &MEMORY), None);
        fs::write(root.path().join("system.slice/memory.max"), "2147483648\n").unwrap();
        assert_eq!(least(root.path(), groups, &MEMORY), Some(2 << 30));
        fs::write(group.join("memory.max"), "1073741824\n").unwrap();
        assert_eq!(least(root.path(), groups, &MEMORY), Some(1 << 30));
        let group = root.path().join("memory");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "536870912\n").unwrap();
        // As seen from inside a container: the path is the host's, and the root is the container's own group.
        let groups = "4:memory:/docker/0123\n0::/\n";
        assert_eq!(least(root.path(), groups, &MEMORY), Some(512 << 20));
    }
}
