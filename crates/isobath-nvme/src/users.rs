//! Who has the device files of a drive open.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sysfs::{Machine, names, read};

/// A process that has a device file of a drive open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name, if it can be read.
    pub name: Option<String>,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "process {} ({name})", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// A device file of a drive.
pub(crate) struct Node {
    /// Its name below `/dev`.
    name: String,
    is_block: bool,
    /// Major and minor number, as `259:0`.
    number: Option<String>,
}

impl Node {
    /// The block device that `directory` describes.
    pub(crate) fn block(name: &str, directory: &Path) -> Node {
        Node {
            name: name.to_owned(),
            is_block: true,
            number: read(&directory.join("dev")),
        }
    }

    /// The character device that `directory` describes.
    pub(crate) fn character(name: String, directory: &Path) -> Node {
        Node {
            name,
            is_block: false,
            number: read(&directory.join("dev")),
        }
    }

    /// Whether `file`, which is called `target`, is this device: by its number, as containers have
    /// files of their own, or by its name.
    fn is_it(&self, target: &Path, file: &Path) -> bool {
        if target.strip_prefix("/dev").ok() == Some(Path::new(&self.name)) {
            return true;
        }
        let Ok(found) = fs::metadata(file) else {
            return false;
        };
        let kind = found.file_type();
        let is_same_kind = match self.is_block {
            true => kind.is_block_device(),
            false => kind.is_char_device(),
        };
        let rdev = found.rdev();
        let number = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
        is_same_kind && self.number.as_ref() == Some(&number)
    }
}

/// Processes, and a directory of open files that this process may not read.
pub(crate) type Openers = (Vec<Process>, Option<PathBuf>);

impl Machine {
    /// Processes that have one of the files open, apart from the descriptors `ours` of this one.
    pub(crate) fn openers(&self, nodes: &[Node], ours: &[RawFd]) -> Openers {
        let mut found = Vec::new();
        let mut hidden = None;
        let numbers = names(&self.path("proc"));
        for pid in numbers.iter().filter_map(|name| name.parse().ok()) {
            let directory = self.path(&format!("proc/{pid}/fd"));
            let files = match fs::read_dir(&directory) {
                Ok(files) => files,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    hidden.get_or_insert(directory);
                    continue;
                }
                // It has ended.
                Err(_) => continue,
            };
            let is_ours = |file: &Path| {
                let number = file
                    .file_name()
                    .and_then(|name| name.to_str()?.parse().ok());
                pid == std::process::id() && number.is_some_and(|number| ours.contains(&number))
            };
            let uses = |file: PathBuf| {
                let target = fs::read_link(&file).unwrap_or_default();
                // Sockets, pipes and the like have no path.
                target.is_absolute()
                    && !is_ours(&file)
                    && nodes.iter().any(|node| node.is_it(&target, &file))
            };
            if files.flatten().any(|entry| uses(entry.path())) {
                let name = read(&self.path(&format!("proc/{pid}/comm")));
                found.push(Process { pid, name });
            }
        }
        found.sort_by_key(|process| process.pid);
        (found, hidden)
    }

    /// Loop devices and NVMe targets of the kernel on one of the files. They open it like a
    /// process, and no process shows them.
    pub(crate) fn kernel_users(&self, nodes: &[Node]) -> Vec<String> {
        let mut found = Vec::new();
        let mut look = |file: PathBuf, user: &str| {
            let Some(target) = read(&file) else { return };
            let device = self.path(target.trim_start_matches('/'));
            let mut named = nodes
                .iter()
                .filter(|node| node.is_it(Path::new(&target), &device));
            if let Some(node) = named.next() {
                found.push(format!("{} is used by {user}", node.name));
            }
        };
        let blocks = self.path("sys/block");
        for name in names(&blocks) {
            look(blocks.join(&name).join("loop/backing_file"), &name);
        }
        let subsystems = self.path("sys/kernel/config/nvmet/subsystems");
        for subsystem in names(&subsystems) {
            let user = format!("the NVMe target {subsystem}");
            let subsystem = subsystems.join(subsystem);
            let namespaces = subsystem.join("namespaces");
            let exports = names(&namespaces).into_iter().map(|n| namespaces.join(n));
            for export in exports.chain([subsystem.join("passthru")]) {
                if read(&export.join("enable")).as_deref() == Some("1") {
                    look(export.join("device_path"), &user);
                }
            }
        }
        found
    }
}
