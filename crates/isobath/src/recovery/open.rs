//! Creating and opening: superblocks, reading checkpoint and log, and rebuilding the rest from
//! them.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use isobath_flash::policy::CleaningPolicy;
use isobath_io::{ByteSize, Volume};

use crate::buffer::{BufferPool, PagePlace};
use crate::canary::{self, Canary};
use crate::checkpoint::format::{Array, LoadError, Reader};
use crate::checkpoint::writer::{CheckpointIo, CheckpointState, SEGMENT_WORDS};
use crate::checkpoint::{
    FORMAT_VERSION, SUPERBLOCK_OFFSETS, Superblock, Unreadable, log_area, log_device,
};
use crate::error::{OpenError, StorageError};
use crate::log::{
    BLOCK, Log, LogArea, LogConfig, LogEnd, MAX_TRANSACTION_BYTES, MIN_AREA_BYTES, next_epoch,
};
use crate::page::{Lsn, PAGE_SIZE, PageCorruption, PageId};
use crate::pagestore::{Entry, PageIds, SegmentAllocator, first_segments, worst_case_bytes};
use crate::recovery::scan::{Base, Plan, Scan};
use crate::shared::{Address, Config, MAX_SEGMENTS, ReservedWords, SegmentSize, segment_bytes_for};
use crate::sync::HashMap;

/// The first position of a new log.
const FIRST_LSN: Lsn = Lsn(Superblock::FIRST_LSN);
/// Page ids for which address space is reserved: 16 TiB of pages.
const MAX_PAGES: u64 = 1 << 32;

/// The parts of an engine when a store is created or opened.
pub(crate) struct EngineParts {
    pub(crate) config: Config,
    pub(crate) pool: BufferPool,
    pub(crate) log: Log,
    pub(crate) volume: Volume,
    pub(crate) seqs: ReservedWords,
    pub(crate) space: SegmentAllocator,
    pub(crate) ids: PageIds,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) current: CheckpointState,
    pub(crate) recovering: bool,
    /// The rest of the work, once its workers run.
    pub(crate) plan: Plan,
}

fn memory(what: &'static str) -> impl Fn(std::io::Error) -> StorageError {
    move |source| StorageError::Memory {
        what,
        source: Arc::new(source),
    }
}

pub(crate) fn reserve_tables(
    frames: u32,
    segments: u32,
) -> Result<(BufferPool, ReservedWords), OpenError> {
    debug_assert!(segments <= MAX_SEGMENTS);
    let pool = BufferPool::new(frames, crate::small::max_pages(MAX_PAGES))
        .map_err(memory("the buffer pool"))?;
    let seqs =
        ReservedWords::reserve(u64::from(MAX_SEGMENTS)).map_err(memory("the segment table"))?;
    Ok((pool, seqs))
}

