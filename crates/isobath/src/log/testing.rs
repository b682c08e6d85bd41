//! Tests of the log as a whole, on a volume in memory: bytes that were appended and flushed are
//! read back, and nothing else is, whatever a crash left.

#![allow(unsafe_code)]

mod cut;

use std::time::Duration;

use isobath_flash::rng::Rng;
use isobath_io::Volume;
use proptest::prelude::*;

use super::layout::HEADER_BYTES;
use super::reader::ReadError;
use super::record::Kind;
use super::*;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const STORE: [u8; 16] = *b"the store's name";
const KINDS: [Kind; 4] = [Kind::Commit, Kind::Structure, Kind::Mapping, Kind::Free];

/// An area of three extents, so that wraps and seams lie in odd places.
fn place() -> (Volume, LogArea) {
    let extents = vec![
        (3 << 20, 1 << 20),
        (1 << 20, (1 << 20) + 4096),
        (6 << 20, (2 << 20) - 4096),
    ];
    let volume = Volume::in_memory(16 << 20, None);
    (volume, LogArea::new(0, extents).unwrap())
}

fn config(area: &LogArea, start: u64, next: u64, open_epoch: u32) -> LogConfig {
    LogConfig {
        area: area.clone(),
        max_bytes: 0,
        transaction_bytes: MAX_TRANSACTION_BYTES,
        store_id: STORE,
        start: Lsn(start),
        next: Lsn(next),
        open_epoch,
        writers: 2,
    }
}

/// Bytes of a flush as they lie in memory.
fn bytes_of(log: &Log, flush: Flush) -> Vec<Piece> {
    let copy = |(offset, memory, length): (u64, *const u8, u32)| {
        // SAFETY: a claimed flush is complete, and stays in the ring.
        let bytes = unsafe { std::slice::from_raw_parts(memory, length as usize) };
        (offset, bytes.to_vec())
    };
    log.writes(flush).into_iter().map(copy).collect()
}

fn write(log: &Log, volume: &Volume, flush: Flush) {
    for (offset, bytes) in bytes_of(log, flush) {
        volume.write_at(offset, &bytes).unwrap();
    }
}

/// Writes whatever there is.
fn flush_all(log: &Log, volume: &Volume) {
    log.request_flush_of_all();
    while let Claim::Flush(flush) = log.claim(1) {
        write(log, volume, flush);
        log.flushed(flush, true, Duration::ZERO);
    }
    assert_eq!(log.durable(), log.next());
}

/// A record as the tests remember it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Written {
    lsn: u64,
    kind: Kind,
    body: Vec<u8>,
}

fn append(log: &Log, kind: Kind, body: &[u8]) -> Written {
    let (front, back) = body.split_at(body.len() / 3);
    let mut stamped = None;
    let lsn = log.append(0, kind, &[front, back], |lsn| stamped = Some(lsn));
    assert_eq!(stamped, Some(lsn));
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(8), 0);
    Written {
        lsn: lsn.0,
        kind,
        body,
    }
}

/// Reads the log to its end.
fn read_all(
    volume: &Volume,
    area: &LogArea,
    start: u64,
    open_epoch: u32,
) -> Result<(Vec<Written>, LogEnd), ReadError> {
    let mut reader = Reader::new(volume, area, &STORE, Lsn(start), open_epoch);
    let mut found = Vec::new();
    while let Some(entry) = reader.next()? {
        found.push(Written {
            lsn: entry.lsn.0,
            kind: entry.kind,
            body: entry.body.to_vec(),
        });
    }
    Ok((found, reader.end()))
}

/// Random bytes, some of them zeros.
fn body(rng: &mut Rng, most: u32) -> Vec<u8> {
    let length = rng.below(most) as usize;
    let zeros = rng.below(4) == 0;
    (0..length)
        .map(|_| if zeros { 0 } else { rng.below(256) as u8 })
        .collect()
}

/// Appends units until `bytes` more are taken.
fn fill(log: &Log, rng: &mut Rng, bytes: u64) -> Vec<Written> {
    let end = log.next().0 + bytes;
    let mut written = Vec::new();
    while log.next().0 < end {
        if rng.below(5) == 0 {
            log.stamp(0);
            continue;
        }
        let most = [60, 300, 20_000][rng.below(3) as usize];
        let body = body(rng, most);
        written.push(append(log, KINDS[rng.below(4) as usize], &body));
    }
    written
}

