//! Making a backup.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::file::{
    BackupFile, BlockWriter, Blocks, End, Header, Kind, MAP_ENTRIES, Scratch, decode_entries,
    encode_entries,
};
use super::log::LogPart;
use super::source::{CopyBatch, DeadKept, RoundStart, Source};
use super::{BackupOptions, BackupReport, Watch};
use crate::backup::MapEntry;
use crate::canary::{self, Canary};
use crate::engine::{Engine, Runtime};
use crate::error::{BackupError, BackupFileError, StorageError};
use crate::output::{OutputFile, with_suffix};
use crate::page::{Lsn, put_u32, put_u64};
use crate::runtime::Urgency;
use crate::shared::{Address, uuid};
use crate::trace;
use crate::types::LogPosition;

/// Rounds at most: the last one keeps the log, however long it grows.
const MAX_ROUNDS: u64 = 8;
/// Percent of the log's area that may grow during a round. Beyond it the log is let go of, before
/// it slows anybody, and another round copies what has changed.
const LOG_PERCENT: u64 = 35;
/// The same while the pages are copied that only the log names: from there on commits are slowed.
const MAX_LOG_PERCENT: u64 = 50;
/// Words of provisional allocations from which on a block is full; one has up to twice as many.
const PROVISIONAL_WORDS: usize = 1 << 16;
/// Bytes of the state's payload.
pub(super) const STATE_BYTES: usize = 48;

/// Makes a backup; see [`crate::Store::backup`].
pub(crate) fn take(
    runtime: &Runtime,
    to: &Path,
    options: &BackupOptions,
    watch: Watch<'_>,
) -> Result<BackupReport, BackupError> {
    let base = options.since.as_deref().map(BackupFile::open).transpose()?;
    let made_of = [to.to_path_buf(), with_suffix(to, ".partial")];
    if let Some(base) = &base
        && made_of.iter().any(|path| is_same(base.path(), path))
    {
        return Err(BackupError::BackupChain {
            path: to.to_path_buf(),
            reason: "the new backup adds to it, so it has to stay; name another file to write",
        });
    }
    let _span = trace::span!("backup");
    // The store does not close during that.
    let _admitted = runtime.admit(Urgency::Ordinary)?;
    let _running = Running::begin(runtime.engine()?)?;
    let volume = runtime.engine()?.shared.volume()?;
    let output = OutputFile::create_beside(&volume, to, options.overwrite)?;
    if !output.is_regular() && !options.unverified {
        return Err(BackupError::BadOption {
            option: "verify",
            reason: "a FIFO or a device cannot be read back; leave verification out, or name a regular file".to_owned(),
        });
    }
    let report = make(runtime, &output, base.as_ref(), watch)?;
    runtime.engine()?.transactions.copies.has_copied();
    if !options.unverified {
        verify(output.path(), watch)?;
    }
    output.end()?;
    Ok(report)
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// The one backup of a store.
struct Running<'e>(&'e Engine);

impl Running<'_> {
    fn begin(engine: &Engine) -> Result<Running<'_>, BackupError> {
        if engine.transactions.copies.begin() {
            Ok(Running(engine))
        } else {
            Err(BackupError::BackupRunning)
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.log_tasks.release();
        self.0.transactions.copies.end();
    }
}

/// A backup in the making.
struct Taking<'r, 'w> {
    runtime: &'r Runtime,
    writer: BlockWriter,
    watch: Watch<'w>,
    output: &'r OutputFile,
    batch: CopyBatch,
    end: End,
}

