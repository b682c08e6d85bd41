//! A corrupt store as salvage reads it: its pages wherever a sound copy of them is.

use isobath_io::Volume;

use super::search::Index;
use crate::Error;
use crate::backup::Watch;
use crate::buffer::PagePlace;
use crate::checkpoint::format::{Array, LoadError, Reader, mapping_index};
use crate::checkpoint::log_area;
use crate::checkpoint::{SUPERBLOCK_OFFSETS, Superblock};
use crate::log::LogArea;
use crate::log::record::{Body, Operation, decode};
use crate::page::{self, HEADER_SIZE, PAGE_SIZE, PageId, PageKind, get_u32, get_u64, offset};
use crate::recovery::{Loads, LogBase, LogScan, log_reader};
use crate::shared::Address;
use crate::sync::{HashMap, HashSet};

/// Pages of the mapping table that may be corrupt before it is given up.
const MAX_LOST: usize = 1000;

/// The place of each page's newest copy.
struct Mapping {
    /// As the mapping table's, by id.
    words: HashMap<PageId, Address>,
    /// Sequence number of each segment.
    seqs: Vec<u64>,
    /// Parts of the table that could not be read.
    has_holes: bool,
}

/// A page, and whether newer copies of it may have existed.
pub(super) struct Copy {
    pub(super) bytes: Box<[u8; PAGE_SIZE]>,
    pub(super) is_stale: bool,
}

/// A corrupt store.
pub(super) struct Source<'v> {
    pub(super) volume: &'v Volume,
    superblock: Option<Superblock>,
    mapping: Option<Mapping>,
    /// Pages and chunks of what no record confirms, as far as the log can be read: a load
    /// or a value that was not finished.
    provisional: HashSet<PageId>,
    /// Pages whose newest image is in the log.
    images: HashMap<PageId, Box<[u8; PAGE_SIZE]>>,
    index: Option<Index>,
    /// Parts of the store that could not be read.
    pub(super) problems: Vec<String>,
}

impl<'v> Source<'v> {
    /// Reads what the store says of itself, as far as that goes.
    pub(super) fn open(volume: &'v Volume, watch: Watch<'_>, search: bool) -> Result<Self, Error> {
        let mut source = Source {
            volume,
            superblock: None,
            mapping: None,
            provisional: HashSet::default(),
            images: HashMap::default(),
            index: None,
            problems: Vec::new(),
        };
        source.read_superblocks();
        if let Some(superblock) = source.superblock.clone() {
            source.read_mapping(&superblock);
            source.read_log(&superblock);
        }
        if search {
            source.mapping = None;
        }
        if source
            .mapping
            .as_ref()
            .is_none_or(|mapping| mapping.has_holes)
        {
            source.search(watch)?;
        }
        Ok(source)
    }

    fn read_superblocks(&mut self) {
        let mut bad = 0;
        for at in SUPERBLOCK_OFFSETS {
            let mut bytes = [0; PAGE_SIZE];
            let read = self.volume.read_at(at, &mut bytes);
            let decoded = read.ok().and_then(|()| Superblock::decode(&bytes).ok());
            match decoded {
                Some(found) => {
                    let newer = self.superblock.as_ref();
                    if newer.is_none_or(|newer| newer.sequence < found.sequence) {
                        self.superblock = Some(found);
                    }
                }
                // The second one of a store that was never closed is empty.
                None if bytes.iter().all(|byte| *byte == 0) => {}
                None => bad += 1,
            }
        }
        match (&self.superblock, bad) {
            (Some(_), 0) => {}
            (Some(_), _) => self.problems.push(
                "one of the two superblocks is corrupt; if it was the newer one, the newest changes are missing"
                    .to_owned(),
            ),
            (None, _) => self.problems.push(
                "both superblocks are lost: changes that were only in the log are missing".to_owned(),
            ),
        }
    }

