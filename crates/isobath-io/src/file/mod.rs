//! Volumes on files and block devices.

mod aio;
mod channel;
mod flushes;
mod label;
mod lock;
mod log;
mod member;
mod pread;
mod probe;
mod queue;
mod set;
mod stripe;
mod sys;
mod uring;

use std::fs;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::aligned::AlignedBuf;
use crate::device::{Channel, ChannelOptions, Device, LOG_OFFSET, Layout};
use crate::error::{IoError, IoErrorKind, VolumeError};
use crate::io::Op;
use crate::options::{Access, BackendKind, BackendReport, VolumeOptions};
use label::{DATA_OFFSET, DEVICE_DATA_OFFSET, Label};
use log::LogMember;
pub(crate) use member::is_member;
pub use member::is_store_file;
use member::{Member, os};
use set::{
    check_count, check_distinct, check_set, common_label, find_truncated, map_of, read_labels,
};
use stripe::{Piece, StripeMap};
pub use sys::ignore_file_size_signal;

/// A volume striped over files and block devices.
pub(crate) struct FileDevice {
    members: Vec<Member>,
    log: OnceLock<LogMember>,
    map: StripeMap,
    len: AtomicU64,
    block: u32,
    limit: Option<u64>,
    read_only: bool,
    /// The options of every further file.
    options: VolumeOptions,
    /// The backend of channels opened from now on.
    backend: Mutex<BackendKind>,
    notes: Mutex<Vec<String>>,
    /// Held while the volume grows.
    labels: Mutex<Labels>,
}

/// The labels as last written.
struct Labels {
    /// What they say; index and generation are each member's own.
    label: Label,
    /// The generation of every member's newest copy that is known to be whole. The next one goes to
    /// the other copy, so that a failure leaves this one.
    generations: Vec<u64>,
}