/// Makes a store on an empty volume.
///
/// # Errors
///
/// Any of volume and memory; nothing useful is on the volume then.
pub(crate) fn create(
    volume: Volume,
    mut config: Config,
    frames: u32,
    policy: Box<dyn CleaningPolicy>,
    store_id: [u8; 16],
) -> Result<EngineParts, OpenError> {
    config.block_bytes = volume.logical_block();
    let log_device_bytes = config.log_bytes.min(log_device::area_bytes(&volume)) / BLOCK * BLOCK;
    if log_device_bytes > 0 {
        config.log_segments = 0;
        if log_device_bytes < MIN_AREA_BYTES {
            return Err(OpenError::BadOption {
                option: "log_bytes",
                reason: format!(
                    "a log needs {}, its device holds {}",
                    ByteSize::at_least(MIN_AREA_BYTES),
                    ByteSize(log_device_bytes)
                ),
            });
        }
    }
    let limits = volume
        .limit()
        .into_iter()
        .chain(config.limit_bytes.flatten());
    if let Some(bytes) = volume.limit()
        && config.segments_fit_volume
    {
        // All of its room is there already: a device.
        let log = u64::from(config.log_segments) * u64::from(config.sizes.bytes);
        config.sizes = SegmentSize::of(segment_bytes_for(bytes));
        config.log_segments = log.div_ceil(u64::from(config.sizes.bytes)) as u32;
    }
    let most = limits.min().unwrap_or(u64::MAX);
    if config.log_fits_volume && config.log_segments > 0 {
        let large = u64::from(config.sizes.bytes);
        let share = log_share(most).div_ceil(large);
        config.log_segments = u64::from(config.log_segments).min(share) as u32;
    }
    let max_log_segments = begin_log_small(&mut config);
    let sizes = config.sizes;
    let first = first_segments(most < u64::MAX) + config.log_segments;
    if most < sizes.start_of(first) {
        return Err(OpenError::BadOption {
            option: "volume_limit_bytes",
            reason: format!(
                "a store with these options needs at least {}",
                ByteSize::at_least(sizes.start_of(first))
            ),
        });
    }
    let segments = first;
    let (pool, seqs) = reserve_tables(frames, segments)?;
    volume.grow(sizes.start_of(segments))?;
    let mut superblock = Superblock::new(store_id, sizes, segments);
    let log_end = sizes.start_of(1 + config.log_segments);
    superblock.log = LogArea::new(0, [(sizes.start_of(1), log_end - sizes.start_of(1))]);
    superblock.max_log_segments = max_log_segments;
    superblock.log_device_bytes = log_device_bytes;
    superblock.log_path.clone_from(&config.log_path);
    superblock.limit_segments = limit_segments(config.limit_bytes.flatten(), sizes);
    superblock.may_have_large = false;
    let log = log_of(&config, &superblock, FIRST_LSN);
    if let Some(area) = log.area() {
        area.fill_with_zeros(&volume).map_err(StorageError::Io)?;
    }
    log_device::announce(&volume, &superblock)?;
    log_device::confirm(&volume, &superblock)?;
    CheckpointIo::Volume(volume.clone()).superblock(&superblock)?;
    let system = 1 + config.log_segments;
    let align = volume.logical_block();
    let space = SegmentAllocator::new(segments, sizes, align, system, policy);
    Ok(EngineParts {
        config,
        pool,
        log,
        volume,
        seqs,
        space,
        ids: PageIds::new(PageId::FIRST_FREE.0),
        allocated_bytes: 0,
        reserved_bytes: 0,
        current: CheckpointState::of_new(superblock),
        recovering: false,
        plan: Plan::default(),
    })
}

/// Refuses a limit in which no store has space, however little is in it. One below what this store
/// takes already keeps it from growing.
fn check_limit(limit: u64, superblock: &Superblock) -> Result<(), OpenError> {
    let sizes = superblock.sizes;
    let log = superblock.log.as_ref().map_or(0, LogArea::bytes);
    let least = sizes.start_of(first_segments(true)) + log.min(MIN_AREA_BYTES);
    match limit < least {
        true => Err(OpenError::BadOption {
            option: "volume_limit_bytes",
            reason: format!("a store needs at least {}", ByteSize::at_least(least)),
        }),
        false => Ok(()),
    }
}

/// The limit of the volume as a superblock has it: whole segments, 0 for none.
fn limit_segments(bytes: Option<u64>, sizes: SegmentSize) -> u32 {
    bytes.map_or(0, |bytes| sizes.whole_in(bytes).max(1))
}

/// Bytes that the log may take of a volume that is limited to `limit` bytes: a sixteenth.
fn log_share(limit: u64) -> u64 {
    (limit / 16).max(MIN_AREA_BYTES)
}

/// Bytes that the log of a store may grow to: of a limit, also one that the store got later, a
/// sixteenth at most, unless transactions were asked for that need more.
fn max_log_bytes(config: &Config, superblock: &Superblock) -> u64 {
    let sizes = superblock.sizes;
    let most = u64::from(superblock.max_log_segments) * u64::from(sizes.bytes);
    match superblock.limit_segments {
        0 => most,
        _ if config.transaction_bytes > MAX_TRANSACTION_BYTES => most,
        limit => most.min(log_share(sizes.start_of(limit))),
    }
}

/// The log of a store, which goes on at `end`, a whole block where a log is kept.
fn log_of(config: &Config, superblock: &Superblock, end: Lsn) -> Log {
    match log_area(superblock) {
        Some(area) if !config.read_only => Log::on(LogConfig {
            max_bytes: max_log_bytes(config, superblock),
            transaction_bytes: config.transaction_bytes,
            area,
            store_id: superblock.store_id,
            start: Lsn(superblock.log_start),
            next: end,
            open_epoch: superblock.open_epoch,
            writers: config.workers,
        }),
        _ => Log::off(end),
    }
}