    fn read_mapping(&mut self, superblock: &Superblock) {
        let reader = Reader {
            volume: self.volume,
            sizes: superblock.sizes,
            segments: superblock.sizes.whole_in(self.volume.len()),
            sequence: superblock.checkpoint,
            visited: std::cell::RefCell::default(),
        };
        let array = |array, root| {
            let mut words = Vec::new();
            reader
                .read(array, root, |_, word| words.push(word))
                .map(|()| words)
        };
        let tables = array(Array::Segments, superblock.segment_table)
            .and_then(|table| Ok((table, array(Array::Directory, superblock.directory)?)));
        let (table, mut directory) = match tables {
            Ok(tables) => tables,
            Err(error) => {
                let why = load_error(&error);
                self.problems.push(format!(
                    "the checkpoint cannot be read ({why}): which copies of pages are the newest is not known"
                ));
                return;
            }
        };
        let mut mapping = Mapping {
            words: HashMap::default(),
            seqs: table.chunks_exact(4).map(|words| words[0]).collect(),
            has_holes: false,
        };
        for _ in 0..MAX_LOST {
            let high_water = superblock.page_high_water;
            let read = reader.read_mapping(&directory, high_water, |id, word| {
                if let PagePlace::Stored(address) = PagePlace::from_word(word) {
                    mapping.words.insert(PageId(id), address);
                }
            });
            let Err(error) = read else {
                self.mapping = Some(mapping);
                return;
            };
            mapping.has_holes = true;
            let why = load_error(&error);
            let LoadError::Corrupt { page, .. } = error else {
                break;
            };
            let Some(index) = mapping_index(page) else {
                break;
            };
            self.problems.push(format!(
                "a page of the mapping table cannot be read ({why}): where {} pages are is not known",
                crate::checkpoint::format::words_per_page()
            ));
            // A page without an address is passed over.
            directory[2 * index as usize] = 0;
        }
        self.problems
            .push("the mapping table cannot be read".to_owned());
    }

    /// Allocations that nothing had confirmed when the checkpoint was written.
    fn read_provisional(&self, superblock: &Superblock) -> Vec<u64> {
        let reader = Reader {
            volume: self.volume,
            sizes: superblock.sizes,
            segments: superblock.sizes.whole_in(self.volume.len()),
            sequence: superblock.checkpoint,
            visited: std::cell::RefCell::default(),
        };
        let mut words = Vec::new();
        let read = match superblock.clean {
            true => Ok(()),
            false => reader.read(Array::Provisional, superblock.provisional, |_, word| {
                words.push(word)
            }),
        };
        // Nothing unreadable is left out; its reader gets the error.
        read.map_or_else(|_| Vec::new(), |()| words)
    }

    /// Brings the mapping up to the log, and keeps the images in it.
    fn read_log(&mut self, superblock: &Superblock) {
        let Some(area) = log_area(superblock) else {
            return;
        };
        let provisional = self.read_provisional(superblock);
        // Entries that the mapping table lacks may have been lost with a part of it.
        let base = LogBase {
            provisional: &provisional,
            has: &|_| true,
        };
        let read = LogScan::read_as_far(self.volume, &area, superblock, &base);
        let (mut scan, failed) = read.with_reason();
        if failed.is_some() {
            // An unreadable record may have confirmed them.
            scan.keep_provisional();
        }
        if let Some(error) = failed {
            self.problems
                .push(format!("{error}; changes after that are missing"));
        }
        let mut seqs: Vec<(u32, u64)> = scan.seqs.iter().map(|(s, seq)| (*s, *seq)).collect();
        let mut places = Vec::new();
        let plan = scan.apply(superblock, &mut |page, place| places.push((page, place)));
        self.provisional.extend(&plan.orphaned.pages);
        if let Some(mapping) = &mut self.mapping {
            for (segment, seq) in seqs.drain(..) {
                let segment = segment as usize;
                if mapping.seqs.len() <= segment {
                    mapping.seqs.resize(segment + 1, 0);
                }
                mapping.seqs[segment] = mapping.seqs[segment].max(seq);
            }
            for (page, place) in places {
                match place {
                    PagePlace::Stored(address) => drop(mapping.words.insert(page, address)),
                    _ => drop(mapping.words.remove(&page)),
                }
            }
        }
        let mut reader = log_reader(self.volume, &area, superblock);
        while let Ok(Some(record)) = reader.next() {
            let Some(Body::Structure { images, .. }) = decode(record.kind, record.body) else {
                continue;
            };
            for image in images {
                if plan.images.get(&image.page) == Some(&record.lsn) {
                    let mut page = Box::new([0; PAGE_SIZE]);
                    image.expand(&mut page);
                    page[offset::LSN..offset::LSN + 8].copy_from_slice(&record.lsn.0.to_le_bytes());
                    self.images.insert(image.page, page);
                }
            }
        }
    }

