//! How much memory there is for this process.

use std::path::{Path, PathBuf};

/// Bytes if nothing says more.
const UNKNOWN: u64 = 1 << 30;

/// An amount of memory, and the file that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) bytes: u64,
    pub(super) said_by: String,
}

impl Memory {
    /// The least of the machine's memory and of the limits of the control groups that this process
    /// is in.
    pub(super) fn there_is() -> Memory {
        Memory::below(Path::new("/"))
    }

    /// The same by the files below `root`.
    fn below(root: &Path) -> Memory {
        let machine = Memory {
            bytes: machine(root).unwrap_or(UNKNOWN),
            said_by: "the machine".to_owned(),
        };
        let limits = group_files(root).into_iter().filter_map(|path| {
            let text = std::fs::read_to_string(root.join(&path)).ok()?;
            // "max" says that there is no limit.
            let bytes = text.trim().parse().ok()?;
            let said_by = format!("the control group's limit in /{}", path.display());
            Some(Memory { bytes, said_by })
        });
        limits.fold(machine, |least, limit| {
            if limit.bytes < least.bytes {
                limit
            } else {
                least
            }
        })
    }
}

fn machine(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Where limits of this process may be, of both versions of control groups: of its group and of
/// those above it, relative to the root. In a container only the uppermost one may be there.
fn group_files(root: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut files = Vec::new();
    let mut add = |mount: &str, group: &str, file: &str| {
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(
            group
                .ancestors()
                .map(|group| Path::new(mount).join(group).join(file)),
        );
    };
    for line in text.lines() {
        // Number, controllers and group: `0::/a/b`, or `4:memory:/a/b` in version 1.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            add("sys/fs/cgroup", group, "memory.max");
            add("sys/fs/cgroup/unified", group, "memory.max");
        } else if controllers.split(',').any(|name| name == "memory") {
            add("sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let all = [("proc/meminfo", "MemFree: 1 kB\nMemTotal:  8388608 kB\n")];
        for (path, text) in all.iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn found(files: &[(&str, &str)]) -> (u64, String) {
        let memory = Memory::below(root(files).path());
        (memory.bytes, memory.said_by)
    }

    #[test]
    fn the_least_limit_of_both_versions_counts() {
        let machine = (8 << 30, "the machine".to_owned());
        assert_eq!(found(&[]), machine);
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let own = ("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(found(&[group, own]), machine);
        let above = ("sys/fs/cgroup/a/memory.max", "1073741824\n");
        let (bytes, said_by) = found(&[group, own, above]);
        assert_eq!(bytes, 1 << 30);
        assert!(said_by.contains("/sys/fs/cgroup/a/memory.max"), "{said_by}");
        // A container that sees its group as the uppermost one, whatever the name.
        let inside = ("sys/fs/cgroup/memory.max", "536870912\n");
        assert_eq!(found(&[group, inside]).0, 512 << 20);

        let old = (
            "proc/self/cgroup",
            "5:cpu,cpuacct:/x\n4:memory:/docker/x\n0::/\n",
        );
        let limit = (
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
            "268435456\n",
        );
        assert_eq!(found(&[old, limit]).0, 256 << 20);
        // Version 1 says "no limit" by a number beyond all memory.
        let none = (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(found(&[old, none]), machine);
    }
}
