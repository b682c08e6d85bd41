//! Reading beside a writer in another process: what a reader pins and keeps of the store when it is
//! opened, and what it means if it reads something else later. The order of both sides, and why it
//! suffices: docs/decisions/0029.

use std::path::PathBuf;
use std::sync::Arc;

use isobath_io::{IoError, OverlayDevice, Volume};

use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::checkpoint::log_area;
use crate::checkpoint::{SUPERBLOCK_OFFSETS, Superblock};
use crate::error::{OpenError, StorageError};
use crate::log::{BLOCK, DEVICE_HEADER_BYTES};
use crate::page::{Lsn, PageId};
use crate::recovery::open::{Loaded, read_superblock, reserve_tables};
use crate::recovery::unflushed_chunks::find_end;
use crate::recovery::{LogBase, LogScan, Opening};
use crate::shared::Address;

/// Frames of a pool that serves only for its mapping table.
const FEW_FRAMES: u32 = 64;

/// Times that the newest state is looked at while a writer overtakes each look.
const ATTEMPTS: u32 = 10;

/// A reader's view of a volume that a writer may change.
pub(crate) struct Beside {
    /// The volume itself, whatever this process has written over it.
    volume: Volume,
    paths: Vec<PathBuf>,
    /// The log was replayed in this process alone: another timeline than the writer's.
    replayed: bool,
    /// A writer has used the place of a page again that this reader needs.
    is_overrun: bool,
    /// It has what the log says before this, and nothing else.
    reached: Lsn,
}

/// Pins the newest superblock for as long as `volume` is open, and answers it.
///
/// The pin is there before the superblock is read for the last time: if the writer finds no pin, it
/// frees only what a durable superblock or record before that says is obsolete.
///
/// # Errors
///
/// As for [`read_superblock`].
pub(crate) fn pin_newest(volume: &Volume, paths: &[PathBuf]) -> Result<Superblock, OpenError> {
    let mut superblock = read_superblock(volume, paths)?;
    // Bound: each round but the last finds a superblock that was written during it.
    loop {
        // Without locks, the reader finds out when it is overrun.
        volume.pin(superblock.sequence);
        let again = read_superblock(volume, paths)?;
        if again.sequence == superblock.sequence {
            return Ok(again);
        }
        superblock = again;
    }
}

/// Copies the log of `superblock` from the volume below into `overlay`, up to what is durable by
/// now at least, and with it the superblock itself. A recovery of the overlay sees nothing of what
/// a writer does from here on, but for pages that it puts over others.
///
/// The end of a log that is being written looks like a corrupt record: bytes behind the end may
/// know already that the log was durable beyond it. So it is read twice. The first reading finds
/// what the second one has to find. Answers the log's end in the overlay.
///
/// # Errors
///
/// [`StorageError::LogCorrupt`] if the log could not be read up to there: it is corrupt, or a
/// writer has used its space again.
pub(crate) fn keep_log(
    overlay: &OverlayDevice,
    superblock: &Superblock,
    paths: &[PathBuf],
) -> Result<Lsn, OpenError> {
    let volume = overlay.below();
    let Some(area) = log_area(superblock) else {
        return Ok(Lsn(superblock.log_start));
    };
    let reached = find_end(volume, &area, superblock)?;
    let durable = reached.0.max(superblock.log_durable);
    let first = superblock.log_start / BLOCK * BLOCK;
    let (end, limit) = (durable.next_multiple_of(BLOCK), first + area.bytes());
    let overrun = StorageError::LogCorrupt {
        position: first,
        durable,
    };
    if end > limit {
        return Err(overrun.into());
    }
    for (offset, length) in area.pieces(first, end - first) {
        overlay.keep(offset, length)?;
    }
    for (offset, length) in area.pieces(end, limit - end) {
        overlay.clear(offset, length);
    }
    if superblock.log_device_bytes > 0 {
        overlay.keep(isobath_io::LOG_OFFSET, DEVICE_HEADER_BYTES)?;
    }
    let mut kept = superblock.clone();
    kept.log_durable = durable;
    keep_superblock(overlay, &kept)?;
    // Nothing up to where the log seemed to end was overwritten before it was read: the writer
    // keeps what the newest superblock needs. Otherwise the end may have been newer records in the
    // place of older ones.
    let newest = read_superblock(volume, paths)?;
    if newest.log_start > durable && !canary::is_on(Canary::TrustLiveLogEnd) {
        return Err(overrun.into());
    }
    Ok(Lsn(durable))
}