fn make(
    runtime: &Runtime,
    output: &OutputFile,
    base: Option<&BackupFile>,
    watch: Watch<'_>,
) -> Result<BackupReport, BackupError> {
    let mut pass = runtime.run(Urgency::Urgent, |local| Source(local).begin_pass())?;
    let header = header(runtime.engine()?, &pass, base)?;
    let mut taking = Taking {
        runtime,
        writer: BlockWriter::create(output, &header)?,
        watch,
        output,
        batch: CopyBatch::new(),
        end: End::default(),
    };
    let mut report = BackupReport {
        rounds: 1,
        ..BackupReport::default()
    };
    let mut known = match base {
        Some(base) => Known::Base(base.map_blocks()),
        None => Known::Nothing,
    };
    let map = loop {
        let (mut map, is_last) = taking.round(&pass, &mut known, report.rounds)?;
        if is_last && let Some((bytes, end)) = taking.end_rounds(&pass, &mut map, report.rounds)? {
            report.log_bytes = bytes;
            report.position = end.map(|end| LogPosition {
                store: pass.store_id,
                lsn: end.0,
            });
            break map;
        }
        known = Known::Round(map);
        pass = runtime.run(Urgency::Urgent, |local| Source(local).begin_pass())?;
        report.rounds += 1;
    };
    report.store_pages = taking.write_map(&map)?;
    report.pages = taking.end.pages;
    report.page_bytes = taking.end.page_bytes;
    report.file_bytes = taking.writer.finish(taking.end)?;
    Ok(report)
}

fn header(
    engine: &Engine,
    pass: &RoundStart,
    base: Option<&BackupFile>,
) -> Result<Header, BackupError> {
    #[allow(
        clippy::disallowed_methods,
        reason = "the date stands in the file's header"
    )]
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // What was replayed in memory is another timeline: its versions and places mean something else
    // than the writer's.
    let replayed = engine.opening.was_replayed();
    let mut header = Header {
        store_id: if replayed { uuid() } else { pass.store_id },
        id: uuid(),
        base: [0; 16],
        generation: 0,
        segment_bytes: engine.shared.config.sizes.bytes,
        // As many as hold the log, also if it has a device of its own.
        log_segments: pass
            .log_bytes
            .div_ceil(u64::from(engine.shared.config.sizes.bytes)) as u32,
        max_log_segments: pass.max_log_segments,
        created: now.map_or(0, |now| now.as_secs()),
    };
    if let Some(base) = base {
        if replayed {
            return Err(BackupError::BackupChain {
                path: base.path().to_path_buf(),
                reason: "a reader of a store that is not closed can add to no backup; make a full one, have the store's writer call `Store::backup`, or close the store first",
            });
        }
        if base.header.store_id != pass.store_id {
            return Err(BackupError::BackupChain {
                path: base.path().to_path_buf(),
                reason: "it is a backup of another store, or was taken while this one was not closed; make a full backup now",
            });
        }
        header.base = base.header.id;
        header.generation = base.header.generation + 1;
    }
    Ok(header)
}

/// Pages copied already, read in order of ids.
enum Known<'b> {
    Nothing,
    Base(Blocks<'b>),
    Round(Scratch),
}

impl Known<'_> {
    /// Reads the entries of the next ids: a whole block of them, or up to `high_water`.
    fn next(
        &mut self,
        first: u64,
        high_water: u64,
        into: &mut Vec<MapEntry>,
    ) -> Result<(), BackupError> {
        let count = (high_water - first).min(MAP_ENTRIES as u64) as usize;
        into.clear();
        match self {
            Known::Nothing => {}
            Known::Round(map) => map.read(first, count, into)?,
            Known::Base(blocks) => match blocks.next()? {
                Some(Kind::Map) => decode_entries(blocks.payload(), into),
                // The map is over: what follows is newer than the base.
                Some(Kind::End) => *self = Known::Nothing,
                _ => {
                    let missing = BackupFileError::Malformed("a part of the map is missing");
                    return Err(blocks.bad(missing).into());
                }
            },
        }
        into.resize(count, MapEntry::default());
        Ok(())
    }
}

impl Taking<'_, '_> {
    fn tell(&mut self, stage: &'static str, done: u64, total: u64) -> Result<(), BackupError> {
        match (self.watch)(stage, done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(BackupError::Interrupted),
        }
    }