impl FileDevice {
    pub(crate) fn create(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<FileDevice, VolumeError> {
        options.check()?;
        check_count(paths)?;
        check_distinct(paths)?;
        if options.access != Access::ReadWrite {
            return Err(VolumeError::ReadOnly {
                path: paths[0].clone(),
            });
        }
        let device = FileDevice::create_members(paths, options)?;
        device.members.iter().for_each(Member::keep);
        Ok(device)
    }

    /// Makes the members; if this fails, dropping them undoes that.
    fn create_members(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<FileDevice, VolumeError> {
        let mut members = Vec::new();
        for path in paths {
            members.push(Member::create(path, options)?);
        }
        let label = Label {
            uuid: random_id()?,
            index: 0,
            count: members.len() as u32,
            stripe_unit: u64::from(options.stripe_unit),
            data_offset: match members.iter().any(|member| member.block_device) {
                true => DEVICE_DATA_OFFSET,
                false => DATA_OFFSET,
            },
            len: 0,
            generation: 0,
        };
        for (index, member) in members.iter().enumerate() {
            let needed = label.data_offset + label.stripe_unit;
            if member.block_device && member.size()? < needed {
                return Err(VolumeError::NoSpace {
                    path: member.path.clone(),
                    needed,
                });
            }
            member.write_first_label(&Label {
                index: index as u32,
                ..label
            })?;
        }
        let made = members.iter().filter(|member| member.is_new_file());
        sync_directories(made.map(|member| &*member.path))?;
        let generations = vec![label.generation; members.len()];
        FileDevice::assemble(members, label, generations, options)
    }

    pub(crate) fn open(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<FileDevice, VolumeError> {
        FileDevice::open_checked(paths, options, Err)
    }

    /// Opens a volume for reading whose files may be shorter than their labels say; what is wrong
    /// with them. What lies in the missing parts cannot be read.
    pub(crate) fn open_truncated(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<(FileDevice, Vec<VolumeError>), VolumeError> {
        let options = options.clone().access(Access::ReadOnly);
        let mut truncated = Vec::new();
        let device = FileDevice::open_checked(paths, &options, |error| {
            truncated.push(error);
            Ok(())
        })?;
        Ok((device, truncated))
    }

    fn open_checked(
        paths: &[PathBuf],
        options: &VolumeOptions,
        mut truncated: impl FnMut(VolumeError) -> Result<(), VolumeError>,
    ) -> Result<FileDevice, VolumeError> {
        options.check()?;
        check_count(paths)?;
        check_distinct(paths)?;
        let mut members = Vec::new();
        for path in paths {
            members.push(Member::open(path, options)?);
        }
        let mut labels = read_labels(&members)?;
        let (label, missing) = loop {
            check_set(paths, &labels)?;
            let label = common_label(&labels);
            #[cfg(test)]
            tests::overtake();
            let missing = find_truncated(&members, &label)?;
            if missing.is_empty() {
                break (label, missing);
            }
            // A writer beside this reader says how short the files will be before it cuts them.
            // What was cut in between is missing only if the labels, which were read before, say
            // the same afterwards. Bound: each other round finds that the writer has given the
            // volume another length.
            let again = read_labels(&members)?;
            if again == labels {
                break (label, missing);
            }
            labels = again;
        };
        missing.into_iter().try_for_each(&mut truncated)?;
        if options.access == Access::ReadWrite {
            let map = map_of(&label);
            for (index, member) in members.iter().enumerate() {
                member.fill_holes(map.data_offset + map.share_len(index as u32, label.len))?;
            }
        }
        let generations = labels.iter().map(|label| label.generation).collect();
        FileDevice::assemble(members, label, generations, options)
    }

    /// Opens files without labels, for reading.
    pub(crate) fn open_unlabelled(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<FileDevice, VolumeError> {
        options.check()?;
        check_count(paths)?;
        check_distinct(paths)?;
        let options = options.clone().access(Access::ReadOnly);
        let mut members = Vec::new();
        let mut sizes = Vec::new();
        for path in paths {
            let member = Member::open(path, &options)?;
            let size = member.size()?;
            if size < label::LABEL_BLOCK as u64 {
                return Err(VolumeError::Truncated {
                    path: path.clone(),
                    expected: label::LABEL_BLOCK as u64,
                    found: size,
                });
            }
            sizes.push(size);
            members.push(member);
        }
        let mut label = Label {
            uuid: [0; 16],
            index: 0,
            count: members.len() as u32,
            stripe_unit: u64::from(options.stripe_unit),
            data_offset: 0,
            len: 0,
            generation: 0,
        };
        label.len = map_of(&label).capacity(sizes.into_iter());
        let generations = vec![0; members.len()];
        FileDevice::assemble(members, label, generations, &options)
    }

    fn assemble(
        members: Vec<Member>,
        label: Label,
        generations: Vec<u64>,
        options: &VolumeOptions,
    ) -> Result<FileDevice, VolumeError> {
        let map = map_of(&label);
        let mut limit = options.max_bytes.map(|m| (m / 4096 * 4096).max(label.len));
        if members.iter().any(|m| m.block_device) {
            let mut sizes = Vec::new();
            for member in &members {
                // A file beside devices grows as far as they allow.
                sizes.push(if member.block_device {
                    member.size()?
                } else {
                    u64::MAX >> 2
                });
            }
            let capacity = map.capacity(sizes.into_iter());
            limit = Some(limit.map_or(capacity, |l| l.min(capacity)));
        }
        let mut notes = Vec::new();
        for member in members.iter().filter(|m| m.direct_refused) {
            notes.push(no_direct(member));
        }
        let backend = probe::choose(&members, options.backend, &mut notes)?;
        Ok(FileDevice {
            block: members.iter().map(|m| m.block).max().unwrap_or(4096),
            members,
            log: OnceLock::new(),
            map,
            len: AtomicU64::new(label.len),
            limit,
            read_only: options.access != Access::ReadWrite,
            options: options.clone(),
            backend: Mutex::new(backend),
            notes: Mutex::new(notes),
            labels: Mutex::new(Labels { label, generations }),
        })
    }

    /// The members and then, if there is one, the log device: in the order of a piece's number.
    fn all_members(&self) -> impl Iterator<Item = &Member> {
        let log = self.log.get().map(|log| &log.member);
        self.members.iter().chain(log)
    }

    /// Number `index` of [`all_members`](Self::all_members).
    fn member(&self, index: u32) -> &Member {
        match self.log.get() {
            Some(log) if index as usize == self.members.len() => &log.member,
            _ => &self.members[index as usize],
        }
    }

    /// Adds a note to the report, once.
    fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// Extends every member for a volume of `new_len` bytes, then records that length in every
    /// label.
    fn grow_locked(
        &self,
        mut labels: MutexGuard<'_, Labels>,
        new_len: u64,
    ) -> Result<(), VolumeError> {
        let old_len = labels.label.len;
        let ends = |len: u64, index: usize| {
            let share = self.map.share_len(index as u32, len);
            self.map.data_offset + share
        };
        for (index, member) in self.members.iter().enumerate() {
            let (from, to) = (ends(old_len, index), ends(new_len, index));
            if let Err(error) = member.extend(from, to) {
                for (index, member) in self.members.iter().enumerate().take(index + 1) {
                    member.shrink_back(ends(old_len, index));
                }
                return Err(error);
            }
        }
        // The sizes are durable before any label speaks of them: a crash in between leaves files
        // that are too long.
        self.write_labels(&mut labels, new_len)?;
        self.len.store(new_len, Ordering::Release);
        Ok(())
    }

    /// Records the length in the older copy of every label, durably.
    fn write_labels(&self, labels: &mut Labels, len: u64) -> Result<(), VolumeError> {
        for (index, member) in self.members.iter().enumerate() {
            let next = Label {
                index: index as u32,
                len,
                generation: labels.generations[index] + 1,
                ..labels.label
            };
            member.write_label(&next)?;
            labels.generations[index] = next.generation;
        }
        labels.label.len = len;
        Ok(())
    }

    /// Records the smaller length in both copies of every label, then gives back what lies behind
    /// it.
    fn shrink_locked(
        &self,
        mut labels: MutexGuard<'_, Labels>,
        new_len: u64,
    ) -> Result<(), VolumeError> {
        self.len.store(new_len, Ordering::Release);
        // Durable in both copies before a file is cut: a label that speaks of more than there is
        // would refuse the volume, also if it counts only because its newer copy is corrupt.
        // Files that are too long are harmless.
        for _copy in 0..2 {
            self.write_labels(&mut labels, new_len)?;
        }
        for (index, member) in self.members.iter().enumerate() {
            let share = self.map.share_len(index as u32, new_len);
            member.cut(self.map.data_offset + share)?;
        }
        Ok(())
    }

    /// The backend of channels opened now.
    fn backend(&self) -> BackendKind {
        *self.backend.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backend after `refused`, which refused a channel for this reason; `None` if it was
    /// asked for by name. A channel needs more than the probe did when the volume was opened, and
    /// limits are for all channels together.
    fn fall_back(&self, refused: BackendKind, reason: &io::Error) -> Option<BackendKind> {
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        if *backend != refused {
            // Another channel has met the same refusal.
            return Some(*backend);
        }
        let (next, note) = probe::next(refused, self.options.backend, reason)?;
        *backend = next;
        drop(backend);
        self.note(note);
        Some(next)
    }

    fn check(&self, op: Op, offset: u64, len: u64, aligned: bool) -> Result<(), IoError> {
        let fail = |kind| Err(IoError::new(kind, op, offset, len));
        if self.read_only && op != Op::Read {
            return fail(IoErrorKind::ReadOnly);
        }
        if !aligned {
            return fail(IoErrorKind::Misaligned);
        }
        let limit = if offset >= LOG_OFFSET {
            LOG_OFFSET + self.log_len()
        } else {
            self.len()
        };
        match offset.checked_add(len) {
            Some(end) if end <= limit => Ok(()),
            _ => fail(IoErrorKind::OutOfRange),
        }
    }

    /// Reads whole blocks of one piece.
    fn read_piece(&self, piece: Piece, buf: &mut [u8], logical: u64) -> Result<(), IoError> {
        let member = self.member(piece.member);
        member.read_all(buf, piece.at).map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::UnexpectedEof => IoErrorKind::Short { done: 0 },
                _ => IoErrorKind::from_errno(e.raw_os_error().unwrap_or(libc::EIO)),
            };
            IoError::new(kind, Op::Read, logical, buf.len() as u64).on(&member.path)
        })
    }
}

/// Bytes that the blocking helpers move at once through their aligned buffer.
const BOUNCE: u64 = 256 << 10;

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn logical_block(&self) -> u32 {
        let log = self.log.get().map_or(0, |log| log.member.block);
        self.block.max(log)
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(4096) || new_len > 1 << 62 {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096 up to 2^62",
                found: new_len,
            });
        }
        let labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        if new_len <= labels.label.len {
            return Ok(());
        }
        if self.read_only {
            return Err(VolumeError::ReadOnly {
                path: self.members[0].path.clone(),
            });
        }
        if let Some(limit) = self.limit
            && new_len > limit
        {
            return Err(VolumeError::Limit {
                limit,
                asked: new_len,
            });
        }
        self.grow_locked(labels, new_len)
    }

