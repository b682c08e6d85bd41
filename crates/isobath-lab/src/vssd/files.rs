//! The FUSE file system of a drive: five files, one of them the drive.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::pace::Pacer;
use super::{DeclaredState, DriveStats, PAGE_BYTES, Profile, VirtualDrive};

/// `FALLOC_FL_KEEP_SIZE`
const KEEP_SIZE: i32 = 0x01;
/// `FALLOC_FL_PUNCH_HOLE`
const PUNCH_HOLE: i32 = 0x02;
/// `FALLOC_FL_ZERO_RANGE`
const ZERO_RANGE: i32 = 0x10;

/// A file or directory; its number is its inode's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Root = 1,
    /// The drive's logical pages.
    Drive = 2,
    /// Counters, JSON.
    Stats = 3,
    /// The CDF of write frequency, CSV.
    Frequency = 4,
    /// Takes commands: `mark`.
    Control = 5,
}

impl Node {
    pub(super) const FILES: [Node; 4] = [Node::Drive, Node::Stats, Node::Frequency, Node::Control];

    pub(super) fn of_number(number: u64) -> Option<Node> {
        let all = [Node::Root].into_iter().chain(Node::FILES);
        all.into_iter().find(|node| *node as u64 == number)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Node::Root => "",
            Node::Drive => "drive",
            Node::Stats => "stats",
            Node::Frequency => "frequency",
            Node::Control => "control",
        }
    }

    #[cfg(feature = "vssd")]
    pub(super) fn permissions(self) -> u16 {
        match self {
            Node::Root => 0o500,
            Node::Drive => 0o600,
            Node::Stats | Node::Frequency => 0o400,
            Node::Control => 0o200,
        }
    }
}

/// The files of a mounted drive.
pub(super) struct Files {
    drive: Arc<VirtualDrive>,
    /// Where completions are paced.
    pacer: Option<Pacer>,
    /// Contents of open files of numbers, as they were at their opening.
    opened: Mutex<Opened>,
    capacity: u64,
}

#[derive(Default)]
struct Opened {
    texts: HashMap<u64, Arc<[u8]>>,
    next: u64,
}