/// Writes this superblock into both places of the overlay.
fn keep_superblock(overlay: &OverlayDevice, superblock: &Superblock) -> Result<(), IoError> {
    let volume: &dyn isobath_io::Device = overlay;
    let bytes = superblock.encode();
    SUPERBLOCK_OFFSETS
        .iter()
        .try_for_each(|&offset| volume.write_at(offset, &bytes[..]))
}

/// The address of page `id` in the newest state of the store, and the sequence number of the
/// segment; `None` if it has no copy.
///
/// # Errors
///
/// Those of reading; [`StorageError::ReaderOverrun`] if a writer goes on faster than the state can
/// be read.
fn find_copy(volume: &Volume, id: PageId) -> Result<Option<(Address, u64)>, OpenError> {
    for _ in 0..ATTEMPTS {
        let superblock = read_superblock(volume, &[])?;
        // It may name places behind the end that the volume had when it was opened.
        volume.refresh_len()?;
        #[cfg(test)]
        tests::overtake();
        let found = copy_in(volume, &superblock, id);
        let newest = read_superblock(volume, &[])?;
        // What the newest superblock needs of the log is still there. If the log ended before
        // that, newer records have taken the place of older ones, and the state that was put
        // together lacks what they said.
        let is_whole = match &found {
            Ok((_, end)) => newest.log_start <= end.0,
            Err(_) => newest.sequence == superblock.sequence,
        };
        if is_whole {
            return found.map(|(copy, _)| copy);
        }
    }
    Err(StorageError::ReaderOverrun { paths: Vec::new() }.into())
}

/// A place of a page, with the sequence number of its segment.
type Copy = (Address, u64);

/// The address of page `id` in the state of `superblock` and its log, and the log's end, as far as
/// it can be read.
fn copy_in(
    volume: &Volume,
    superblock: &Superblock,
    id: PageId,
) -> Result<(Option<Copy>, Lsn), OpenError> {
    let whole = superblock.sizes.whole_in(volume.len());
    let segments = superblock.segments.max(whole);
    let (pool, _) = reserve_tables(FEW_FRAMES, segments)?;
    let loaded = Loaded::read(volume, superblock, segments, &pool)?;
    let mut seqs: Vec<u64> = loaded.table.iter().map(|words| words[0]).collect();
    let mut end = Lsn(superblock.log_start);
    if let Some(area) = log_area(superblock) {
        let base = LogBase {
            provisional: &loaded.provisional,
            has: &|page| pool.mapping.place(page) != PagePlace::Free,
        };
        // Twice, as in `keep_log`: the second reading has to find all records that were durable
        // when the first one ended.
        let reached = find_end(volume, &area, superblock)?;
        let durable = reached.max(Lsn(superblock.log_durable));
        let scan = LogScan::read_until(volume, &area, superblock, &base, durable).whole()?;
        for (&segment, &seq) in &scan.seqs {
            if let Some(known) = seqs.get_mut(segment as usize) {
                *known = seq.max(*known);
            }
        }
        end = scan.end.lsn;
        scan.apply(superblock, &mut |page, place| pool.mapping.set(page, place));
    }
    let copy = match pool.mapping.place(id) {
        PagePlace::Stored(address) => seqs
            .get(address.segment() as usize)
            .map(|&seq| (address, seq)),
        _ => None,
    };
    Ok((copy, end))
}

impl Opening {
    /// This store reads `volume`, or the overlay over it, while another process may write
    /// there. What the store has was replayed from its log up to `replayed_to`, or by its last
    /// writer, which has closed it, up to `closed_at`.
    pub(crate) fn reads_beside(
        &self,
        volume: Volume,
        paths: &[PathBuf],
        replayed_to: Option<Lsn>,
        closed_at: Lsn,
    ) {
        *self.beside.lock() = Some(Beside {
            volume,
            paths: paths.to_vec(),
            replayed: replayed_to.is_some(),
            is_overrun: false,
            reached: replayed_to.unwrap_or(closed_at),
        });
    }

    /// For a reader beside a writer: it has what the log says before this, and nothing else.
    pub(crate) fn reached(&self) -> Option<Lsn> {
        self.beside.lock().as_ref().map(|beside| beside.reached)
    }

    /// Whether the log was replayed in this process alone: page versions and places that came of
    /// that mean something else in the store of a writer.
    pub(crate) fn was_replayed(&self) -> bool {
        self.shared.config.read_only && self.beside.lock().as_ref().is_some_and(|b| b.replayed)
    }