#[test]
fn many_laps_are_read_back_from_any_checkpoint() {
    for seed in 1..=6 {
        let (volume, area) = place();
        let mut rng = Rng::new(seed);
        let first = (1 + u64::from(rng.below(5000))) * BLOCK;
        let log = Log::on(config(&area, first, first, 1));
        let (mut written, mut start) = (Vec::new(), first);
        while log.next().0 < first + 3 * area.bytes() {
            let bytes = u64::from(rng.below(200_000));
            written.extend(fill(&log, &mut rng, bytes));
            flush_all(&log, &volume);
            if log.next().0 - start > area.bytes() / 2 {
                let (found, end) = read_all(&volume, &area, start, 1).unwrap();
                assert_eq!(found, written, "seed {seed}");
                assert_eq!(end.lsn, log.next());
                assert_eq!(end.open_epoch, 1);
                // A checkpoint, at some record.
                written.drain(..rng.below(written.len() as u32) as usize);
                start = written.first().map_or(log.next().0, |w| w.lsn);
                log.set_start(Lsn(start));
            }
        }
        assert!(matches!(log.claim(0), Claim::Nothing));
    }
}

#[test]
fn a_record_larger_than_a_read_and_a_new_log_are_read_back() {
    let volume = Volume::in_memory(200 << 20, None);
    let area = LogArea::new(0, [(4096, 160 << 20)]).unwrap();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let (found, end) = read_all(&volume, &area, BLOCK, 1).unwrap();
    assert!(found.is_empty());
    assert_eq!(end.lsn, Lsn(BLOCK));
    let mut rng = Rng::new(7);
    let mut written = Vec::new();
    for _ in 0..12 {
        let large: Vec<u8> = (0..(5 << 20) + rng.below(100)).map(|i| i as u8).collect();
        written.push(append(&log, Kind::Structure, &large));
        written.extend(fill(&log, &mut rng, 1000));
        flush_all(&log, &volume);
    }
    let (found, _) = read_all(&volume, &area, BLOCK, 1).unwrap();
    assert!(found == written);
}

/// One I/O's volume offset and bytes.
type Piece = (u64, Vec<u8>);

/// A log of several flushes on a volume that already holds a lap of older log.
struct History {
    volume: Volume,
    area: LogArea,
    start: u64,
    written: Vec<Written>,
    /// The flushes, and what they write.
    flushes: Vec<(Flush, Vec<Piece>)>,
}

/// `flushes` of `bytes` each, of which the first `acknowledged` end before the
/// next begins, and the others are in flight together.
fn history(seed: u64, flushes: usize, bytes: u64, acknowledged: usize) -> History {
    let (volume, area) = place();
    let mut rng = Rng::new(seed);
    let log = Log::on(config(&area, BLOCK, BLOCK, 3));
    // A whole lap and a bit, so that every block holds something stale, and the
    // history itself wraps around the area's end.
    while log.next().0 < 2 * area.bytes() - 20_000 {
        fill(&log, &mut rng, 30_000);
        flush_all(&log, &volume);
        log.set_start(log.next());
    }
    let start = log.next().0;
    let (mut written, mut done) = (Vec::new(), Vec::new());
    for index in 0..flushes {
        written.extend(fill(&log, &mut rng, bytes));
        log.request_flush_of_all();
        let Claim::Flush(flush) = log.claim(0) else {
            panic!("nothing to flush");
        };
        done.push((flush, bytes_of(&log, flush)));
        if index < acknowledged {
            log.flushed(flush, true, Duration::ZERO);
        }
    }
    History {
        volume,
        area,
        start,
        written,
        flushes: done,
    }
}

impl History {
    fn write(&self, index: usize) {
        for (offset, bytes) in &self.flushes[index].1 {
            self.volume.write_at(*offset, bytes).unwrap();
        }
    }

    /// The records that lie below `end` as a whole.
    fn below(&self, end: u64) -> Vec<Written> {
        let whole = |w: &&Written| w.lsn + (HEADER_BYTES + w.body.len()) as u64 <= end;
        self.written.iter().take_while(whole).cloned().collect()
    }