    /// Copies every page that `known` does not have; the map of all, and whether no other round is
    /// needed.
    fn round(
        &mut self,
        pass: &RoundStart,
        known: &mut Known<'_>,
        round: u64,
    ) -> Result<(Scratch, bool), BackupError> {
        let stage = if round == 1 {
            "copying"
        } else {
            "copying changes"
        };
        let mut map = Scratch::create(self.output)?;
        let mut window = Vec::with_capacity(MAP_ENTRIES);
        let mut keeps_log = true;
        while map.entries() < pass.high_water {
            let first = map.entries();
            known.next(first, pass.high_water, &mut window)?;
            let mut at = 0;
            while at < window.len() {
                let batch = &mut self.batch;
                let rest = &window[at..];
                self.runtime.run(Urgency::Urgent, |local| {
                    Source(local).copy_some(first + at as u64, rest, batch)
                })?;
                at += self.batch.entries.len();
                map.append(&self.batch.entries)?;
                self.write_images()?;
                self.tell(stage, map.entries(), pass.high_water)?;
            }
            if round < MAX_ROUNDS && keeps_log && self.log_is_long(pass)? {
                keeps_log = false;
                self.runtime.engine()?.log_tasks.release();
            }
        }
        let is_last = keeps_log && (round >= MAX_ROUNDS || !self.log_is_long(pass)?);
        Ok((map, is_last))
    }

    fn log_is_long(&self, pass: &RoundStart) -> Result<bool, BackupError> {
        self.log_exceeds(pass, LOG_PERCENT)
    }

    /// Whether more was logged since the pass began than this part of the log's area.
    fn log_exceeds(&self, pass: &RoundStart, percent: u64) -> Result<bool, BackupError> {
        let log = &self.runtime.engine()?.log;
        Ok(log.area().is_some_and(|area| {
            let grown = log.next().0.saturating_sub(pass.start.0);
            grown * 100 > area.bytes() * percent
        }))
    }

    fn write_images(&mut self) -> Result<(), BackupError> {
        let count = self.batch.images().count();
        if count == 0 {
            return Ok(());
        }
        let mut lengths = vec![0; 4 + 4 * count];
        put_u32(&mut lengths, 0, count as u32);
        let mut parts: Vec<&[u8]> = Vec::with_capacity(1 + count);
        for (at, image) in self.batch.images().enumerate() {
            put_u32(&mut lengths, 4 + 4 * at, image.len() as u32);
            self.end.page_bytes += image.len() as u64;
        }
        self.end.pages += count as u64;
        parts.push(&lengths);
        parts.extend(self.batch.images());
        self.writer.write(Kind::Pages, &parts)
    }

    /// Copies what the log names beyond the last round, writes the log, and lets go of it; the
    /// log's bytes, and up to where the backup has what it says. `None` where the log has grown so
    /// long that another round is better.
    fn end_rounds(
        &mut self,
        pass: &RoundStart,
        map: &mut Scratch,
        round: u64,
    ) -> Result<Option<(u64, Option<Lsn>)>, BackupError> {
        let engine = self.runtime.engine()?;
        if !engine.log.is_on() {
            self.write_state(pass, pass.start)?;
            let reached = engine.opening.reached().filter(|_| pass.log_bytes > 0);
            return Ok(Some((0, reached)));
        }
        self.wait_for_records()?;
        let kept = self
            .runtime
            .run(Urgency::Urgent, |local| Source(local).end_passes())?;
        // Not before: should the log get other extents from here on, then behind what is copied.
        let area = engine.log.area().ok_or(StorageError::Closed)?;
        let volume = engine.shared.volume()?;
        let part = LogPart {
            volume: &volume,
            area: &area,
            pass,
            end: kept.end,
        };
        if !self.copy_missing(&part, map, kept, round)? {
            engine.log_tasks.release();
            return Ok(None);
        }
        self.write_state(pass, part.end)?;
        let bytes = part.write(map, &mut self.writer)?;
        // The rest of the backup needs nothing of the store.
        if !canary::is_on(Canary::HoldLogWhileVerifying) {
            engine.log_tasks.release();
        }
        Ok(Some((bytes, Some(part.end))))
    }

