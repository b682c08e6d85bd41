//! How busy the machine is, and how full its memory: what the paper takes from mpstat and memstat, read from `/proc`.

use std::fs;
use std::path::PathBuf;

/// Processor time since the machine began, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// What `/proc/stat` says of all processors together; waiting for drives is not being busy.
    fn parse(text: &str) -> Option<Ticks> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are within user.
        let all = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        Some(Ticks {
            busy: u64::saturating_sub(all, idle),
            all,
        })
    }

    pub(super) fn now() -> Ticks {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        Ticks::parse(&text).unwrap_or_default()
    }

    /// Busy ticks and all ticks since `earlier`.
    pub(super) fn since(self, earlier: Ticks) -> (u64, u64) {
        let all = self.all.saturating_sub(earlier.all);
        (self.busy.saturating_sub(earlier.busy), all)
    }
}

/// Processor seconds that this process has used, its own and the kernel's for it.
pub(super) fn process_seconds() -> f64 {
    // SAFETY: all zeros are a rusage, and the call writes that struct.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Where the used share of the memory is read: the machine's, and the control group's where that has a limit.
#[derive(Debug)]
pub(super) struct Memory {
    group: Option<(PathBuf, u64)>,
}

impl Memory {
    pub(super) fn new() -> Memory {
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path = group.lines().find_map(|line| line.strip_prefix("0::/"));
        let group = path.and_then(|path| {
            let directory = PathBuf::from("/sys/fs/cgroup").join(path);
            let limit = fs::read_to_string(directory.join("memory.max")).ok()?;
            Some((directory, limit.trim().parse().ok()?))
        });
        Memory { group }
    }

    /// The larger of the two shares, 0 to 1. What the page cache can give back does not count as used.
    pub(super) fn used(&self) -> f64 {
        let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        machine_share(&machine).max(self.group_share().unwrap_or(0.0))
    }

    fn group_share(&self) -> Option<f64> {
        let (directory, limit) = self.group.as_ref()?;
        let current = fs::read_to_string(directory.join("memory.current")).ok()?;
        let current: u64 = current.trim().parse().ok()?;
        let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let cache = stat
            .lines()
            .find_map(|line| line.strip_prefix("inactive_file "))
            .and_then(|bytes| bytes.parse().ok())
            .unwrap_or(0);
        Some(current.saturating_sub(cache) as f64 / (*limit).max(1) as f64)
    }
}

fn machine_share(text: &str) -> f64 {
    let field = |name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    match (field("MemTotal:"), field("MemAvailable:")) {
        (Some(total), Some(available)) if total > 0.0 => 1.0 - available / total,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_what_the_kernel_says() {
        let earlier = Ticks::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1").unwrap();
        let later = Ticks::parse("cpu  160 0 70 810 60 0 0 0 0 0\n").unwrap();
        assert_eq!(later.since(earlier), (80, 100));
        assert_eq!(later.since(later), (0, 0));
        assert_eq!(Ticks::parse("intr 5"), None);
        let memory = "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  250 kB\n";
        assert_eq!(machine_share(memory), 0.75);
        assert_eq!(machine_share(""), 0.0);
    }
}
