//! Making a store of backups: the copies go to new places, the log behind them, and an ordinary
//! recovery does the rest.

use std::ops::ControlFlow;
use std::path::Path;

use isobath_io::{AlignedBuf, Volume};

use super::file::{BackupFile, Blocks, Kind, MAP_ENTRIES, decode_entries};
use super::log::RECORD_HEADER;
use super::take::STATE_BYTES;
use super::{RestoreReport, Watch};
use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::checkpoint::format::{self, Array, Sink, words_per_page};
use crate::checkpoint::log_area;
use crate::checkpoint::{ArrayRoot, SUPERBLOCK_OFFSETS, Superblock};
use crate::error::{BackupFileError, OpenError, RestoreError, StorageError};
use crate::log::record::{self, Body, Copied, Mapped, mapping_body};
use crate::log::{BLOCK, HEADER_BYTES, LogArea, Rewriter};
use crate::page::{self, Lsn, PAGE_SIZE, PageId, PageKind, get_u32, get_u64, offset, put_u64};
use crate::pagestore::{Entry, MAX_GROW_BYTES, summaries};
use crate::shared::{Address, MAX_LENGTH, MAX_SEGMENTS, SegmentSize, uuid};

/// Says that a word holds an address, and no longer the version that is looked for.
const PLACED: u64 = 1 << 63;
/// The number that the pages of the new store's first checkpoint carry.
const CHECKPOINT: u64 = 1;
/// Free segments that a restored store begins with, at least.
const FREE_SEGMENTS: u32 = 12;

/// Opens backups that follow one another.
pub(crate) fn open_chain(paths: &[&Path]) -> Result<Vec<BackupFile>, RestoreError> {
    let mut chain: Vec<BackupFile> = Vec::with_capacity(paths.len());
    for path in paths {
        let file = BackupFile::open(path)?;
        let error = match chain.last() {
            None if !file.header.is_full() => Some(
                "it is an incremental backup; the full backup that it adds to has to come first",
            ),
            None => None,
            Some(before) if before.header.store_id != file.header.store_id => {
                Some("it is a backup of another store than the one before it")
            }
            Some(_) if file.header.is_full() => {
                Some("it is a full backup; only incremental ones can follow another")
            }
            Some(before) if before.header.id != file.header.base => {
                Some("it does not add to the backup before it; one between them is missing")
            }
            Some(_) => None,
        };
        if let Some(reason) = error {
            return Err(RestoreError::BackupChain {
                path: file.path().to_path_buf(),
                reason,
            });
        }
        chain.push(file);
    }
    if chain.is_empty() {
        return Err(OpenError::BadOption {
            option: "backups",
            reason: "a full backup, and those that add to it in order".to_owned(),
        }
        .into());
    }
    Ok(chain)
}

/// The last backup's state other than its pages.
struct BackupState {
    log_start: Lsn,
    log_end: Lsn,
    tick: u64,
    open_epoch: u32,
    provisional: Vec<u64>,
}

impl BackupState {
    fn read(file: &BackupFile) -> Result<BackupState, RestoreError> {
        let mut blocks = file.state_blocks();
        let is_state = blocks.next()? == Some(Kind::State) && blocks.payload().len() == STATE_BYTES;
        if !is_state {
            return Err(blocks
                .bad(BackupFileError::Malformed(
                    "the state is not where it should be",
                ))
                .into());
        }
        let bytes = blocks.payload();
        let mut state = BackupState {
            log_start: Lsn(get_u64(bytes, 0)),
            log_end: Lsn(get_u64(bytes, 8)),
            tick: get_u64(bytes, 16),
            open_epoch: get_u32(bytes, 24),
            provisional: Vec::new(),
        };
        let length = state.log_end.0.wrapping_sub(state.log_start.0);
        let log_bytes =
            u64::from(file.header.restored_log(length)) * u64::from(file.header.segment_bytes);
        let sound = state.log_start <= state.log_end
            && state.log_end.0.is_multiple_of(BLOCK)
            && length <= log_bytes;
        if !sound {
            return Err(blocks
                .bad(BackupFileError::Malformed("the log's ends make no sense"))
                .into());
        }
        while blocks.next()? == Some(Kind::Provisional) {
            let words = blocks.payload().chunks_exact(8);
            state.provisional.extend(words.map(|word| get_u64(word, 0)));
        }
        Ok(state)
    }
}