    /// Explains why page `id` could not be read at `address`, with this error. For a reader:
    /// if the page is in another place by now, a writer has used that one again. If it still has to
    /// be there, it is corrupt.
    pub(crate) fn judge_read(
        &self,
        id: PageId,
        address: Address,
        error: StorageError,
    ) -> StorageError {
        if !self.shared.config.read_only {
            return error;
        }
        let mut beside = self.beside.lock();
        let Some(beside) = beside.as_mut() else {
            return error;
        };
        let expected = Some((address, self.shared.seq_of(address)));
        // Once is enough: each look reads the log.
        if !beside.is_overrun {
            beside.is_overrun = match find_copy(&beside.volume, id) {
                Ok(found) => found != expected,
                // Without the newest state no one knows whether the page is there still. The next
                // opening names the problem.
                Err(_) => true,
            };
        }
        match beside.is_overrun {
            true => StorageError::ReaderOverrun {
                paths: beside.paths.clone(),
            },
            false => error,
        }
    }
}

/// A volume that reads `volume` and keeps writes to itself: `memory_bytes` bytes in memory,
/// more than that in a temporary file.
pub(crate) fn overlay(volume: Volume, memory_bytes: u64) -> Arc<OverlayDevice> {
    Arc::new(OverlayDevice::new(volume, memory_bytes))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::shared::Durability;
    use crate::{Options, Store};

    type Work = Box<dyn FnOnce()>;

    thread_local! {
        /// Work of a writer once a look has read the superblock.
        static OVERTAKE: RefCell<Option<Work>> = const { RefCell::new(None) };
    }

    pub(super) fn overtake() {
        if let Some(work) = OVERTAKE.take() {
            work();
        }
    }

    /// The writer makes the volume longer, and log and pages go on behind the end that it had for
    /// the reader.
    #[test]
    fn a_look_finds_what_lies_behind_the_end_that_the_volume_had() {
        let directory = tempfile::tempdir().unwrap();
        let paths = [directory.path().join("s")];
        let options = Options::new()
            .pool_bytes(4 << 20)
            .workers(1)
            .segment_bytes(64 << 10)
            .durability(Durability::None);
        let store = Store::create(&paths[0], &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let write_all = |value: u8| {
            for n in 0..6000 {
                tree.insert(format!("{n:04}"), [value; 1000]).unwrap();
            }
        };
        tree.insert("0", "").unwrap();
        store.checkpoint().unwrap();
        let reading = options.read_only(true);
        let volume = Volume::open(&paths, &reading.volume_options()).unwrap();
        let length = volume.len();
        (0..4).for_each(write_all);
        store.checkpoint().unwrap();
        // These are in the log alone, with the places that pages get from here on.
        write_all(9);
        let log = read_superblock(&volume, &paths).unwrap();
        let log = log.log.unwrap();
        let is_behind = log.extents().iter().any(|&(offset, _)| offset > length);
        assert!(is_behind, "the log did not grow behind the end");
        let now = Volume::open(&paths, &reading.volume_options()).unwrap();
        let look = |volume: &Volume| {
            let ids = (8..1000).step_by(40).map(PageId);
            ids.map(|id| find_copy(volume, id).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(look(&volume), look(&now));
        drop(tree);
        store.close().unwrap();
    }

    #[test]
    fn a_look_that_a_writer_overtakes_is_repeated() {
        let options = Options::new()
            .pool_bytes(4 << 20)
            .workers(1)
            .segment_bytes(64 << 10)
            .log_bytes(4 << 20)
            .durability(Durability::None);
        let volume = Volume::in_memory(0, None);
        let store = Store::create_on_volume(volume.clone(), &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let write_all = move |round: u8, rounds: u8| {
            for value in round..round + rounds {
                for n in 0..1000 {
                    tree.insert(format!("{n:04}"), [value; 500]).unwrap();
                }
            }
        };
        // Segments to spare: those of an older checkpoint are not used again at once.
        let other = store.create_tree("other").unwrap();
        for n in 0..2000 {
            other.insert(format!("{n:04}"), [7; 4000]).unwrap();
        }
        drop(other);
        store.drop_tree("other").unwrap();
        write_all(0, 1);
        store.checkpoint().unwrap();
        let mut moved = 0;
        for round in 1..=2 {
            let id = PageId(u64::from(round) * 8);
            let before = find_copy(&volume, id).unwrap();
            let (writer, write_all) = (store.clone(), write_all.clone());
            OVERTAKE.set(Some(Box::new(move || {
                // More than the log holds.
                write_all(round * 16, 9);
                writer.checkpoint().unwrap();
            })));
            let found = find_copy(&volume, id).unwrap();
            let after = find_copy(&volume, id).unwrap();
            assert_eq!(found, after, "page {id:?} was at {before:?}");
            moved += u32::from(before != after);
        }
        assert!(moved > 0, "the writer moved no page");
        store.close().unwrap();
    }
}