    /// The store's log, where it says that it has one.
    pub(super) fn log(&self) -> Option<LogSource<'v>> {
        let superblock = self.superblock.clone()?;
        Some(LogSource {
            volume: self.volume,
            area: log_area(&superblock)?,
            superblock,
        })
    }

    /// Searches the volume, unless that was done.
    pub(super) fn search(&mut self, watch: Watch<'_>) -> Result<(), Error> {
        if self.index.is_none() {
            let (index, unreadable) = Index::search(self.volume, watch)?;
            let found = index.pages().filter(|(page, copies)| {
                let is_page = copies
                    .first()
                    .is_some_and(|copy| copy.kind != PageKind::Chunk);
                is_page && self.provisional.contains(page)
            });
            let left_out = found.count();
            if left_out > 0 {
                self.problems.push(format!(
                    "{left_out} pages of loads that were never finished were found, and left out"
                ));
            }
            if unreadable > 0 {
                let why = "bytes of the volume cannot be read";
                self.problems.push(format!("{unreadable} {why}"));
            }
            self.index = Some(index);
        }
        Ok(())
    }

    /// Whether nothing at all of a store was found.
    pub(super) fn is_nothing(&self) -> bool {
        let found = self.index.as_ref().and_then(|index| index.pages().next());
        self.superblock.is_none() && found.is_none()
    }

    /// Whether the volume was searched.
    pub(super) fn was_searched(&self) -> bool {
        self.index.is_some()
    }

    /// Whether the store itself says where a page is.
    pub(super) fn knows_all(&self) -> bool {
        self.mapping
            .as_ref()
            .is_some_and(|mapping| !mapping.has_holes)
    }

    fn mapped(&self, page: PageId) -> Option<(&Mapping, Address)> {
        let mapping = self.mapping.as_ref()?;
        Some((mapping, *mapping.words.get(&page)?))
    }

    /// Reads the bytes at the stored address of `page`.
    fn read_mapped(&self, page: PageId) -> Option<Result<Vec<u8>, String>> {
        let (mapping, address) = self.mapped(page)?;
        let sizes = self.superblock.as_ref()?.sizes;
        let at = sizes.start_of(address.segment()) + u64::from(address.offset());
        let seq = mapping.seqs.get(address.segment() as usize).copied();
        let mut bytes = vec![0; address.length() as usize];
        let read = self.volume.read_at(at, &mut bytes);
        Some(match read {
            Err(error) => Err(error.to_string()),
            Ok(()) => match page::verify(&bytes, page, seq.unwrap_or(0)) {
                Ok(()) => Ok(bytes),
                Err(corruption) => Err(corruption.to_string()),
            },
        })
    }

    /// The page `id` of a tree. `Err` says why there is none, as far as the volume was searched.
    pub(super) fn page(&self, id: PageId) -> Result<Copy, String> {
        if let Some(image) = self.images.get(&id) {
            let newer = self.index.as_ref().and_then(|index| {
                let newest = index.copies(id).first()?;
                (self.mapping.is_none() && newest.version > get_u64(&**image, offset::LSN))
                    .then_some(newest)
            });
            if newer.is_none() {
                return Ok(Copy {
                    bytes: image.clone(),
                    is_stale: false,
                });
            }
        }
        let mut why = "nothing says where it is".to_owned();
        let mut is_stale = false;
        match self.read_mapped(id) {
            Some(Ok(bytes)) => {
                if let Ok(bytes) = <Box<[u8; PAGE_SIZE]>>::try_from(bytes.into_boxed_slice()) {
                    return Ok(Copy {
                        bytes,
                        is_stale: false,
                    });
                }
                why = "it is no page of a tree".to_owned();
            }
            Some(Err(corruption)) => {
                is_stale = true;
                why = corruption;
            }
            None if self.knows_all() => return Err("it does not exist".to_owned()),
            None => {}
        }
        let copies = self
            .index
            .as_ref()
            .map_or(&[][..], |index| index.copies(id));
        for found in copies.iter().filter(|found| found.kind != PageKind::Chunk) {
            let mut bytes = Box::new([0; PAGE_SIZE]);
            if self.volume.read_at(found.offset, &mut bytes[..]).is_ok() {
                return Ok(Copy { bytes, is_stale });
            }
        }
        Err(why)
    }

    /// The payload of chunk `id` of a value with `stamp`.
    pub(super) fn chunk(&self, id: PageId, stamp: u64) -> Result<Vec<u8>, String> {
        let mut why = "nothing says where it is".to_owned();
        match self.read_mapped(id) {
            Some(Ok(bytes)) => match payload(&bytes, stamp) {
                Some(payload) => return Ok(payload),
                None => why = "it belongs to another value".to_owned(),
            },
            Some(Err(corruption)) => why = corruption,
            None => {}
        }
        let copies = self
            .index
            .as_ref()
            .map_or(&[][..], |index| index.copies(id));
        for found in copies.iter().filter(|found| found.version == stamp) {
            let mut bytes = vec![0; found.length as usize];
            let read = self.volume.read_at(found.offset, &mut bytes);
            if let Some(payload) = read.ok().and_then(|()| payload(&bytes, stamp)) {
                return Ok(payload);
            }
        }
        Err(why)
    }

    /// Pages that may belong to `tree`: where the store says which copies are the newest only
    /// those, else the newest copy of each. With their levels and versions, the highest and newest
    /// first.
    pub(super) fn pages_of(&self, tree: u32) -> Vec<(PageId, u8, u64)> {
        let mut pages: Vec<(PageId, u8, u64)> = self
            .candidates()
            .filter(|(_, of, ..)| *of == tree)
            .map(|(page, _, level, version)| (page, level, version))
            .collect();
        pages.sort_unstable_by_key(|(page, level, version)| {
            (
                std::cmp::Reverse(*level),
                std::cmp::Reverse(*version),
                page.0,
            )
        });
        pages
    }

    /// Trees that pages name as theirs.
    pub(super) fn trees(&self) -> HashSet<u32> {
        self.candidates().map(|(_, tree, ..)| tree).collect()
    }

    /// Page, tree, level and version.
    fn candidates(&self) -> impl Iterator<Item = (PageId, u32, u8, u64)> + '_ {
        let found = self.index.iter().flat_map(Index::pages);
        let found = found.filter_map(|(page, copies)| {
            let newest = copies.first()?;
            let is_current = match self.mapped(page) {
                Some((_, address)) => {
                    let sizes = self.superblock.as_ref()?.sizes;
                    let at = sizes.start_of(address.segment()) + u64::from(address.offset());
                    copies.iter().any(|copy| copy.offset == at)
                        || self.read_mapped(page).is_some_and(|read| read.is_ok())
                }
                None => !self.knows_all(),
            };
            let is_page = newest.kind != PageKind::Chunk
                && !self.images.contains_key(&page)
                && !self.provisional.contains(&page);
            (is_current && is_page).then_some((page, newest.tree, newest.level, newest.version))
        });
        let logged = self.images.iter().map(|(page, image)| {
            let tree = get_u32(&**image, offset::TREE_ID);
            let version = get_u64(&**image, offset::LSN);
            (*page, tree, image[offset::LEVEL], version)
        });
        found.chain(logged)
    }
}