/// The versions that the last backup's map names, by page id.
fn read_map(file: &BackupFile) -> Result<Vec<u64>, RestoreError> {
    let mut versions = Vec::new();
    let mut blocks = file.map_blocks();
    let mut entries = Vec::with_capacity(MAP_ENTRIES);
    while (versions.len() as u64) < file.end.entries {
        if blocks.next()? != Some(Kind::Map) {
            return Err(blocks
                .bad(BackupFileError::Malformed("a part of the map is missing"))
                .into());
        }
        entries.clear();
        decode_entries(blocks.payload(), &mut entries);
        if entries.is_empty() || entries.iter().any(|entry| entry.version >= PLACED) {
            return Err(blocks
                .bad(BackupFileError::Malformed(
                    "a part of the map makes no sense",
                ))
                .into());
        }
        versions.extend(
            entries
                .iter()
                .map(|entry| if entry.exists() { entry.version } else { 0 }),
        );
    }
    Ok(versions)
}

/// Puts everything onto the volume, the superblocks last.
pub(crate) fn build(
    chain: &[BackupFile],
    volume: &Volume,
    watch: Watch<'_>,
) -> Result<RestoreReport, RestoreError> {
    let Some(last) = chain.last() else {
        return Ok(RestoreReport::default());
    };
    let state = BackupState::read(last)?;
    let superblock = superblock_of(last, &state)?;
    let mut image = Image::new(volume.clone(), &superblock, read_map(last)?);
    image.grow(image.next_segment + FREE_SEGMENTS)?;
    let area = log_area(&superblock);
    if let Some(area) = &area {
        area.fill_with_zeros(volume).map_err(StorageError::Io)?;
    }
    let mut log = area.as_ref().map(|area| {
        let (id, open_epoch) = (&superblock.store_id, superblock.open_epoch);
        Rewriter::new(volume, area, id, open_epoch, state.log_start)
    });
    let mut report = RestoreReport {
        file_bytes: chain.iter().map(BackupFile::length).sum(),
        created: last.header.created,
        ..RestoreReport::default()
    };
    let mut done = 0;
    for (at, file) in chain.iter().enumerate() {
        let is_last = at + 1 == chain.len();
        let mut blocks = file.blocks();
        let mut found = (0, 0);
        let mut ended = false;
        while let Some(kind) = blocks.next()? {
            if ended {
                return Err(blocks
                    .bad(BackupFileError::Malformed("something follows the end"))
                    .into());
            }
            match kind {
                Kind::Pages => take_pages(&blocks, &mut image, &mut found)?,
                Kind::Log if is_last => {
                    report.log_bytes += blocks.payload().len() as u64;
                    take_log(&blocks, &image, log.as_mut(), &state)?;
                }
                Kind::Header => {
                    return Err(blocks
                        .bad(BackupFileError::Malformed("there is a second header"))
                        .into());
                }
                Kind::End => ended = true,
                Kind::State | Kind::Provisional | Kind::Log | Kind::Map => {}
            }
            let total = report.file_bytes;
            if watch("restoring", done + blocks.began(), total) == ControlFlow::Break(()) {
                return Err(RestoreError::Interrupted);
            }
        }
        if !ended || found != (file.end.pages, file.end.page_bytes) {
            return Err(file
                .bad(
                    file.length(),
                    BackupFileError::Malformed("pages are missing"),
                )
                .into());
        }
        done += file.length();
    }
    image.check_complete(last)?;
    if let Some(log) = log {
        log.finish(state.log_end).map_err(StorageError::Io)?;
    }
    (report.pages, report.page_bytes) = (image.placed, image.placed_bytes);
    image.finish(superblock, &state)?;
    Ok(report)
}