    /// Waits until whatever a task had put into the mapping table is in the log, too. Between the
    /// two a task yields only where it frees chunks or moves pages, and is counted as doing so.
    fn wait_for_records(&self) -> Result<(), BackupError> {
        for worker in 0..self.runtime.config().workers {
            let passed = self.runtime.spawn(Urgency::Urgent, Some(worker), || ());
            passed.join().map_err(|_| StorageError::Closed)?;
        }
        self.runtime.run(Urgency::Urgent, |local| {
            local.engine.pagestore.wait_for_frees(&local.worker)?;
            Ok(local.engine.buffer.wait_for_batches(&local.worker)?)
        })
    }

    /// Copies the pages that the log names and `map` does not have; `false` if the log grows too
    /// long before.
    fn copy_missing(
        &mut self,
        part: &LogPart<'_>,
        map: &mut Scratch,
        mut kept: DeadKept,
        round: u64,
    ) -> Result<bool, BackupError> {
        let missing = part.missing(map)?;
        // However slow the target is: writers need the rest.
        kept.keep_only(missing.iter().map(|(_, at)| Address::from_raw(at.address)));
        let mut done = 0;
        while done < missing.len() {
            if round < MAX_ROUNDS && self.log_exceeds(part.pass, MAX_LOG_PERCENT)? {
                return Ok(false);
            }
            let (batch, rest) = (&mut self.batch, &missing[done..]);
            self.runtime
                .run(Urgency::Urgent, |local| Source(local).copy_at(rest, batch))?;
            for ((page, _), entry) in rest.iter().zip(&self.batch.entries) {
                map.set(page.0, *entry)?;
            }
            done += self.batch.entries.len();
            self.write_images()?;
            self.tell("copying new pages", done as u64, missing.len() as u64)?;
        }
        drop(kept);
        Ok(true)
    }

    fn write_state(&mut self, pass: &RoundStart, end: Lsn) -> Result<(), BackupError> {
        self.end.state_at = self.writer.offset();
        self.end.state_number = self.writer.number();
        let mut state = [0; STATE_BYTES];
        put_u64(&mut state, 0, pass.start.0);
        put_u64(&mut state, 8, end.0);
        put_u64(&mut state, 16, pass.tick);
        put_u32(&mut state, 24, pass.open_epoch);
        self.writer.write(Kind::State, &[&state])?;
        let mut words: Vec<u8> = Vec::new();
        for (token, pages) in &pass.provisional {
            // In pieces, each with its token: a large value has many chunks.
            for pages in pages.chunks(PROVISIONAL_WORDS) {
                words.extend_from_slice(&token.to_le_bytes());
                words.extend_from_slice(&(pages.len() as u64).to_le_bytes());
                pages
                    .iter()
                    .for_each(|page| words.extend_from_slice(&page.0.to_le_bytes()));
                if words.len() >= PROVISIONAL_WORDS * 8 {
                    self.writer.write(Kind::Provisional, &[&words])?;
                    words.clear();
                }
            }
        }
        if words.is_empty() {
            return Ok(());
        }
        self.writer.write(Kind::Provisional, &[&words])
    }

    /// Writes the map; how many pages it names.
    fn write_map(&mut self, map: &Scratch) -> Result<u64, BackupError> {
        self.end.map_at = self.writer.offset();
        self.end.map_number = self.writer.number();
        self.end.entries = map.entries();
        let mut window = Vec::with_capacity(MAP_ENTRIES);
        let mut bytes = Vec::new();
        let (mut first, mut pages) = (0, 0);
        while first < map.entries() {
            map.read(first, MAP_ENTRIES, &mut window)?;
            pages += window.iter().filter(|entry| entry.exists()).count() as u64;
            bytes.clear();
            encode_entries(&window, &mut bytes);
            self.writer.write(Kind::Map, &[&bytes])?;
            first += window.len() as u64;
        }
        Ok(pages)
    }
}

/// Reads the whole file back from the drive.
fn verify(path: &Path, watch: Watch<'_>) -> Result<(), BackupError> {
    let file = BackupFile::open(path)?;
    file.forget_cached();
    let mut blocks = file.blocks();
    while blocks.next()?.is_some() {
        if watch("verifying", blocks.began(), file.length()).is_break() {
            return Err(BackupError::Interrupted);
        }
    }
    Ok(())
}
