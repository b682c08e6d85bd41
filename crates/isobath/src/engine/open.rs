//! Creating, opening and closing: superblocks, checkpoints, and what is
//! rebuilt from them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use isobath_flash::policy::{Cause, CleaningPolicy, History, PageWrite};
use isobath_io::Volume;

use super::{Config, Engine, Parts};
use crate::Error;
use crate::buffer::{BufferPool, Place};
use crate::log::Log;
use crate::page::{Lsn, PAGE_SIZE, PageFault, PageId};
use crate::pagestore::checkpoint::{Array, LoadError, Reader, Writer};
use crate::pagestore::{
    Address, ArrayRoot, Closing, Content, FORMAT_VERSION, MAX_SEGMENTS, PageIds, Request,
    ReservedWords, SUPERBLOCK_OFFSETS, Space, Superblock, Unreadable, footprint, summaries,
};

/// Words per segment in a checkpoint.
const SEGMENT_WORDS: u64 = 4;
/// Segments of a new volume.
const FIRST_SEGMENTS: u32 = 32;
/// Page ids for which address space is reserved: 16 TiB of pages.
const MAX_PAGES: u64 = 1 << 32;

/// An engine and its volume's superblock, as create and open make them.
pub(crate) struct Opened {
    pub(crate) engine: Arc<Engine>,
    pub(crate) superblock: Superblock,
}

fn memory(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Memory {
        what,
        source: Arc::new(source),
    }
}

fn reserve_tables(frames: u32, segments: u32) -> Result<(BufferPool, ReservedWords), Error> {
    debug_assert!(segments <= MAX_SEGMENTS);
    let pool = BufferPool::new(frames, MAX_PAGES).map_err(memory("the buffer pool"))?;
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
) -> Result<Opened, Error> {
    config.block_bytes = volume.logical_block();
    let segment_bytes = config.segment_bytes;
    let most = volume.limit().unwrap_or(u64::MAX) / u64::from(segment_bytes);
    let segments = u64::from(FIRST_SEGMENTS).min(most) as u32;
    if segments < FIRST_SEGMENTS {
        return Err(Error::BadOption {
            option: "volume_limit_bytes",
            reason: format!(
                "a volume needs at least {FIRST_SEGMENTS} segments of {segment_bytes} bytes"
            ),
        });
    }
    let (pool, seqs) = reserve_tables(frames, segments)?;
    volume.grow(u64::from(segments) * u64::from(segment_bytes))?;
    let superblock = Superblock {
        sequence: 1,
        store_id,
        segment_bytes,
        segments,
        clean: false,
        next_lsn: 1,
        next_segment_seq: 1,
        tick: 0,
        page_high_water: PageId::FIRST_FREE.0,
        checkpoint: 0,
        segment_table: ArrayRoot {
            length: 0,
            root: Address::NONE,
        },
        mapping: ArrayRoot {
            length: 0,
            root: Address::NONE,
        },
    };
    write_superblock(&volume, &superblock)?;
    let space = Space::new(segments, segment_bytes, volume.logical_block(), policy);
    let engine = Engine::new(Parts {
        config,
        pool,
        log: Log::off(Lsn(1)),
        volume,
        seqs,
        space,
        ids: PageIds::new(PageId::FIRST_FREE.0),
        allocated_bytes: 0,
        claimed_bytes: 0,
    });
    Ok(Opened { engine, superblock })
}

/// Reads the newer of the two superblocks.
///
/// # Errors
///
/// What is wrong with the volume.
pub(crate) fn read_superblock(volume: &Volume, paths: &[PathBuf]) -> Result<Superblock, Error> {
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
            Err(Unreadable::Foreign) => {}
            Err(_) if matches!(worst, Unreadable::Newer { .. }) => {}
            Err(reason) => worst = reason,
        }
    }
    let paths = paths.to_vec();
    match (best, worst) {
        // A store that a newer version has opened; one whose version number
        // alone is damaged has its other superblock.
        (
            _,
            Unreadable::Newer {
                version,
                matches: true,
            },
        )
        | (None, Unreadable::Newer { version, .. }) => Err(Error::NewerFormat {
            paths,
            found: version,
            known: FORMAT_VERSION,
        }),
        (Some(superblock), _) => Ok(superblock),
        (None, Unreadable::Damaged) => Err(Error::SuperblockDamaged { paths }),
        (None, Unreadable::Foreign) => Err(Error::NotAStore { paths }),
    }
}

/// Writes a superblock to the place that its sequence number chooses.
pub(crate) fn write_superblock(volume: &Volume, superblock: &Superblock) -> Result<(), Error> {
    let place = SUPERBLOCK_OFFSETS[superblock.sequence as usize % 2];
    volume.write_at(place, &superblock.encode())?;
    volume.sync()?;
    Ok(())
}