/// Makes a new store's log begin small where its size was not given; returns the segments that it
/// may grow to, 0 for a log that does not grow.
fn begin_log_small(config: &mut Config) -> u32 {
    let least = MIN_AREA_BYTES.div_ceil(u64::from(config.sizes.bytes)) as u32;
    match config.log_grows && config.log_segments > least {
        true => std::mem::replace(&mut config.log_segments, least),
        false => 0,
    }
}

/// Reads the newer of the two superblocks.
///
/// # Errors
///
/// The problem of the volume.
pub(crate) fn read_superblock(volume: &Volume, paths: &[PathBuf]) -> Result<Superblock, OpenError> {
    let mut best: Option<Superblock> = None;
    let mut worst = Unreadable::Foreign;
    for offset in SUPERBLOCK_OFFSETS {
        let mut bytes = [0; PAGE_SIZE];
        if offset + PAGE_SIZE as u64 > volume.len() {
            continue;
        }
        volume.read_at(offset, &mut bytes)?;
        match Superblock::decode(&bytes) {
            Ok(found) => {
                if best
                    .as_ref()
                    .is_none_or(|best| found.sequence > best.sequence)
                {
                    best = Some(found);
                }
            }
            Err(reason) => worst = worst.max(reason),
        }
    }
    let (paths, known) = (paths.to_vec(), FORMAT_VERSION);
    match (best, worst) {
        // A store that a newer version has opened; one whose version number
        // alone is corrupt has its other superblock.
        (_, Unreadable::OtherVersion(found)) | (None, Unreadable::MaybeNewer(found))
            if found > known =>
        {
            Err(OpenError::NewerFormat {
                paths,
                found,
                known,
            })
        }
        (Some(superblock), _) => Ok(superblock),
        (None, Unreadable::OtherVersion(found) | Unreadable::MaybeNewer(found)) => {
            Err(OpenError::OlderFormat {
                paths,
                found,
                known,
            })
        }
        (None, Unreadable::Corrupt) => Err(OpenError::SuperblockCorrupt { paths }),
        (None, Unreadable::Foreign) => Err(OpenError::NotAStore { paths }),
    }
}