    fn read(&self) -> Result<(Vec<Written>, LogEnd), ReadError> {
        read_all(&self.volume, &self.area, self.start, 3)
    }
}

#[test]
fn a_torn_flush_ends_the_log_at_every_512_bytes() {
    for seed in 1..=3 {
        let history = history(seed, 2, 12_000, 2);
        history.write(0);
        let (flush, writes) = &history.flushes[1];
        let mut reached = flush.start;
        for (offset, bytes) in writes {
            for (sector, part) in bytes.chunks(512).enumerate() {
                let (found, end) = history.read().unwrap();
                // What is not written yet may be there by chance: zeros.
                assert_eq!(found, history.below(end.lsn.0), "seed {seed} at {reached}");
                assert!(found.len() >= history.below(reached).len());
                let at = offset + 512 * sector as u64;
                history.volume.write_at(at, part).unwrap();
                reached += 512;
            }
        }
        let (found, end) = history.read().unwrap();
        assert_eq!(found, history.written);
        assert_eq!(end.lsn.0, flush.end);
    }
}

/// Sectors of an unacknowledged flush reach the drive in any order; what is
/// read is a prefix, and never less than what was acknowledged.
#[test]
fn reordered_sectors_never_give_anything_but_a_prefix() {
    for seed in 1..=200 {
        let history = history(seed % 5 + 1, 3, 33_000, 1);
        let mut rng = Rng::new(seed);
        history.write(0);
        for (_, writes) in &history.flushes[1..] {
            for (offset, bytes) in writes {
                for (sector, part) in bytes.chunks(512).enumerate() {
                    if rng.below(8) > 0 {
                        let at = offset + 512 * sector as u64;
                        history.volume.write_at(at, part).unwrap();
                    }
                }
            }
        }
        let (found, end) = history.read().unwrap();
        assert_eq!(found, history.below(end.lsn.0), "seed {seed}");
        assert!(end.lsn.0 >= history.flushes[0].0.end);
    }
}

/// Two flushes in flight: the second one arrives, the first does not. Stale
/// stamps and paddings lie in the gap.
#[test]
fn nothing_behind_a_hole_is_read() {
    for seed in 1..=20 {
        let (volume, area) = place();
        let mut rng = Rng::new(seed);
        let log = Log::on(config(&area, BLOCK, BLOCK, 1));
        while log.next().0 < area.bytes() + BLOCK {
            // Many stamps and much padding.
            for _ in 0..rng.below(600) {
                log.stamp(0);
            }
            flush_all(&log, &volume);
            log.set_start(log.next());
        }
        let start = log.next().0;
        for _ in 0..rng.below(600) {
            log.stamp(0);
        }
        // More than it takes for the second flush to start beside the first.
        fill(&log, &mut rng, 40_000);
        log.request_flush_of_all();
        let Claim::Flush(first) = log.claim(0) else {
            panic!("a first flush");
        };
        fill(&log, &mut rng, 40_000);
        log.request_flush_of_all();
        let Claim::Flush(second) = log.claim(1) else {
            panic!("a second flush beside the first");
        };
        write(&log, &volume, second);
        assert!(!log.flushed(second, true, Duration::ZERO));
        assert_eq!(log.durable(), Lsn(first.start));
        let (found, end) = read_all(&volume, &area, start, 1).unwrap();
        assert!(found.is_empty(), "seed {seed}");
        assert_eq!(end.lsn, Lsn(start));
        write(&log, &volume, first);
        assert!(log.flushed(first, true, Duration::ZERO));
        assert_eq!(log.durable(), Lsn(second.end));
        let (_, end) = read_all(&volume, &area, start, 1).unwrap();
        assert_eq!(end.lsn, Lsn(second.end));
    }
}