/// The lengths of a block's pages, four bytes each, and the pages; `None` if the block is too
/// short.
fn page_lengths(payload: &[u8]) -> Option<(std::slice::ChunksExact<'_, u8>, &[u8])> {
    let count = get_u32(payload.get(..4)?, 0) as usize;
    let (lengths, pages) = payload
        .get(4..)?
        .split_at_checked(count.saturating_mul(4))?;
    Some((lengths.chunks_exact(4), pages))
}

fn superblock_of(file: &BackupFile, state: &BackupState) -> Result<Superblock, RestoreError> {
    let header = &file.header;
    let sizes = SegmentSize::of(header.segment_bytes);
    let log = u64::from(header.restored_log(state.log_end.0 - state.log_start.0));
    let log = log * u64::from(header.segment_bytes);
    let mut superblock = Superblock::new(uuid(), sizes, 0);
    // Without a log there is nothing to recover, unless something was provisional: its end is
    // recovery's, too.
    superblock.clean = state.log_start == state.log_end
        && (state.provisional.is_empty() || canary::is_on(Canary::RestoreAsClosed));
    superblock.next_lsn = state.log_end.0;
    superblock.tick = state.tick;
    superblock.checkpoint = CHECKPOINT;
    superblock.log = LogArea::new(0, [(u64::from(sizes.bytes), log)]);
    superblock.max_log_segments = header.max_log_segments;
    superblock.open_epoch = state.open_epoch;
    superblock.log_start = state.log_start.0;
    superblock.log_epoch = state.open_epoch;
    // Its sizes are verified as those of a store are.
    Superblock::decode(&superblock.encode()).map_err(|_| {
        file.bad(0, BackupFileError::Malformed("the header makes no sense"))
            .into()
    })
}

fn take_pages(
    blocks: &Blocks<'_>,
    image: &mut Image,
    found: &mut (u64, u64),
) -> Result<(), RestoreError> {
    let wrong = |what| blocks.bad(BackupFileError::Malformed(what));
    let payload = blocks.payload();
    let Some((lengths, mut rest)) = page_lengths(payload) else {
        return Err(wrong("a block of pages is too short").into());
    };
    for length in lengths {
        let length = get_u32(length, 0) as usize;
        let Some((page, later)) = rest.split_at_checked(length) else {
            return Err(wrong("a block of pages is too short").into());
        };
        rest = later;
        image.take(page).map_err(|error| match error {
            Refused::Malformed(what) => wrong(what).into(),
            Refused::Failed(error) => error,
        })?;
        *found = (found.0 + 1, found.1 + length as u64);
    }
    Ok(())
}

fn take_log(
    blocks: &Blocks<'_>,
    image: &Image,
    log: Option<&mut Rewriter<'_>>,
    state: &BackupState,
) -> Result<(), RestoreError> {
    let wrong = |what| blocks.bad(BackupFileError::Malformed(what));
    let log = log.ok_or_else(|| wrong("there are records of a log, but no log"))?;
    let mut rest = blocks.payload();
    while !rest.is_empty() {
        let Some((head, more)) = rest.split_at_checked(RECORD_HEADER) else {
            return Err(wrong("a record of the log is too short").into());
        };
        let lsn = Lsn(get_u64(head, 0));
        let length = get_u32(head, 8) as usize;
        let kind = record::Kind::from_byte(head[12]);
        let Some((bytes, later)) = more.split_at_checked(length) else {
            return Err(wrong("a record of the log is too short").into());
        };
        rest = later;
        let end = lsn.0.saturating_add((HEADER_BYTES + length) as u64);
        let kind = kind
            .filter(|_| lsn >= log.position() && lsn.0.is_multiple_of(8) && end <= state.log_end.0);
        let Some(kind) = kind else {
            return Err(wrong("a record of the log is out of its place").into());
        };
        match record::decode(kind, bytes) {
            None => return Err(wrong("a record of the log makes no sense").into()),
            Some(Body::Mapping { token, copies }) => {
                let body = image.own_copies(token, &copies);
                let body = body.ok_or_else(|| wrong("the log names a page that is missing"))?;
                log.record(lsn, kind, &body).map_err(StorageError::Io)?;
            }
            Some(_) => log.record(lsn, kind, bytes).map_err(StorageError::Io)?,
        }
    }
    Ok(())
}