/// Opens the store on `volume`, whose superblock has been read.
///
/// # Errors
///
/// The problem of the checkpoint or the log; nothing was changed on the
/// volume then.
pub(crate) fn open(
    volume: Volume,
    superblock: Superblock,
    paths: &[PathBuf],
    mut config: Config,
    frames: u32,
    policy: Box<dyn CleaningPolicy>,
) -> Result<EngineParts, OpenError> {
    config.block_bytes = volume.logical_block();
    config.log_path.clone_from(&superblock.log_path);
    if !superblock.clean && !superblock.is_logged() {
        return Err(OpenError::NotClosedCleanly {
            paths: paths.to_vec(),
        });
    }
    log_device::verify(&volume, &superblock, paths)?;
    let sizes = superblock.sizes;
    if let Some(Some(limit)) = config.limit_bytes {
        check_limit(limit, &superblock)?;
    }
    let expected = sizes.start_of(superblock.segments);
    if volume.len() < expected {
        return Err(OpenError::Truncated {
            paths: paths.to_vec(),
            found: volume.len(),
            expected,
        });
    }
    // The volume may have grown after the last checkpoint.
    let segments = superblock.segments.max(sizes.whole_in(volume.len()));
    let (pool, seqs) = reserve_tables(frames, segments)?;
    let loaded = Loaded::read(&volume, &superblock, segments, &pool)?;
    let scan = match log_area(&superblock) {
        Some(area) => {
            let base = Base {
                provisional: &loaded.provisional,
                has: &|page| pool.mapping.place(page) != PagePlace::Free,
            };
            Scan::read(&volume, &area, &superblock, &base)?
        }
        None => Scan::empty(LogEnd {
            lsn: Lsn(superblock.next_lsn),
            open_epoch: superblock.open_epoch,
            is_cut: false,
        }),
    };
    let mut table = loaded.table;
    for (&segment, &seq) in &scan.seqs {
        match table.get_mut(segment as usize) {
            Some(words) if words[0] < seq => *words = [seq, 0, superblock.tick, u64::MAX],
            Some(_) => {}
            None => return Err(misplaced(0, Address::new(segment, 0, 0)).into()),
        }
    }
    let has_chunks = scan.has_chunks && !canary::is_on(Canary::RecoveryForgetsLarge);
    let newest_seq = table.iter().map(|words| words[0]).max().unwrap_or(0);
    let end = scan.end;
    let mut high_water = superblock.page_high_water;
    let plan = scan.apply(&superblock, &mut |page, place| {
        high_water = high_water.max(page.0 + 1);
        pool.mapping.set(page, place);
    });
    if config.read_only && !plan.is_empty() {
        return Err(OpenError::NeedsRecovery {
            paths: paths.to_vec(),
        });
    }
    let mapped = Mapped::of(&superblock, segments, high_water, &pool)?;
    let align = volume.logical_block();
    let mut space = SegmentAllocator::new(segments, sizes, align, 1, policy);
    space.restore(
        superblock.tick,
        &table,
        &mapped.live,
        mapped.chunk_bytes,
        &seqs,
    );
    let of_checkpoint = loaded.current.segments.keys().copied();
    let of_system = superblock.log_segments().into_iter().chain(of_checkpoint);
    space.adopt_system(of_system).map_err(|segment| {
        let place = Address::new(segment.min(MAX_SEGMENTS - 1), 0, 0);
        misplaced(0, place)
    })?;
    // Above whatever a crash left in segments that nothing names.
    space.next_seq = superblock.next_segment_seq.max(newest_seq + 1) + u64::from(segments);
    list_unsummarized(&mut space, high_water, &pool);
    let mut current = loaded.current;
    current.superblock.may_have_large |= has_chunks;
    current.superblock.open_epoch = next_epoch(superblock.open_epoch.max(end.open_epoch));
    if let Some(limit) = config.limit_bytes {
        current.superblock.limit_segments = limit_segments(limit, sizes);
    }
    if current.superblock.max_log_segments > 0 && config.transaction_bytes > MAX_TRANSACTION_BYTES {
        let bytes = Log::bytes_for(config.transaction_bytes);
        let wanted = bytes.div_ceil(u64::from(sizes.bytes)) as u32;
        current.superblock.max_log_segments = current.superblock.max_log_segments.max(wanted);
    }
    let log = log_of(&config, &current.superblock, end.goes_on_at());
    let is_written = !config.read_only;
    Ok(EngineParts {
        config,
        pool,
        log,
        volume,
        seqs,
        space,
        ids: mapped.ids,
        allocated_bytes: mapped.bytes,
        reserved_bytes: mapped.worst_case_bytes,
        current,
        // Of a store that was closed as well: no superblock is written before those that say that
        // it is open.
        recovering: is_written && !canary::is_on(Canary::CheckpointBeforeOpen) || !plan.is_empty(),
        plan,
    })
}

/// Notes what lives in segments that have no summary, for the cleaner.
fn list_unsummarized(space: &mut SegmentAllocator, high_water: u64, pool: &BufferPool) {
    let lacking = (0..space.segments()).any(|segment| space.lacks_summary(segment));
    if !lacking {
        return;
    }
    for id in (PageId::FIRST_FREE.0..high_water).map(PageId) {
        if let PagePlace::Stored(address) = pool.mapping.place(id)
            && space.lacks_summary(address.segment())
        {
            let entry = Entry {
                page: id,
                offset: address.offset(),
                length: address.length(),
            };
            space.add_unsummarized(address.segment(), entry);
        }
    }
}

/// The contents of a checkpoint.
pub(crate) struct Loaded {
    /// Four words per segment of the volume.
    pub(crate) table: Vec<[u64; SEGMENT_WORDS as usize]>,
    pub(crate) provisional: Vec<u64>,
    current: CheckpointState,
}

