//! Compares the store that a crash would leave with the running one: mapping words, counts and
//! summaries. For simulations.

use crate::buffer::{Buffer, PagePlace};
use crate::page::{PAGE_SIZE, PageId};
use crate::pagestore::{PageStore, summaries};
use crate::shared::{Address, Shared};
use crate::sync::HashSet;

/// Problems that are listed.
const PROBLEMS_MAX: usize = 10;

/// The layout of a store: a crash leaves the same once all its records are durable.
#[derive(Debug)]
pub(crate) struct Layout {
    /// By page id from the first one on: where it is stored, and whether there is such a page.
    words: Vec<(PagePlace, bool)>,
    provisional: HashSet<PageId>,
    allocated: u64,
    /// Live bytes of each segment that is sealed and not in use.
    live: Vec<Option<u64>>,
}

impl Layout {
    /// That of the store with these parts.
    pub(crate) fn of(buffer: &Buffer, pagestore: &PageStore) -> Layout {
        let count = pagestore.high_water();
        let words = (PageId::FIRST_FREE.0..count).map(PageId).map(|id| {
            let is = PagePlace::from_word(buffer.stored_word(id));
            (is, buffer.pool.mapping.place(id) != PagePlace::Free)
        });
        let words = words.collect();
        let provisional = pagestore.provisional().into_iter();
        let provisional = provisional.flat_map(|(_, pages)| pages);
        // A page that is freed while it is being written becomes obsolete when that write ends.
        let frames = &buffer.pool.frames;
        let writes = (0..frames.count()).any(|frame| frames.header(frame).is_written());
        Layout {
            words,
            provisional: provisional.collect(),
            allocated: pagestore.allocated_bytes(),
            live: pagestore.live_at_rest(!writes),
        }
    }

    /// The differences of the store with these parts, which was opened on the image of a crash.
    pub(crate) fn compare(
        &self,
        shared: &Shared,
        buffer: &Buffer,
        pagestore: &PageStore,
    ) -> Vec<String> {
        let mut problems = self.differences(buffer, pagestore);
        summaries_hold(shared, buffer, pagestore, &mut problems);
        problems.truncate(PROBLEMS_MAX);
        problems
    }

    /// Pages whose place would not be what it is, and counts that do not follow from that.
    fn differences(&self, buffer: &Buffer, pagestore: &PageStore) -> Vec<String> {
        let mut problems = Vec::new();
        let mut live = vec![0u64; self.live.len()];
        let mut given_up = 0;
        let first = PageId::FIRST_FREE.0;
        let count = pagestore.high_water().saturating_sub(first);
        for at in 0..count.max(self.words.len() as u64) {
            let id = PageId(first + at);
            let word = self.words.get(at as usize).copied();
            let (is, exists) = word.unwrap_or((PagePlace::Free, false));
            if let PagePlace::Stored(address) = is {
                live[address.segment() as usize] += u64::from(address.length());
            }
            if self.provisional.contains(&id) {
                given_up += match is {
                    PagePlace::Stored(address) => u64::from(address.length()),
                    _ if exists => PAGE_SIZE as u64,
                    _ => 0,
                };
                continue;
            }
            let then = buffer.pool.mapping.place(id);
            // The newest state of a page may be in the log.
            let in_log = exists && matches!(then, PagePlace::Loading(_));
            if is != then && !in_log {
                let what = format!("page {id} is at {is:?}, after a crash it would be at {then:?}");
                problems.push(what);
            }
        }
        let now = self.allocated.saturating_sub(given_up);
        let then = pagestore.allocated_bytes();
        if now != then {
            let what = format!("{now} bytes are allocated, after a crash it would be {then}");
            problems.push(what);
        }
        for (segment, (counted, live)) in self.live.iter().zip(live).enumerate() {
            if let Some(counted) = counted.filter(|counted| *counted != live) {
                problems.push(format!(
                    "segment {segment} counts {counted} live bytes, the mapping table has {live} there"
                ));
            }
        }
        problems
    }
}

/// Every summary that the segment table names can be read and lists all that lives there.
fn summaries_hold(
    shared: &Shared,
    buffer: &Buffer,
    pagestore: &PageStore,
    problems: &mut Vec<String>,
) {
    let Ok(volume) = shared.volume() else {
        return;
    };
    let mut living: Vec<Vec<Address>> = Vec::new();
    living.resize(pagestore.segments() as usize, Vec::new());
    let mut ids: Vec<Vec<PageId>> = vec![Vec::new(); living.len()];
    let count = pagestore.high_water();
    for id in (PageId::FIRST_FREE.0..count).map(PageId) {
        if let PagePlace::Stored(address) = buffer.pool.mapping.place(id) {
            living[address.segment() as usize].push(address);
            ids[address.segment() as usize].push(id);
        }
    }
    for (segment, (living, ids)) in (0u32..).zip(living.iter().zip(&ids)) {
        let at = pagestore.summary_offset(segment);
        if living.is_empty() || at == 0 {
            continue;
        }
        let length = shared.config.sizes.bytes - at;
        let mut bytes = vec![0; length as usize];
        let from = Address::new(segment, at, length);
        if let Err(error) = volume.read_at(shared.offset_of(from), &mut bytes) {
            problems.push(format!("the summary of segment {segment}: {error}"));
            continue;
        }
        let seq = shared.seq_of(from);
        match summaries::decode(&bytes, segment, seq) {
            Err(corruption) => problems.push(format!(
                "a checkpoint names the summary of segment {segment}, which is not there: {corruption}"
            )),
            Ok(entries) => {
                let listed = |(address, id): (&Address, &PageId)| {
                    let same = entries.iter().filter(|entry| entry.page == *id);
                    same.into_iter().any(|entry| {
                        (entry.offset, entry.length) == (address.offset(), address.length())
                    })
                };
                let lacking = living.iter().zip(ids).filter(|&pair| !listed(pair));
                for (_, id) in lacking {
                    problems.push(format!("the summary of segment {segment} lacks {id}"));
                }
            }
        }
    }
}