/// Why an image was not taken.
enum Refused {
    Malformed(&'static str),
    Failed(RestoreError),
}

impl From<RestoreError> for Refused {
    fn from(error: RestoreError) -> Refused {
        Refused::Failed(error)
    }
}

/// A segment that is being filled, in memory.
struct Filling {
    segment: Option<u32>,
    cursor: u32,
    entries: Vec<Entry>,
    bytes: AlignedBuf,
}

/// The pages of a new store.
struct Image {
    volume: Volume,
    segment_bytes: u32,
    align: u32,
    /// The next segment that nothing is in, and how many the volume has.
    next_segment: u32,
    segments: u32,
    pages: Filling,
    chunks: Filling,
    /// Four words per segment.
    table: Vec<u64>,
    tick: u64,
    /// By page id: the version that is looked for, or with [`PLACED`] the address.
    words: Vec<u64>,
    placed: u64,
    placed_bytes: u64,
}

impl Image {
    fn new(volume: Volume, superblock: &Superblock, words: Vec<u64>) -> Image {
        let segment_bytes = superblock.sizes.bytes;
        let filling = || Filling {
            segment: None,
            cursor: 0,
            entries: Vec::new(),
            bytes: AlignedBuf::new(segment_bytes as usize),
        };
        Image {
            align: volume.logical_block(),
            volume,
            segment_bytes,
            next_segment: 1 + superblock.log_segments().len() as u32,
            segments: 0,
            pages: filling(),
            chunks: filling(),
            table: Vec::new(),
            tick: superblock.tick,
            words,
            placed: 0,
            placed_bytes: 0,
        }
    }

    /// Has the volume have `segments` segments at least.
    fn grow(&mut self, segments: u32) -> Result<(), RestoreError> {
        let segments = segments.min(MAX_SEGMENTS);
        if segments > self.segments {
            self.volume
                .grow(u64::from(segments) * u64::from(self.segment_bytes))?;
            self.segments = segments;
        }
        Ok(())
    }

    fn take_segment(&mut self) -> Result<u32, RestoreError> {
        let segment = self.next_segment;
        if segment >= MAX_SEGMENTS {
            return Err(StorageError::TooManyPages.into());
        }
        if segment >= self.segments {
            let most = (MAX_GROW_BYTES / u64::from(self.segment_bytes)) as u32;
            let step = (self.segments / 16).clamp(8, most.max(8));
            // The last bit before a limit counts, too.
            self.grow(segment + step)
                .or_else(|_| self.grow(segment + 1))?;
        }
        self.next_segment += 1;
        Ok(segment)
    }

    /// Takes a page or chunk, if it is the one that is looked for.
    fn take(&mut self, image: &[u8]) -> Result<(), Refused> {
        let summary = summaries::size(1) as usize;
        let length = image.len();
        let fits = length >= page::HEADER_SIZE
            && length + summary <= self.segment_bytes as usize
            && length <= MAX_LENGTH as usize
            && length.is_multiple_of(512);
        if !fits {
            return Err(Refused::Malformed("a page has an impossible length"));
        }
        if get_u32(image, offset::CHECKSUM) != crc32c::crc32c(&image[4..]) {
            return Err(Refused::Malformed("a page does not match its own checksum"));
        }
        let is_chunk = match PageKind::from_byte(image[offset::KIND]) {
            Some(PageKind::Leaf | PageKind::Inner) if length == PAGE_SIZE => false,
            Some(PageKind::Chunk) => true,
            _ => return Err(Refused::Malformed("a page is of a wrong kind")),
        };
        let id = get_u64(image, offset::PAGE_ID);
        let version = get_u64(image, offset::LSN);
        let Some(word) = self.words.get(id as usize).filter(|_| id > 0) else {
            // It ended before the last of the backups.
            return Ok(());
        };
        if *word == version && version > 0 {
            let address = self.put(PageId(id), Lsn(version), image, is_chunk)?;
            self.words[id as usize] = PLACED | address.to_raw();
            self.placed += 1;
            self.placed_bytes += length as u64;
        }
        Ok(())
    }