    fn first_writes_cost_more(&self) -> bool {
        self.members.iter().any(|member| !member.block_device)
    }

    fn can_shrink(&self) -> bool {
        self.members.iter().all(|member| !member.block_device)
    }

    fn shrink(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(4096) {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096",
                found: new_len,
            });
        }
        if self.read_only {
            return Err(VolumeError::ReadOnly {
                path: self.members[0].path.clone(),
            });
        }
        let labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        if new_len >= labels.label.len || !self.can_shrink() {
            return Ok(());
        }
        self.shrink_locked(labels, new_len)
    }

    fn holds(&self, file: &fs::Metadata) -> bool {
        self.all_members()
            .any(|member| member.is(file).unwrap_or(false))
    }

    fn displaced(&self) -> Option<VolumeError> {
        self.all_members().find_map(Member::displaced)
    }

    fn log_len(&self) -> u64 {
        self.log.get().map_or(0, |log| log.len)
    }

    fn sees_pins(&self) -> bool {
        true
    }

    fn pin(&self, number: u64) -> bool {
        self.members[0].pin(number)
    }

    fn is_pinned(&self, numbers: RangeInclusive<u64>) -> bool {
        self.members[0].is_pinned(numbers)
    }

    fn refresh_len(&self) -> Result<(), VolumeError> {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        // The locks of all others keep writers out.
        if self.options.access != Access::Beside {
            return Ok(());
        }
        let found = read_labels(&self.members)?;
        let ours = labels.label;
        if let Some(other) = found.iter().position(|label| label.uuid != ours.uuid) {
            let path = self.members[other].path.clone();
            return Err(VolumeError::LabelCorrupt { path });
        }
        labels.label.len = common_label(&found).len;
        self.len.store(labels.label.len, Ordering::Release);
        Ok(())
    }

    fn has_writer(&self) -> bool {
        self.members[0].has_writer()
    }

    fn writer_pid(&self) -> Option<u32> {
        self.members[0].writer_pid()
    }

    fn create_log(&self, path: &Path, bytes: u64) -> Result<(), VolumeError> {
        self.create_log_member(path, bytes)
    }

    fn open_log(&self, path: &Path) -> Result<(), VolumeError> {
        self.open_log_member(path)
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        channel::open(self, options)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.check(Op::Read, offset, buf.len() as u64, true)?;
        let block = u64::from(self.logical_block());
        let end = offset + buf.len() as u64;
        let mut bounce = AlignedBuf::new((end - offset + 2 * block).min(BOUNCE) as usize);
        let mut at = offset;
        while at < end {
            // The blocks around `at`, as many as fit into the buffer and one piece. The volume's
            // length is a multiple of every block size, so rounding up stays inside.
            let start = at / block * block;
            let room = self.map.run(start).min(bounce.len() as u64 / block * block);
            let n = (end - start).next_multiple_of(block).min(room);
            let (member, physical) = self.map.locate(start);
            let piece = Piece {
                member,
                at: physical,
                len: n,
            };
            self.read_piece(piece, &mut bounce[..n as usize], start)?;
            let skip = (at - start) as usize;
            let take = (n as usize - skip).min((end - at) as usize);
            let to = (at - offset) as usize;
            buf[to..to + take].copy_from_slice(&bounce[skip..skip + take]);
            at += take as u64;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let len = buf.len() as u64;
        let aligned = (offset | len).is_multiple_of(u64::from(self.logical_block()));
        self.check(Op::Write, offset, len, aligned)?;
        let mut bounce = AlignedBuf::new(len.min(BOUNCE) as usize);
        let mut done = 0;
        for piece in self.map.pieces(offset, len) {
            let member = self.member(piece.member);
            let mut at = 0;
            while at < piece.len {
                let n = (piece.len - at).min(BOUNCE) as usize;
                bounce[..n].copy_from_slice(&buf[done..done + n]);
                let result = member.write_all(&bounce[..n], piece.at + at);
                result.map_err(|e| {
                    let kind = IoErrorKind::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
                    IoError::new(kind, Op::Write, offset + done as u64, n as u64).on(&member.path)
                })?;
                at += n as u64;
                done += n;
            }
        }
        Ok(())
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let aligned = (offset | len).is_multiple_of(u64::from(self.logical_block()));
        self.check(Op::Discard, offset, len, aligned)?;
        for piece in self.map.shares(offset, len) {
            let member = self.member(piece.member);
            member.punch(piece.at, piece.len).map_err(|e| {
                let kind = IoErrorKind::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
                IoError::new(kind, Op::Discard, offset, len).on(&member.path)
            })?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        self.all_members().try_for_each(Member::sync)
    }

    fn undo_creation(&self) {
        self.all_members().for_each(Member::undo_creation);
    }

    fn layout(&self) -> Layout {
        Layout {
            members: self.map.members,
            stripe_unit: self.map.unit,
        }
    }

    fn backend_report(&self) -> BackendReport {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        BackendReport {
            backend: self.backend(),
            direct: self.all_members().all(|m| m.direct),
            notes: notes.clone(),
        }
    }
}

fn no_direct(member: &Member) -> String {
    format!(
        "{}: the file system refuses O_DIRECT, I/O goes through the page cache",
        member.path.display()
    )
}

/// A volume id. Not secret, only different from all others.
fn random_id() -> Result<[u8; 16], VolumeError> {
    let path = Path::new("/dev/urandom");
    let mut id = [0; 16];
    fs::File::open(path)
        .and_then(|mut f| f.read_exact(&mut id))
        .map_err(|e| os(path, "read", e))?;
    Ok(id)
}

/// Makes the names of new files durable: in the directories that they are in, wherever links to
/// them are.
fn sync_directories<'p>(made: impl Iterator<Item = &'p Path>) -> Result<(), VolumeError> {
    for path in made {
        let path = &fs::canonicalize(path).map_err(|e| os(path, "look up", e))?;
        let parent = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        fs::File::open(parent)
            .and_then(|dir| dir.sync_all())
            .map_err(|e| os(parent, "sync", e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// Work of a writer once an opening has read the labels.
        static OVERTAKE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn overtake() {
        if let Some(work) = OVERTAKE.take() {
            work();
        }
    }

    #[test]
    fn a_volume_that_becomes_shorter_while_it_is_opened_is_not_truncated() {
        let directory = tempfile::tempdir().unwrap();
        let paths = [directory.path().join("v")];
        let options = VolumeOptions::new();
        let writer = Arc::new(FileDevice::create(&paths, &options).unwrap());
        writer.grow(1 << 20).unwrap();
        let beside = options.access(Access::Beside);
        let shortened = Arc::clone(&writer);
        OVERTAKE.set(Some(Box::new(move || shortened.shrink(64 << 10).unwrap())));
        let reader = FileDevice::open(&paths, &beside).unwrap();
        assert_eq!(reader.len(), 64 << 10);
        // A writer's later labels count once the reader looks.
        writer.grow(2 << 20).unwrap();
        assert_eq!(reader.len(), 64 << 10);
        reader.refresh_len().unwrap();
        assert_eq!(reader.len(), 2 << 20);
        // Files that are cut by others are truncated.
        let file = fs::File::options().write(true).open(&paths[0]).unwrap();
        file.set_len(1 << 20).unwrap();
        let refused = FileDevice::open(&paths, &beside).map(drop);
        assert!(matches!(refused, Err(VolumeError::Truncated { .. })));
    }
}
