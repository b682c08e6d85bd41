//! How busy the machine is, and how full its memory: the numbers that the paper takes from mpstat
//! and memstat, read from `/proc`.

use std::fs;
use std::path::{Path, PathBuf};

/// Processor time since the machine began, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// The ticks of all processors in `/proc/stat`; waiting for drives is not being busy.
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

/// Allocations of this many bytes have pages of their own once [`return_freed_values`] was called.
const OWN_PAGES_BYTES: libc::c_int = 64 << 10;

/// Makes the allocator give freed values back to the kernel at once. By default glibc raises the
/// size from which allocations have pages of their own to the largest one freed so far; it then
/// keeps freed values in an arena for each thread, which can be as much memory again as the values
/// in use. Each large allocation then costs a system call and a page fault per page.
pub(super) fn return_freed_values() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets one parameter of the allocator, which takes its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES);
    }
}

/// A control group that has a limit.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    limit: u64,
    /// The file of its usage, page cache included.
    usage: PathBuf,
    stat: PathBuf,
    /// The field of `stat` that says what of the page cache can be given back.
    cache: &'static str,
}

impl Group {
    /// Bytes that are used.
    fn used(&self) -> Option<u64> {
        let usage: u64 = fs::read_to_string(&self.usage).ok()?.trim().parse().ok()?;
        let stat = fs::read_to_string(&self.stat).unwrap_or_default();
        let cache = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.cache)?.trim().parse().ok());
        Some(usage.saturating_sub(cache.unwrap_or(0)))
    }
}

/// The sources of used memory: the machine's, and that of each limited control group of this
/// process or above.
#[derive(Debug)]
pub(super) struct Memory {
    root: PathBuf,
    groups: Vec<Group>,
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory::below(Path::new("/"))
    }

    /// The same by the files below `root`.
    fn below(root: &Path) -> Memory {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut groups = Vec::new();
        for line in text.lines() {
            // Number, controllers and group: `0::/a/b`, or `4:memory:/a/b` in version 1.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
                continue;
            };
            let (mounts, names): (&[&str], _) = match controllers {
                "" => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], VERSION_2),
                list if list.split(',').any(|name| name == "memory") => {
                    (&["sys/fs/cgroup/memory"], VERSION_1)
                }
                _ => continue,
            };
            // In a container only the uppermost one may be there.
            for group in Path::new(group.trim_start_matches('/')).ancestors() {
                let places = mounts.iter().map(|mount| root.join(mount).join(group));
                groups.extend(places.filter_map(|place| limited(&place, names)));
            }
        }
        let root = root.to_path_buf();
        let machine = Machine::read(&root).map_or(u64::MAX, |machine| machine.bytes);
        groups.retain(|group| group.limit < machine);
        Memory { root, groups }
    }

    /// Whether a control group limits this process further than the machine does.
    pub(super) fn is_grouped(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Bytes that there are and that are used, of the machine and of each group.
    fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let machine = Machine::read(&self.root).map(|machine| (machine.bytes, machine.used));
        let groups = self.groups.iter();
        let groups = groups.filter_map(|group| Some((group.limit, group.used()?)));
        machine.into_iter().chain(groups)
    }

    /// The largest used share, 0 to 1. What the page cache can give back does not count as used.
    pub(super) fn used(&self) -> f64 {
        let shares = self
            .all()
            .map(|(bytes, used)| used as f64 / bytes.max(1) as f64);
        shares.fold(0.0, f64::max)
    }

    /// Bytes that can still be used until the used share is `limit`.
    pub(super) fn remaining(&self, limit: f64) -> u64 {
        let rooms = self.all().map(|(bytes, used)| {
            let most = (bytes as f64 * limit) as u64;
            most.saturating_sub(used)
        });
        rooms.min().unwrap_or(u64::MAX)
    }
}