    fn filling(&mut self, is_chunks: bool) -> &mut Filling {
        if is_chunks {
            &mut self.chunks
        } else {
            &mut self.pages
        }
    }

    fn put(
        &mut self,
        id: PageId,
        version: Lsn,
        image: &[u8],
        is_chunk: bool,
    ) -> Result<Address, RestoreError> {
        let length = (image.len() as u32).next_multiple_of(self.align);
        let filling = self.filling(is_chunk);
        let end = filling.cursor + length + summaries::size(filling.entries.len() + 1);
        if filling.segment.is_some() && end > self.segment_bytes {
            self.close(is_chunk)?;
        }
        let segment = match self.filling(is_chunk).segment {
            Some(segment) => segment,
            None => self.take_segment()?,
        };
        let filling = self.filling(is_chunk);
        filling.segment = Some(segment);
        let at = filling.cursor;
        let into = &mut filling.bytes[at as usize..(at + length) as usize];
        into.fill(0);
        into[..image.len()].copy_from_slice(image);
        page::seal(into, id, version, seq_of(segment));
        filling.cursor += length;
        filling.entries.push(Entry {
            page: id,
            offset: at,
            length,
        });
        Ok(Address::new(segment, at, length))
    }

    /// Writes what fills a segment, and its summary.
    fn close(&mut self, is_chunks: bool) -> Result<(), RestoreError> {
        let filling = if is_chunks {
            &mut self.chunks
        } else {
            &mut self.pages
        };
        let Some(segment) = filling.segment.take() else {
            return Ok(());
        };
        let size = summaries::size(filling.entries.len());
        let summary_at = self.segment_bytes - size;
        let (used, rest) = filling.bytes.split_at_mut(summary_at as usize);
        summaries::encode(&filling.entries, segment, seq_of(segment), rest);
        let base = u64::from(segment) * u64::from(self.segment_bytes);
        self.volume
            .write_at(base, &used[..filling.cursor as usize])?;
        self.volume.write_at(base + u64::from(summary_at), rest)?;
        // As the page store counts what no chunk fitted into.
        let waste = summary_at.saturating_sub(filling.cursor) / PAGE_SIZE as u32;
        let waste = if is_chunks { u64::from(waste) } else { 0 };
        let words = [
            seq_of(segment),
            u64::from(summary_at) | waste << 48,
            self.tick,
            u64::MAX,
        ];
        filling.cursor = 0;
        filling.entries.clear();
        let from = segment as usize * words.len();
        self.table
            .resize(self.table.len().max(from + words.len()), 0);
        self.table[from..from + words.len()].copy_from_slice(&words);
        Ok(())
    }

    fn address(&self, id: PageId) -> Option<Address> {
        let word = self.words.get(id.0 as usize)?;
        (word & PLACED != 0).then(|| Address::from_raw(word & !PLACED))
    }

    /// The body of a mapping record, with the places of the copies.
    fn own_copies(&self, token: u64, copies: &[Mapped]) -> Option<Vec<u8>> {
        let mut own = Vec::with_capacity(copies.len());
        for copy in copies {
            match copy.what {
                Copied::Provisional => {
                    own.push(*copy);
                    continue;
                }
                // A backup has its chunks as a whole.
                Copied::UnflushedChunk => return None,
                Copied::Page | Copied::NewChunk | Copied::MovedChunk => {}
            }
            let address = self.address(copy.page)?;
            own.push(Mapped {
                address,
                seq: seq_of(address.segment()),
                ..*copy
            });
        }
        Some(mapping_body(token, &own))
    }