/// A crash leaves a torn flush and, behind the hole, a whole one; the next
/// opening writes up to just before it, and crashes.
#[test]
fn what_an_older_open_epoch_left_behind_a_hole_is_not_read() {
    for seed in 1..=40 {
        let history = history(seed, 3, 33_000, 1);
        let mut rng = Rng::new(seed + 1000);
        // The first is durable, the second torn after some sectors, the third whole.
        history.write(0);
        let (second, writes) = &history.flushes[1];
        let (offset, bytes) = &writes[0];
        let sectors = rng.below((bytes.len() / 512) as u32) as usize;
        history
            .volume
            .write_at(*offset, &bytes[..512 * sectors])
            .unwrap();
        let mut reader = Reader::new(
            &history.volume,
            &history.area,
            &STORE,
            Lsn(history.start),
            3,
        );
        let mut known = 0;
        while let Ok(Some(_)) = reader.next() {
            known += 1;
        }
        let end = reader.end();
        history.write(2);
        let epoch = next_epoch(3);
        let next = seal_tail(&history.volume, &history.area, &STORE, end, epoch).unwrap();
        assert!(next.0 >= end.lsn.0 && next.0.is_multiple_of(BLOCK));
        let log = Log::on(config(&history.area, history.start, next.0, epoch));
        let mut news = Vec::new();
        while log.next().0 + BLOCK <= second.end {
            news.extend(fill(&log, &mut rng, 500));
            if log.next().0.next_multiple_of(BLOCK) > second.end {
                break;
            }
            flush_all(&log, &history.volume);
            let (found, found_end) = history.read().unwrap();
            assert_eq!(found[..known], history.written[..known], "seed {seed}");
            assert_eq!(found[known..], news[..], "seed {seed}");
            assert_eq!(found_end.lsn, log.next());
            if log.next() > next {
                assert_eq!(found_end.open_epoch, epoch);
            }
        }
    }
}

/// A checkpoint vouches for a position behind which only leftovers lie.
#[test]
fn leftovers_at_the_start_are_recognised_by_their_open_epoch() {
    let history = history(3, 2, 9_000, 2);
    history.write(0);
    history.write(1);
    let at = history.flushes[1].0.start;
    let (found, end) = read_all(&history.volume, &history.area, at, 4).unwrap();
    assert!(found.is_empty());
    assert_eq!((end.lsn, end.open_epoch), (Lsn(at), 4));
    let (found, _) = read_all(&history.volume, &history.area, at, 3).unwrap();
    assert!(!found.is_empty());
}

#[test]
fn another_stores_log_is_not_read() {
    let history = history(5, 1, 5_000, 1);
    history.write(0);
    let mut reader = Reader::new(
        &history.volume,
        &history.area,
        &[9; 16],
        Lsn(history.start),
        0,
    );
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.end().lsn, Lsn(history.start));
}

/// Any flipped bit ends the log before it, or, where later records vouch for
/// what is missing, is reported; it never changes what is read.
#[test]
fn flipped_bits_are_never_read_as_records() {
    let history = history(11, 4, 5_000, 4);
    (0..4).for_each(|index| history.write(index));
    let mut rng = Rng::new(99);
    let (mut reported, mut ended) = (0, 0);
    for _ in 0..600 {
        let (flush, writes) = &history.flushes[rng.below(4) as usize];
        let (offset, bytes) = &writes[rng.below(writes.len() as u32) as usize];
        let at = rng.below(bytes.len() as u32) as u64;
        let mut block = bytes.clone();
        block[at as usize] ^= 1 << rng.below(8);
        history.volume.write_at(*offset, &block).unwrap();
        let is_last = *flush == history.flushes[3].0;
        match history.read() {
            Ok((found, end)) => {
                assert_eq!(found, history.below(end.lsn.0));
                // In what is never read, the padding, nothing is lost.
                assert!(is_last || found == history.written, "lost without a word");
                ended += 1;
            }
            Err(ReadError::Lost { position, durable }) => {
                assert!(!is_last && position < durable);
                reported += 1;
            }
            Err(other) => panic!("{other}"),
        }
        history.volume.write_at(*offset, bytes).unwrap();
    }
    assert!(reported > 100 && ended > 100, "{reported} {ended}");
}

#[test]
fn an_older_superblocks_start_that_was_overwritten_is_reported() {
    let (volume, area) = place();
    let mut rng = Rng::new(4);
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    while log.next().0 < area.bytes() + 100 * BLOCK {
        fill(&log, &mut rng, 20_000);
        flush_all(&log, &volume);
        log.set_start(log.next());
    }
    let outcome = read_all(&volume, &area, BLOCK, 1);
    assert!(matches!(
        outcome,
        Err(ReadError::Lost { position: 4096, .. })
    ));
}