/// Opens the store on `volume`, whose superblock has been read.
///
/// # Errors
///
/// What is wrong with the checkpoint; nothing was changed on the volume then.
pub(crate) fn open(
    volume: Volume,
    superblock: Superblock,
    paths: &[PathBuf],
    mut config: Config,
    frames: u32,
    policy: Box<dyn CleaningPolicy>,
) -> Result<Opened, Error> {
    config.block_bytes = volume.logical_block();
    if !superblock.clean {
        return Err(Error::NotClosedCleanly {
            paths: paths.to_vec(),
        });
    }
    let (segments, segment_bytes) = (superblock.segments, superblock.segment_bytes);
    let expected = u64::from(segments) * u64::from(segment_bytes);
    if volume.len() < expected {
        return Err(Error::Truncated {
            paths: paths.to_vec(),
            found: volume.len(),
            expected,
        });
    }
    let (pool, seqs) = reserve_tables(frames, segments)?;
    let reader = Reader {
        volume: &volume,
        segment_bytes: u64::from(segment_bytes),
        segments,
        sequence: superblock.checkpoint,
    };
    let mut words = vec![[0u64; SEGMENT_WORDS as usize]; segments as usize];
    reader
        .read(Array::Segments, superblock.segment_table, |index, word| {
            let (segment, field) = (index / SEGMENT_WORDS, index % SEGMENT_WORDS);
            if let Some(words) = words.get_mut(segment as usize) {
                words[field as usize] = word;
            }
        })
        .map_err(load_error)?;
    let mapped = load_mapping(&reader, &superblock, &pool)?;
    let mut space = Space::new(segments, segment_bytes, volume.logical_block(), policy);
    space.restore(&words, &mapped.live, mapped.chunk_bytes, &seqs);
    space.now = superblock.tick;
    space.next_seq = superblock.next_segment_seq;
    let engine = Engine::new(Parts {
        config,
        pool,
        log: Log::off(Lsn(superblock.next_lsn)),
        volume,
        seqs,
        space,
        ids: mapped.ids,
        allocated_bytes: mapped.bytes,
        claimed_bytes: mapped.footprint,
    });
    Ok(Opened { engine, superblock })
}

/// Notes on the volume that a writer has the store open. Before this, opening
/// has changed nothing; after it, only a checkpoint makes the store whole.
///
/// # Errors
///
/// Any of the volume's.
pub(crate) fn mark_open(engine: &Engine, superblock: &mut Superblock) -> Result<(), Error> {
    superblock.clean = false;
    // Both of them: were only one to say "open" and be damaged later, the
    // other would vouch for a checkpoint that is overwritten by then.
    for _ in SUPERBLOCK_OFFSETS {
        superblock.sequence += 1;
        write_superblock(&engine.volume()?, superblock)?;
    }
    Ok(())
}

/// What the checkpointed mapping table says.
struct Mapped {
    /// Live bytes and pages per segment.
    live: Vec<(u32, u32)>,
    bytes: u64,
    /// Of these, chunks of large values.
    chunk_bytes: u64,
    footprint: u64,
    ids: PageIds,
}

fn load_mapping(
    reader: &Reader<'_>,
    superblock: &Superblock,
    pool: &BufferPool,
) -> Result<Mapped, Error> {
    let mut live = vec![(0u32, 0u32); superblock.segments as usize];
    let (mut bytes, mut chunk_bytes, mut taken) = (0, 0, 0);
    let mut bad: Option<(u64, Address)> = None;
    reader
        .read(Array::Mapping, superblock.mapping, |id, word| {
            let Place::Stored(address) = Place::from_word(word) else {
                return;
            };
            let end = u64::from(address.offset()) + u64::from(address.length());
            let fits = end <= u64::from(superblock.segment_bytes)
                && address.length() > 0
                && address.segment() > 0;
            match live.get_mut(address.segment() as usize) {
                Some(live) if fits => {
                    *live = (live.0.saturating_add(address.length()), live.1 + 1);
                    let length = u64::from(address.length());
                    bytes += length;
                    taken += footprint(address.length());
                    if length != PAGE_SIZE as u64 {
                        chunk_bytes += length;
                    }
                    pool.mapping.set(PageId(id), Place::Stored(address));
                }
                _ => bad = bad.or(Some((id, address))),
            }
        })
        .map_err(load_error)?;
    let overfull = live
        .iter()
        .position(|live| live.0 > superblock.segment_bytes);
    if let Some(segment) = overfull {
        bad = bad.or(Some((0, Address::new(segment as u32, 0, 0))));
    }
    if let Some((page, address)) = bad {
        return Err(Error::Damaged {
            page,
            offset: 0,
            fault: PageFault::Misplaced {
                segment: address.segment(),
                offset: address.offset(),
            },
        });
    }
    let mut ids = PageIds::new(superblock.page_high_water);
    ids.adopt_free(&pool.mapping);
    Ok(Mapped {
        live,
        bytes,
        chunk_bytes,
        footprint: taken,
        ids,
    })
}