    /// Every page that the map names was found.
    fn check_complete(&self, file: &BackupFile) -> Result<(), RestoreError> {
        if self
            .words
            .iter()
            .any(|word| *word != 0 && *word & PLACED == 0)
        {
            let what = "a page of the store is in none of the backups";
            return Err(file
                .bad(file.end.map_at, BackupFileError::Malformed(what))
                .into());
        }
        Ok(())
    }

    /// Writes the checkpoint, and the superblocks that make a store of all this.
    fn finish(
        mut self,
        mut superblock: Superblock,
        state: &BackupState,
    ) -> Result<(), RestoreError> {
        self.close(false)?;
        self.close(true)?;
        let words = std::mem::take(&mut self.words);
        let table = std::mem::take(&mut self.table);
        let mut pages = Checkpoint {
            image: &mut self,
            open: None,
        };
        let mut directory = Vec::with_capacity(2 * words.len() / words_per_page() as usize + 2);
        for (index, words) in words.chunks(words_per_page() as usize).enumerate() {
            let address = pages.put(format::mapping_page(index as u64), |into| {
                for (at, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
                    let address = Address::from_raw(word & !PLACED);
                    put_u64(into, at * 8, PagePlace::Stored(address).to_word());
                }
            })?;
            directory.extend([address.to_raw(), CHECKPOINT]);
        }
        superblock.directory = format::write(&mut pages, Array::Directory, &directory)?;
        superblock.segment_table = format::write(&mut pages, Array::Segments, &table)?;
        superblock.provisional = if superblock.clean {
            ArrayRoot::EMPTY
        } else {
            format::write(&mut pages, Array::Provisional, &state.provisional)?
        };
        // Room to write in; if there is a limit, cleaning will make it.
        let used = self.next_segment;
        // Without it the store grows when it is opened.
        let _ = self.grow(used + (used / 16).max(FREE_SEGMENTS));
        superblock.segments = self.segments;
        superblock.next_segment_seq = seq_of(self.next_segment);
        superblock.page_high_water = (words.len() as u64).max(PageId::FIRST_FREE.0);
        self.volume.sync()?;
        for (sequence, at) in [2, 1].into_iter().zip(SUPERBLOCK_OFFSETS) {
            superblock.sequence = sequence;
            self.volume.write_at(at, &superblock.encode())?;
        }
        self.volume.sync()?;
        Ok(())
    }
}

/// The sequence number of a segment of a new store: each is filled once.
fn seq_of(segment: u32) -> u64 {
    u64::from(segment)
}

/// Pages of the first checkpoint on their way to the volume.
struct Checkpoint<'i> {
    image: &'i mut Image,
    /// The segment that is being filled, and its next byte.
    open: Option<(u32, u32)>,
}

impl Sink for Checkpoint<'_> {
    type Error = RestoreError;

    fn put(&mut self, id: PageId, fill: impl FnOnce(&mut [u8])) -> Result<Address, RestoreError> {
        let (segment, at) = match self.open {
            Some((segment, at)) if at + PAGE_SIZE as u32 <= self.image.segment_bytes => {
                (segment, at)
            }
            _ => (self.image.take_segment()?, 0),
        };
        self.open = Some((segment, at + PAGE_SIZE as u32));
        let mut bytes = AlignedBuf::new(PAGE_SIZE);
        format::seal(bytes.as_mut_slice(), id, CHECKPOINT, fill);
        let base = u64::from(segment) * u64::from(self.image.segment_bytes);
        self.image.volume.write_at(base + u64::from(at), &bytes)?;
        Ok(Address::new(segment, at, PAGE_SIZE as u32))
    }
}