impl Files {
    /// The drive must be in use already.
    pub(super) fn new(
        drive: Arc<VirtualDrive>,
        profile: Option<&Profile>,
    ) -> std::io::Result<Files> {
        let pacer = profile.map(|_| Pacer::start()).transpose()?;
        Ok(Files {
            capacity: drive.capacity_bytes(),
            drive,
            pacer,
            opened: Mutex::default(),
        })
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lookup(name: &[u8]) -> Result<Node, Errno> {
        let mut files = Node::FILES.into_iter();
        let found = files.find(|node| node.name().as_bytes() == name);
        found.ok_or(Errno::NOENT)
    }

    pub(super) fn size(&self, node: Node) -> u64 {
        match node {
            Node::Drive => self.capacity,
            // Made when they are opened, and read up to their end whatever this says.
            _ => 0,
        }
    }

    /// Whether a file may be given that size: commands have none, and a drive keeps its own.
    pub(super) fn resize(&self, node: Node, size: Option<u64>) -> Result<(), Errno> {
        match (node, size) {
            (Node::Control, _) | (_, None) => Ok(()),
            (Node::Drive, Some(size)) if size == self.capacity => Ok(()),
            _ => Err(Errno::PERM),
        }
    }

    /// Blocks of the file system: those of the drive, all of them used.
    pub(super) fn blocks(&self) -> u64 {
        self.capacity / PAGE_BYTES
    }

    /// Opens a file; a number for the others.
    pub(super) fn open(&self, node: Node) -> Result<u64, Errno> {
        let text = match node {
            Node::Root => return Err(Errno::ISDIR),
            Node::Drive | Node::Control => return Ok(0),
            Node::Stats => serde_json::to_vec(&self.stats()).map_err(|_| Errno::IO)?,
            Node::Frequency => self.drive.write_frequency_csv().into_bytes(),
        };
        let mut opened = self.opened();
        opened.next += 1;
        let number = opened.next;
        opened.texts.insert(number, text.into());
        Ok(number)
    }

    pub(super) fn release(&self, number: u64) {
        self.opened().texts.remove(&number);
    }

    /// The drive's counters and this process's.
    pub(super) fn stats(&self) -> DriveStats {
        let mut stats = self.drive.stats();
        stats.pid = Some(std::process::id());
        if let Some(pacer) = &self.pacer {
            stats.modelled_ns = pacer.now_ns();
            (stats.paced, stats.late) = pacer.counts();
        }
        stats
    }

    fn now_ns(&self) -> u64 {
        self.pacer.as_ref().map_or(0, Pacer::now_ns)
    }

    /// Calls `completion` at `at_ns` by the timing model, or at once without one.
    pub(super) fn complete(&self, at_ns: u64, completion: impl FnOnce() + Send + 'static) {
        match &self.pacer {
            Some(pacer) => pacer.at(at_ns, completion),
            None => completion(),
        }
    }

    /// Reads up to `size` bytes, and when that is done.
    pub(super) fn read(
        &self,
        node: Node,
        number: u64,
        offset: u64,
        size: u32,
    ) -> Result<(Vec<u8>, u64), Errno> {
        match node {
            Node::Drive => {
                let left = self.capacity.saturating_sub(offset);
                let mut out = vec![0; u64::from(size).min(left) as usize];
                let done = self.drive.read(offset, &mut out, self.now_ns());
                Ok((out, done.map_err(errno)?))
            }
            Node::Stats | Node::Frequency => {
                let text = self.opened().texts.get(&number).cloned();
                let text = text.ok_or(Errno::BADF)?;
                let from = text
                    .len()
                    .min(usize::try_from(offset).unwrap_or(usize::MAX));
                let to = text.len().min(from.saturating_add(size as usize));
                Ok((text[from..to].to_vec(), 0))
            }
            Node::Root => Err(Errno::ISDIR),
            Node::Control => Err(Errno::BADF),
        }
    }

    /// Writes, and when that is done.
    pub(super) fn write(&self, node: Node, offset: u64, data: &[u8]) -> Result<u64, Errno> {
        match node {
            Node::Drive => {
                let done = self.drive.write(offset, data, self.now_ns());
                done.map_err(errno)
            }
            Node::Control if data.trim_ascii() == b"mark" => {
                self.drive.set_mark().map_err(|_| Errno::IO)?;
                Ok(0)
            }
            Node::Control => Err(Errno::INVAL),
            Node::Root => Err(Errno::ISDIR),
            Node::Stats | Node::Frequency => Err(Errno::BADF),
        }
    }

    /// Discards a range, whether its contents are to be undefined or zeros: either way it reads
    /// zeros.
    ///
    /// A preconditioned drive does not know zeroed ranges, so that hosts write zeros: making a file
    /// system would discard otherwise, and every page of it holds data.
    pub(super) fn fallocate(
        &self,
        node: Node,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<u64, Errno> {
        let discards = mode == PUNCH_HOLE | KEEP_SIZE || mode & !KEEP_SIZE == ZERO_RANGE;
        if node != Node::Drive || !discards {
            return Err(Errno::OPNOTSUPP);
        }
        let zeroes = mode & ZERO_RANGE != 0;
        if zeroes && self.drive.declared().0 == DeclaredState::Preconditioned {
            return Err(Errno::OPNOTSUPP);
        }
        let done = self.drive.discard(offset, len, self.now_ns());
        done.map_err(errno)
    }

    /// Moves all written data to the simulated drive's flash.
    pub(super) fn fsync(&self, node: Node) -> Result<u64, Errno> {
        if node != Node::Drive {
            return Ok(0);
        }
        self.drive.flush(self.now_ns()).map_err(errno)
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