/// Files of a control group: limit, usage, statistics; and the field of the last.
type Names = [&'static str; 4];
const VERSION_1: Names = [
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.stat",
    "total_inactive_file ",
];
const VERSION_2: Names = [
    "memory.max",
    "memory.current",
    "memory.stat",
    "inactive_file ",
];

/// The group in a directory, if it has a limit; "max" is none.
fn limited(directory: &Path, [limit, usage, stat, cache]: Names) -> Option<Group> {
    let text = fs::read_to_string(directory.join(limit)).ok()?;
    Some(Group {
        limit: text.trim().parse().ok()?,
        usage: directory.join(usage),
        stat: directory.join(stat),
        cache,
    })
}

/// The machine's memory.
struct Machine {
    bytes: u64,
    used: u64,
}

impl Machine {
    fn read(root: &Path) -> Option<Machine> {
        Machine::parse(&fs::read_to_string(root.join("proc/meminfo")).ok()?)
    }

    fn parse(text: &str) -> Option<Machine> {
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        let bytes = field("MemTotal:").filter(|bytes| *bytes > 0)?;
        let used = bytes.saturating_sub(field("MemAvailable:")?);
        Some(Machine { bytes, used })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_what_the_kernel_says() {
        let earlier = Ticks::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1").unwrap();
        let later = Ticks::parse("cpu  160 0 70 810 60 0 0 0 0 0\n").unwrap();
        assert_eq!(later.since(earlier), (80, 100));
        assert_eq!(later.since(later), (0, 0));
        assert_eq!(Ticks::parse("intr 5"), None);
    }

    /// A machine of 1 GiB, 256 MiB of which are used, with more files.
    fn memory(more: &[(&str, &str)]) -> Memory {
        let root = tempfile::tempdir().unwrap();
        let machine = "MemTotal: 1048576 kB\nMemFree: 10 kB\nMemAvailable: 786432 kB\n";
        for (path, text) in [("proc/meminfo", machine)].iter().chain(more) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Memory::below(&root.keep())
    }

    /// The allocator keeps an arena for each thread and raises its threshold as values are freed:
    /// 2 MB values of 64 data tasks took 128 MiB, half of it freed.
    #[cfg(target_env = "gnu")]
    #[test]
    fn freed_values_are_given_back() {
        return_freed_values();
        // Freeing a large value raises the threshold, unless it was set. Both values are larger
        // than what other tests of this process may have freed into an arena.
        drop(std::hint::black_box(vec![1u8; 30 << 20]));
        let value = std::hint::black_box(vec![1u8; 28 << 20]);
        // SAFETY: glibc keeps a word with the block's size and flags before it.
        let header = unsafe { value.as_ptr().cast::<usize>().sub(1).read() };
        const IS_MAPPED: usize = 2;
        assert_ne!(header & IS_MAPPED, 0, "the value has pages of its own");
    }

    #[test]
    fn memory_is_the_machines_or_that_of_any_group_above() {
        const MIB: u64 = 1 << 20;
        let check = |more: &[(&str, &str)], used: f64, remaining: u64| {
            let memory = memory(more);
            assert_eq!(memory.used(), used, "{more:?}");
            assert_eq!(memory.remaining(0.875), remaining, "{more:?}");
            fs::remove_dir_all(&memory.root).unwrap();
        };
        check(&[], 0.25, 640 * MIB);
        let group = ("proc/self/cgroup", "0::/a/b\n");
        check(
            &[group, ("sys/fs/cgroup/a/b/memory.max", "max\n")],
            0.25,
            640 * MIB,
        );
        // Half of the group above is used, of which a quarter is cache.
        let above = [
            group,
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "67108864\n"),
            ("sys/fs/cgroup/a/memory.current", "67108864\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 1\ninactive_file 33554432\n",
            ),
        ];
        check(&above, 0.5, 24 * MIB);
        // Version 1, in a container that shows its own group at the top; a limit beyond the
        // machine's memory is none.
        let first = [
            (
                "proc/self/cgroup",
                "5:cpu:/x\n4:hugetlb,memory:/docker/x\n0::/\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "50331648\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "inactive_file 5\ntotal_inactive_file 0\n",
            ),
        ];
        check(&first, 0.75, 8 * MIB);
        let mut endless = first;
        endless[1].1 = "9223372036854771712\n";
        check(&endless, 0.25, 640 * MIB);
        let nothing = Memory::below(Path::new("/nowhere"));
        assert_eq!((nothing.used(), nothing.remaining(0.5)), (0.0, u64::MAX));
    }
}