/// The log of a corrupt store, read apart from its pages.
pub(super) struct LogSource<'v> {
    volume: &'v Volume,
    superblock: Superblock,
    area: LogArea,
}

impl LogSource<'_> {
    /// Calls `each` with the operations of every commit, in order, as far as the log can be read;
    /// how many commits.
    pub(super) fn commits(
        &self,
        mut each: impl FnMut(&[Operation<'_>]) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let mut reader = log_reader(self.volume, &self.area, &self.superblock);
        let mut loads = Loads::default();
        while let Ok(Some(record)) = reader.next() {
            if let Some(Body::Structure { tree, loaded, .. }) = decode(record.kind, record.body)
                && let Some(lower) = loaded
            {
                loads.note(tree, lower, record.lsn);
            }
        }
        let mut reader = log_reader(self.volume, &self.area, &self.superblock);
        let mut count = 0;
        while let Ok(Some(record)) = reader.next() {
            match decode(record.kind, record.body) {
                Some(Body::Commit { mut operations, .. }) => {
                    operations.retain(|operation| !loads.came_after(operation, record.lsn));
                    each(&operations)?;
                    count += 1;
                }
                Some(_) => {}
                None => break,
            }
        }
        Ok(count)
    }
}

fn payload(chunk: &[u8], stamp: u64) -> Option<Vec<u8>> {
    let is_chunk = chunk.len() > HEADER_SIZE
        && chunk[offset::KIND] == PageKind::Chunk as u8
        && get_u64(chunk, offset::LSN) == stamp;
    let length = get_u32(chunk, offset::KIND_SPECIFIC) as usize;
    chunk
        .get(HEADER_SIZE..HEADER_SIZE + length)
        .filter(|_| is_chunk)
        .map(<[u8]>::to_vec)
}

fn load_error(error: &LoadError) -> String {
    match error {
        LoadError::Io(source) => source.to_string(),
        LoadError::Corrupt {
            offset, corruption, ..
        } => format!("byte {offset}: {corruption}"),
    }
}