#[test]
fn a_record_of_an_unknown_kind_is_named() {
    let (volume, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    append(&log, Kind::Free, b"known");
    flush_all(&log, &volume);
    let on = log.on.as_ref().unwrap();
    let mut block = vec![0; BLOCK as usize];
    area.read(&volume, BLOCK, &mut block).unwrap();
    let mut header = Header::peek(&block, BLOCK, 100).unwrap();
    header.kind = 200;
    let sum = body_checksum(on.seed, &[b"known"]);
    block[..HEADER_BYTES].copy_from_slice(&header.encode(sum));
    area.write(&volume, BLOCK, &block).unwrap();
    let outcome = read_all(&volume, &area, BLOCK, 1);
    let unknown = matches!(
        outcome,
        Err(ReadError::UnknownKind {
            position: BLOCK,
            kind: 200
        })
    );
    assert!(unknown);
}

#[test]
fn a_read_error_is_no_end() {
    let (_, area) = place();
    let small = Volume::in_memory(2 << 20, None);
    let outcome = read_all(&small, &area, BLOCK, 1);
    assert!(matches!(outcome, Err(ReadError::Io(_))));
}

#[test]
fn zeros_are_an_empty_log() {
    let (volume, area) = place();
    volume.write_at(3 << 20, &[0xee; 8192]).unwrap();
    area.fill_with_zeros(&volume).unwrap();
    let mut bytes = vec![1; area.bytes() as usize];
    area.read(&volume, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    let (found, end) = read_all(&volume, &area, 5 * BLOCK, 0).unwrap();
    assert!(found.is_empty());
    assert_eq!(end.lsn, Lsn(5 * BLOCK));
}

// ---- flushing and space --------------------------------------------------------

#[test]
fn a_failed_flush_stays_the_end_of_what_is_durable() {
    let (volume, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let mut rng = Rng::new(1);
    let mut claims = Vec::new();
    for _ in 0..3 {
        fill(&log, &mut rng, 50_000);
        log.request_flush_of_all();
        let Claim::Flush(flush) = log.claim(0) else {
            panic!("up to four at a time");
        };
        write(&log, &volume, flush);
        claims.push(flush);
    }
    assert!(!log.flushed(claims[1], false, Duration::ZERO));
    assert!(!log.flushed(claims[2], true, Duration::ZERO));
    assert!(log.flushed(claims[0], true, Duration::ZERO));
    assert_eq!(log.durable(), Lsn(claims[0].end));
    fill(&log, &mut rng, 50_000);
    log.request_flush_of_all();
    assert!(!log.flush_is_due());
    assert!(matches!(log.claim(0), Claim::Nothing));
}

/// Their flush is not for the sake of a few bytes of the log.
#[test]
fn chunks_are_flushed_beside_another_flush() {
    let (volume, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let append_chunk = |bytes| {
        let lsn = append(&log, Kind::Commit, b"one").lsn;
        log.names_unflushed(Lsn(lsn), bytes);
        log.request_flush(Lsn(lsn));
        log.claim(0)
    };
    let Claim::Flush(first) = append_chunk(4096) else {
        panic!("a flush");
    };
    assert!(log.flushes_volume(first));
    assert_eq!(append_chunk(4096), Claim::Nothing, "a flush for one block");
    let Claim::Flush(second) = append_chunk(28 << 10) else {
        panic!("a flush beside the first");
    };
    assert!(log.flushes_volume(second));
    assert_eq!(append_chunk(4096), Claim::Nothing, "its chunks are flushed");
    for flush in [second, first] {
        write(&log, &volume, flush);
        assert_eq!(log.flushed(flush, true, Duration::ZERO), flush == first);
    }
    assert_eq!(log.durable().0, second.end);
}

#[test]
fn what_completes_during_a_flush_goes_into_the_next() {
    let (volume, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let first = append(&log, Kind::Commit, b"one");
    assert!(
        matches!(log.claim(0), Claim::Nothing),
        "no flush was requested"
    );
    log.request_flush(Lsn(first.lsn));
    let Claim::Flush(flush) = log.claim(0) else {
        panic!("a flush");
    };
    for _ in 0..100 {
        let lsn = append(&log, Kind::Commit, b"more").lsn;
        log.request_flush(Lsn(lsn));
        assert!(matches!(log.claim(1), Claim::Nothing), "one at a time");
    }
    write(&log, &volume, flush);
    assert!(log.flushed(flush, true, Duration::ZERO));
    assert!(log.is_durable(Lsn(first.lsn)));
    let Claim::Flush(second) = log.claim(1) else {
        panic!("the rest");
    };
    assert_eq!(second.start, flush.end);
    write(&log, &volume, second);
    log.flushed(second, true, Duration::from_nanos(5));
    assert_eq!(log.durable(), log.next());
    let counters = log.counters();
    assert_eq!((counters.commits, counters.flushes), (101, 2));
    assert_eq!(counters.bytes, 101 * 40);
    assert_eq!(counters.bytes_written, 4096 + 4096);
    assert_eq!(counters.flush_ns_max, 5);
}

/// Appending beyond all space breaks the log, and overwrites nothing.
#[test]
fn more_than_was_reserved_is_never_durable() {
    let (volume, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let mut rng = Rng::new(1);
    let kept = fill(&log, &mut rng, 100_000);
    flush_all(&log, &volume);
    let end = log.durable();
    fill(&log, &mut rng, MIN_RING_BYTES + 1);
    log.request_flush_of_all();
    assert!(log.flush_is_due());
    assert!(matches!(log.claim(0), Claim::Overrun));
    assert!(matches!(log.claim(0), Claim::Nothing));
    assert_eq!(log.durable(), end);
    let (found, _) = read_all(&volume, &area, BLOCK, 1).unwrap();
    assert_eq!(found, kept);
}

struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn waker() -> (std::sync::Arc<Woken>, std::task::Waker) {
    let woken = std::sync::Arc::new(Woken(AtomicBool::new(false)));
    (woken.clone(), woken.into())
}

#[test]
fn less_urgent_reservations_run_out_first_and_come_back_in_order() {
    let (_, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let take_all = |request: ReservationRequest| {
        let mut rooms = Vec::new();
        while let Some(room) = log.try_reserve(request) {
            rooms.push(room);
        }
        rooms
    };
    let commit = ReservationRequest::records(30_000, ReservationClass::Commit);
    let commits = take_all(commit);
    assert!(!commits.is_empty());
    let structures = take_all(ReservationRequest::structure());
    assert!(!structures.is_empty());
    let systems = take_all(ReservationRequest::records(
        10_000,
        ReservationClass::System,
    ));
    assert!(!systems.is_empty());
    let (commit_woken, commit_waker) = waker();
    let (system_woken, system_waker) = waker();
    let waiting_commit = log.queue_for_reservation(commit, commit_waker);
    let waiting_system = log.queue_for_reservation(
        ReservationRequest::records(10_000, ReservationClass::System),
        system_waker,
    );
    assert!(log.granted(&waiting_commit).is_none() && log.granted(&waiting_system).is_none());
    // Space for the system; a commit would have to be below its own threshold.
    drop(structures);
    assert!(system_woken.0.load(Ordering::SeqCst) && !commit_woken.0.load(Ordering::SeqCst));
    let system = log.granted(&waiting_system).unwrap();
    drop((systems, system));
    assert!(!commit_woken.0.load(Ordering::SeqCst));
    drop(commits);
    assert!(commit_woken.0.load(Ordering::SeqCst));
    drop(log.granted(&waiting_commit).unwrap());
    // Nothing has leaked.
    let (_, waker) = waker();
    let given_up = log.queue_for_reservation(commit, waker);
    log.leave_queue(&given_up);
    assert!(!take_all(commit).is_empty());
    let on = log.on.as_ref().unwrap();
    assert!(!on.reservations.has_waiters());
}

#[test]
fn the_area_slows_commits_then_stops_them_until_a_checkpoint() {
    let (volume, area) = place();
    let log = Log::on(config(&area, BLOCK, BLOCK, 1));
    let mut rng = Rng::new(3);
    let mut last = Duration::ZERO;
    let commit = ReservationRequest::records(100, ReservationClass::Commit);
    let mut delayed = 0;
    let mut wanted_at = None;
    while let Some(room) = log.try_reserve(commit) {
        fill(&log, &mut rng, 10_000);
        drop(room);
        flush_all(&log, &volume);
        let delay = log.commit_delay().unwrap_or_default();
        assert!(delay >= last, "delays grow");
        delayed += u32::from(delay > last);
        last = delay;
        if log.checkpoint_wanted() {
            wanted_at.get_or_insert(log.next().0 * 100 / area.bytes());
        }
    }
    assert!(delayed > 10, "smoothly");
    assert_eq!(wanted_at, Some(25));
    assert!((65..=70).contains(&(log.next().0 * 100 / area.bytes())));
    assert!(
        log.try_reserve(ReservationRequest::records(
            100,
            ReservationClass::Structure
        ))
        .is_some()
    );
    let (woken, waker) = waker();
    let waiting = log.queue_for_reservation(commit, waker);
    assert!(log.granted(&waiting).is_none());
    log.set_start(log.next());
    assert!(woken.0.load(Ordering::SeqCst));
    assert!(log.granted(&waiting).is_some());
    assert!(log.commit_delay().is_none() && !log.checkpoint_wanted());
}

// ---- threads --------------------------------------------------------------------

/// Three writers and a flusher on threads; everything that was appended is read
/// back, each writer's records in its order, and what the flusher called
/// durable was complete.
#[test]
fn writers_on_threads_lose_nothing() {
    const WRITERS: usize = 3;
    const RECORDS: u64 = 20_000;
    let volume = Volume::in_memory(64 << 20, None);
    let area = LogArea::new(0, [(0, 32 << 20)]).unwrap();
    let log = Log::on(LogConfig {
        writers: WRITERS + 1,
        ..config(&area, BLOCK, BLOCK, 1)
    });
    let finished = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (log, finished) = (&log, &finished);
            scope.spawn(move || {
                let mut rng = Rng::new(writer as u64 + 1);
                for number in 0..RECORDS {
                    let request = ReservationRequest::records(300, ReservationClass::Commit);
                    let room = loop {
                        match log.try_reserve(request) {
                            Some(room) => break room,
                            None => std::thread::yield_now(),
                        }
                    };
                    let mut body = vec![writer as u8; 16 + rng.below(280) as usize];
                    body[8..16].copy_from_slice(&number.to_le_bytes());
                    let lsn = log.append(writer, Kind::Commit, &[&body], |_| {});
                    assert!(log.next() > lsn);
                    if rng.below(10) == 0 {
                        log.stamp(writer);
                    }
                    log.request_flush(lsn);
                    drop(room);
                }
                finished.fetch_add(1, Ordering::SeqCst);
            });
        }
        while finished.load(Ordering::SeqCst) < WRITERS as u64 || log.durable() < log.next() {
            if finished.load(Ordering::SeqCst) == WRITERS as u64 {
                log.request_flush_of_all();
            }
            match log.claim(WRITERS) {
                Claim::Flush(flush) => {
                    assert!(log.contiguous_lsn().0 >= flush.end);
                    write(&log, &volume, flush);
                    log.flushed(flush, true, Duration::ZERO);
                }
                Claim::Nothing | Claim::Later => std::thread::yield_now(),
                Claim::Overrun => panic!("space was reserved twice"),
            }
        }
    });
    let (found, end) = read_all(&volume, &area, BLOCK, 1).unwrap();
    assert_eq!(end.lsn, log.next());
    let mut counts = [0u64; WRITERS];
    for record in &found {
        let writer = record.body[0] as usize;
        let number = crate::page::get_u64(&record.body, 8);
        assert_eq!(number, counts[writer], "in order");
        counts[writer] += 1;
    }
    assert_eq!(counts, [RECORDS; WRITERS]);
}

proptest! {
    #[test]
    fn skips_read_back_and_belong_to_one_place(lsn in any::<u64>(), open_epoch in 0..OPEN_EPOCH_LIMIT) {
        let seed = Seed::of(&STORE);
        for skip in [Skip::Word, Skip::Block] {
            let word = skip_word(seed, lsn, open_epoch, skip);
            prop_assert_eq!(layout::read_skip(seed, lsn, word), Some((skip, open_epoch)));
            prop_assert_eq!(layout::read_skip(seed, lsn ^ 4096, word), None);
            prop_assert_eq!(layout::read_skip(Seed::of(&[1; 16]), lsn, word), None);
            // The first half of a record is its length, a multiple of 8.
            prop_assert!(word & 7 != 0);
        }
        prop_assert_eq!(layout::read_skip(seed, lsn, 0), None);
    }
}