impl Loaded {
    /// Reads the checkpoint, and its mapping table into the pool's.
    pub(crate) fn read(
        volume: &Volume,
        superblock: &Superblock,
        segments: u32,
        pool: &BufferPool,
    ) -> Result<Loaded, OpenError> {
        let reader = Reader {
            volume,
            sizes: superblock.sizes,
            segments,
            sequence: superblock.checkpoint,
            visited: RefCell::default(),
        };
        let array = |array, root| {
            let mut words = Vec::new();
            reader
                .read(array, root, |_, word| words.push(word))
                .map_err(load_error)?;
            Ok::<_, OpenError>(words)
        };
        let flat = array(Array::Segments, superblock.segment_table)?;
        let mut table = vec![[0; SEGMENT_WORDS as usize]; segments as usize];
        for (words, flat) in table
            .iter_mut()
            .zip(flat.chunks_exact(SEGMENT_WORDS as usize))
        {
            words.copy_from_slice(flat);
        }
        // Closing leaves none open: a list that a version before this one left there may
        // name chunks that were confirmed, or pages of others, and is not acted on.
        let provisional = match superblock.clean {
            true => Vec::new(),
            false => array(Array::Provisional, superblock.provisional)?,
        };
        let directory = array(Array::Directory, superblock.directory)?;
        let mut bad = None;
        reader
            .read_mapping(&directory, superblock.page_high_water, |id, word| {
                if let PagePlace::Stored(address) = PagePlace::from_word(word)
                    && id > 0
                {
                    if address.segment() >= segments {
                        bad = bad.or(Some((id, address)));
                    }
                    pool.mapping.set(PageId(id), PagePlace::Stored(address));
                }
            })
            .map_err(load_error)?;
        if let Some((page, address)) = bad {
            return Err(misplaced(page, address).into());
        }
        let directory: Vec<(Address, u64)> = directory
            .chunks_exact(2)
            .map(|words| (Address::from_raw(words[0] & ((1 << 62) - 1)), words[1]))
            .collect();
        let others = reader.visited.into_inner();
        let mut counts = HashMap::default();
        let pages = directory.iter().map(|(address, _)| address).chain(&others);
        for address in pages.filter(|address| !address.is_none()) {
            *counts.entry(address.segment()).or_insert(0) += 1;
        }
        Ok(Loaded {
            table,
            provisional,
            current: CheckpointState {
                superblock: superblock.clone(),
                directory,
                others,
                segments: counts,
                open: None,
            },
        })
    }
}

fn misplaced(page: u64, address: Address) -> StorageError {
    StorageError::CorruptPage {
        page,
        offset: 0,
        corruption: PageCorruption::Misplaced {
            segment: address.segment(),
            offset: address.offset(),
        },
    }
}

/// The mapping table, brought up to the log.
struct Mapped {
    /// Live bytes and pages per segment.
    live: Vec<(u32, u32)>,
    bytes: u64,
    /// Of these, chunks of large values.
    chunk_bytes: u64,
    worst_case_bytes: u64,
    ids: PageIds,
}

impl Mapped {
    fn of(
        superblock: &Superblock,
        segments: u32,
        high_water: u64,
        pool: &BufferPool,
    ) -> Result<Mapped, OpenError> {
        let log = superblock.log_segments();
        let is_reserved = |segment: u32| segment == 0 || log.binary_search(&segment).is_ok();
        let mut live = vec![(0u32, 0u32); segments as usize];
        let (mut bytes, mut chunk_bytes, mut taken) = (0, 0, 0);
        for id in (PageId::FIRST_FREE.0..high_water).map(PageId) {
            let address = match pool.mapping.place(id) {
                PagePlace::Stored(address) => address,
                // Its newest state is in the log.
                PagePlace::Loading(_) => {
                    bytes += PAGE_SIZE as u64;
                    taken += PAGE_SIZE as u64;
                    continue;
                }
                PagePlace::Free | PagePlace::Resident(_) => continue,
            };
            let end = u64::from(address.offset()) + u64::from(address.length());
            let bytes_there = superblock.sizes.bytes;
            let fits = end <= u64::from(bytes_there)
                && address.length() > 0
                && !is_reserved(address.segment());
            let Some(live) = live.get_mut(address.segment() as usize).filter(|_| fits) else {
                return Err(misplaced(id.0, address).into());
            };
            *live = (live.0.saturating_add(address.length()), live.1 + 1);
            if live.0 > bytes_there {
                return Err(misplaced(id.0, address).into());
            }
            let length = u64::from(address.length());
            bytes += length;
            taken += worst_case_bytes(address.length());
            if length != PAGE_SIZE as u64 {
                chunk_bytes += length;
            }
        }
        let mut ids = PageIds::new(high_water);
        ids.adopt_free(&pool.mapping);
        Ok(Mapped {
            live,
            bytes,
            chunk_bytes,
            worst_case_bytes: taken,
            ids,
        })
    }
}

fn load_error(error: LoadError) -> StorageError {
    match error {
        LoadError::Io(source) => StorageError::Io(source),
        LoadError::Corrupt {
            page,
            offset,
            corruption,
        } => StorageError::CorruptPage {
            page,
            offset,
            corruption,
        },
    }
}