fn load_error(error: LoadError) -> Error {
    match error {
        LoadError::Io(source) => Error::Io(source),
        LoadError::Damaged {
            page,
            offset,
            fault,
        } => Error::Damaged {
            page,
            offset,
            fault,
        },
    }
}

/// Writes the final checkpoint. All pages have been written back and every
/// worker has stopped.
///
/// # Errors
///
/// Any of the volume's; the store then counts as not closed.
pub(crate) fn checkpoint(engine: &Engine, superblock: &Superblock) -> Result<Superblock, Error> {
    let volume = engine.volume()?;
    let mut space = engine.space.lock();
    let mut closing: Vec<Closing> = Vec::new();
    space.close_all(&mut closing);
    let mut next = superblock.clone();
    next.sequence += 1;
    next.checkpoint = next.sequence;
    let writer = Writer {
        volume: &volume,
        segment_bytes: u64::from(engine.config.segment_bytes),
        sequence: next.sequence,
    };
    let high_water = engine.ids.lock().high_water();
    let mapping = &engine.pool.mapping;
    let stored = |id: u64| stored_word(engine, mapping.place(PageId(id)));
    let mut place = |id: PageId| place_one(engine, &mut space, id, &mut closing);
    next.mapping = writer.write(Array::Mapping, high_water, stored, &mut place)?;
    let segments = space.segments();
    // The table is taken before its own pages are placed: those segments hold
    // nothing but the checkpoint, which the next opening does not need.
    let words: Vec<[u64; 4]> = (0..segments)
        .map(|segment| space.to_words(segment, &engine.seqs))
        .collect();
    let word =
        |index: u64| words[(index / SEGMENT_WORDS) as usize][(index % SEGMENT_WORDS) as usize];
    let mut place = |id: PageId| place_one(engine, &mut space, id, &mut closing);
    let count = u64::from(segments) * SEGMENT_WORDS;
    next.segment_table = writer.write(Array::Segments, count, word, &mut place)?;
    space.close_all(&mut closing);
    for closing in &closing {
        let mut bytes = vec![0; summaries::size(closing.entries.len()) as usize];
        let at = Address::new(closing.segment, closing.offset, bytes.len() as u32);
        summaries::encode(
            &closing.entries,
            closing.segment,
            engine.seq_of(at),
            &mut bytes,
        );
        volume.write_at(engine.offset_of(at), &bytes)?;
    }
    volume.sync()?;
    next.segments = segments;
    next.clean = true;
    next.next_lsn = engine.log.next().0;
    next.next_segment_seq = space.next_seq;
    next.tick = space.now;
    next.page_high_water = high_water;
    write_superblock(&volume, &next)?;
    // Either of them is enough to open the store.
    next.sequence += 1;
    write_superblock(&volume, &next)?;
    Ok(next)
}

/// The mapping word to store: resident pages are where their frames say.
fn stored_word(engine: &Engine, place: Place) -> u64 {
    match place {
        Place::Resident(frame) => {
            let header = engine.pool.frames.header(frame);
            let address = Address::from_raw(header.address.load(Ordering::Acquire));
            if address.is_none() {
                0
            } else {
                Place::Stored(address).to_word()
            }
        }
        Place::Stored(_) => place.to_word(),
        Place::Free | Place::Loading(_) => 0,
    }
}

fn place_one(
    engine: &Engine,
    space: &mut Space,
    page: PageId,
    closing: &mut Vec<Closing>,
) -> Result<Address, Error> {
    let write = PageWrite {
        token: 0,
        bytes: PAGE_SIZE as u32,
        // From the reserve, which is kept large enough for a checkpoint.
        cause: Cause::Relocated,
        history: History::UNKNOWN,
        rate: 0.0,
    };
    let mut placed = Vec::with_capacity(1);
    let request = [Request { page, write }];
    let outcome = space.place(Content::Pages, &request, &engine.seqs, &mut placed, closing);
    match (outcome, placed.first()) {
        (Ok(()), Some(placed)) => Ok(placed.address),
        _ => {
            let used = engine.allocated_bytes.load(Ordering::Relaxed);
            let reason = Arc::new(isobath_io::VolumeError::Device("no segment is free".into()));
            Err(Error::VolumeFull {
                used,
                limit: used,
                reason,
            })
        }
    }
}
