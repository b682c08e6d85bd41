//! The dirty page table against a model: an ordered map of frames.

use std::collections::BTreeMap;

use isobath_flash::rng::Rng;

use super::super::frames::Frames;
use super::*;

/// Frames, their table, and what it should say: the oldest change of each dirty frame.
struct Pool {
    frames: Frames,
    table: DirtyPageTable,
    model: BTreeMap<FrameId, Lsn>,
}

impl Pool {
    /// `count` frames with clean pages.
    fn new(count: u32) -> Pool {
        let frames = Frames::map(count).unwrap();
        for frame in 0..count {
            let header = frames.header(frame);
            header.start_load(PageId(u64::from(frame)), Address::new(1, 0, 4096));
            header.loaded(Lsn(1));
            header.latch().unlock_exclusive();
        }
        Pool {
            frames,
            table: DirtyPageTable::new(),
            model: BTreeMap::new(),
        }
    }

    fn change(&mut self, frame: FrameId, record: Lsn) {
        let header = self.frames.header(frame);
        assert!(header.latch().try_exclusive());
        let _ = self.table.changed(frame, header, record, record);
        header.latch().unlock_exclusive();
        let oldest = self.model.entry(frame).or_insert(record);
        *oldest = record.min(*oldest);
    }

    /// Whether a write of the frame has started.
    fn start_write(&mut self, frame: FrameId) -> bool {
        let header = self.frames.header(frame);
        let page = (header.page(), History(0));
        let mut held = None;
        let hold = |oldest| held = Some(oldest);
        let has_started = self
            .table
            .start_write(frame, header, page, hold, || ())
            .is_ok();
        let expected = self.model.remove(&frame);
        assert_eq!(has_started, expected.is_some());
        assert!(!has_started || held == expected);
        has_started
    }

    fn write(&mut self, frame: FrameId) {
        if self.start_write(frame) {
            let _ = self.frames.header(frame).write_ended();
        }
    }

    /// Frees the frame's page, and has the frame hold another one.
    fn replace(&mut self, frame: FrameId) {
        let header = self.frames.header(frame);
        assert!(header.latch().try_exclusive());
        let freed = self.table.free_page(frame, header);
        assert_eq!(freed.oldest_change, self.model.remove(&frame));
        assert!(!self.table.has_freed_in_write());
        header.start_load(PageId(u64::from(frame)), Address::new(1, 0, 4096));
        header.loaded(Lsn(1));
        header.latch().unlock_exclusive();
    }

    fn compare(&self, before: Lsn) {
        assert_eq!(self.table.oldest(), self.model.values().min().copied());
        let older = self.model.values().filter(|oldest| **oldest < before);
        let older = older.count();
        assert_eq!(self.table.count_older(before), older);
        assert_eq!(self.table.has_older(before), older > 0);
    }
}

#[test]
fn it_says_what_the_headers_say() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut pool = Pool::new(64);
        for lsn in 100..3_000 {
            let frame = rng.below(64);
            match rng.below(8) {
                // Commits are applied in another order than they are logged in.
                0..5 => pool.change(frame, Lsn(lsn - u64::from(rng.below(60)))),
                5..7 => pool.write(frame),
                _ => pool.replace(frame),
            }
            pool.compare(Lsn(u64::from(rng.below(3_000))));
        }
    }
}

#[test]
fn what_is_counted_in_several_rounds_is_counted_once() {
    let mut pool = Pool::new(10_000);
    const { assert!(10_000 / SHARDS > 2 * COUNTED_AT_ONCE) };
    (0..10_000).for_each(|frame| pool.change(frame, Lsn(u64::from(frame / 3))));
    for before in [0, 1, 100, 1_500, 3_000, 4_000, u64::MAX] {
        pool.compare(Lsn(before));
    }
}

#[test]
fn a_frame_that_is_changed_while_it_is_written_has_its_newer_change() {
    let mut pool = Pool::new(4);
    pool.change(2, Lsn(10));
    assert!(pool.start_write(2));
    assert_eq!(pool.table.oldest(), None);
    pool.change(2, Lsn(20));
    pool.change(2, Lsn(30));
    pool.compare(Lsn(25));
    assert_eq!(pool.table.oldest(), Some(Lsn(20)));
    let end = pool.frames.header(2).write_ended();
    assert!(!end.freed);
    pool.compare(Lsn(25));
    pool.write(2);
    pool.change(2, Lsn(40));
    assert_eq!(pool.table.oldest(), Some(Lsn(40)));
}

#[test]
fn a_write_that_fails_leaves_the_frame_in_the_table() {
    let mut pool = Pool::new(4);
    pool.change(1, Lsn(10));
    assert!(pool.start_write(1));
    let turned_dirty = pool.table.write_failed(1, pool.frames.header(1));
    assert_eq!(turned_dirty.ok(), Some(true));
    assert_eq!(pool.table.oldest(), Some(Lsn(10)));
}

#[test]
fn a_page_that_is_freed_while_it_is_written_counts_until_that_write_ends() {
    let mut pool = Pool::new(4);
    pool.change(3, Lsn(10));
    assert!(pool.start_write(3));
    pool.change(3, Lsn(20));
    let header = pool.frames.header(3);
    assert!(header.latch().try_exclusive());
    let freed = pool.table.free_page(3, header);
    assert!(freed.is_written && freed.oldest_change == Some(Lsn(20)));
    assert_eq!(pool.table.oldest(), None);
    assert!(pool.table.has_freed_in_write());
    assert!(header.write_ended().freed);
    pool.table.freed_pages_written(1);
    assert!(!pool.table.has_freed_in_write());
}
