//! The bytes of a faulty device: those that reads see, those that would survive a power loss, and
//! the writes in between.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::device::LOG_OFFSET;
use crate::fault::plan::Survivors;
use crate::fault::rng::Rng;

pub(super) const PAGE: u64 = 4096;
pub(super) const SECTOR: u64 = 512;
/// The first page of the log device.
const LOG_PAGE: u64 = LOG_OFFSET / PAGE;

/// Pages are immutable and shared: between the visible and the durable bytes, and between a
/// device and its crash images.
pub(super) type Page = Arc<[u8; PAGE as usize]>;

/// The part of a write that falls on one page: the sectors of `mask` (bit i: bytes 512 i and on).
#[derive(Clone)]
pub(super) struct PageWrite {
    pub(super) page: u64,
    pub(super) mask: u8,
    pub(super) data: Page,
}

/// A write that reads see and that no flush has covered.
#[derive(Clone)]
struct Version {
    /// Index of the I/O.
    write: u64,
    mask: u8,
    data: Page,
}

/// Page numbers are spread by one multiplication; no two runs hash differently.
#[derive(Default)]
pub(super) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

pub(super) type PageMap<T> = HashMap<u64, T, BuildHasherDefault<PageHasher>>;

/// One of the two devices: the data, or the log.
#[derive(Default)]
struct Side {
    /// The bytes that reads see; `None` is zeros.
    visible: Vec<Option<Page>>,
    /// The bytes that survive for certain.
    durable: Vec<Option<Page>>,
}

impl Side {
    fn grow(&mut self, bytes: u64) {
        let pages = bytes.div_ceil(PAGE) as usize;
        self.visible.resize(pages.max(self.visible.len()), None);
        self.durable.resize(pages.max(self.durable.len()), None);
    }
}

fn is_log(page: u64) -> bool {
    page >= LOG_PAGE
}

#[derive(Default)]
pub(super) struct Medium {
    data: Side,
    log: Side,
    /// Per page of both, in the order of execution.
    volatile: PageMap<Vec<Version>>,
}

impl Medium {
    pub(super) fn grow(&mut self, bytes: u64) {
        self.data.grow(bytes);
    }

    /// Drops everything behind `bytes` bytes, power loss or not.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let pages = bytes.div_ceil(PAGE);
        self.data.visible.truncate(pages as usize);
        self.data.durable.truncate(pages as usize);
        self.volatile
            .retain(|page, _| is_log(*page) || *page < pages);
    }

    pub(super) fn grow_log(&mut self, bytes: u64) {
        self.log.grow(bytes);
    }

    /// The page that reads see.
    pub(super) fn page(&self, page: u64) -> Option<Page> {
        let (side, index) = if is_log(page) {
            (&self.log, page - LOG_PAGE)
        } else {
            (&self.data, page)
        };
        side.visible.get(index as usize).cloned().flatten()
    }

    /// Executes a write: visible at once, and durable too when it says so.
    pub(super) fn write(&mut self, write: u64, parts: &[PageWrite], durable: bool) {
        for part in parts {
            let (side, index) = place(&mut self.data, &mut self.log, part.page);
            let Some(visible) = side.visible.get_mut(index) else {
                continue;
            };
            merge(visible, part.mask, &part.data);
            let versions = self.volatile.entry(part.page).or_default();
            if durable {
                // Earlier writes cannot come back over it.
                versions.iter_mut().for_each(|v| v.mask &= !part.mask);
                merge(&mut side.durable[index], part.mask, &part.data);
                versions.retain(|v| v.mask != 0);
            } else {
                versions.push(Version {
                    write,
                    mask: part.mask,
                    data: part.data.clone(),
                });
            }
            if versions.is_empty() {
                self.volatile.remove(&part.page);
            }
        }
    }

    /// Makes the writes that `covered` names durable; those to the log device only if it is flushed
    /// too.
    pub(super) fn flush(&mut self, covered: impl Fn(u64) -> bool, log_too: bool) {
        let (data, log) = (&mut self.data, &mut self.log);
        self.volatile.retain(|page, versions| {
            if is_log(*page) && !log_too {
                return true;
            }
            let (side, index) = place(data, log, *page);
            for i in 0..versions.len() {
                if !covered(versions[i].write) {
                    continue;
                }
                let (older, rest) = versions.split_at_mut(i);
                let version = &mut rest[0];
                older.iter_mut().for_each(|v| v.mask &= !version.mask);
                merge(&mut side.durable[index], version.mask, &version.data);
                version.mask = 0;
            }
            versions.retain(|v| v.mask != 0);
            !versions.is_empty()
        });
    }

    /// Changes bytes of one page in what reads see and in what survives, with no write remembered.
    pub(super) fn alter(&mut self, page: u64, change: impl Fn(&mut [u8; PAGE as usize])) {
        let (side, index) = place(&mut self.data, &mut self.log, page);
        for pages in [&mut side.visible, &mut side.durable] {
            if let Some(slot) = pages.get_mut(index) {
                let data = slot.get_or_insert_with(zeros);
                change(Arc::make_mut(data));
            }
        }
        for version in self.volatile.get_mut(&page).into_iter().flatten() {
            change(Arc::make_mut(&mut version.data));
        }
    }

    /// The medium as found after a power loss: what survives of the data, and of the log.
    /// `in_flight` are writes that were submitted and not executed.
    pub(super) fn after_power_loss(
        &self,
        survivors: [Survivors; 2],
        in_flight: &[(u64, &[PageWrite])],
        unit: u64,
        mut rng: Rng,
    ) -> Medium {
        let mut after = Medium::default();
        for (to, from, survivors) in [
            (&mut after.data, &self.data, survivors[0]),
            (&mut after.log, &self.log, survivors[1]),
        ] {
            to.durable = match survivors {
                Survivors::Executed => from.visible.clone(),
                Survivors::None | Survivors::Random => from.durable.clone(),
            };
        }
        let luck = [Luck::draw(&mut rng, unit), Luck::draw(&mut rng, unit)];
        for (page, write, mask, data) in self.candidates(in_flight) {
            let which = usize::from(is_log(page));
            if survivors[which] != Survivors::Random {
                continue;
            }
            let kept = luck[which].kept(write, page, mask);
            let (side, index) = place(&mut after.data, &mut after.log, page);
            if let Some(slot) = side.durable.get_mut(index) {
                merge(slot, kept, &data);
            }
        }
        for side in [&mut after.data, &mut after.log] {
            side.visible.clone_from(&side.durable);
        }
        after
    }

    /// All writes that may survive, in order of pages, then of execution, then those in flight.
    fn candidates(&self, in_flight: &[(u64, &[PageWrite])]) -> Vec<(u64, u64, u8, Page)> {
        let mut all = Vec::new();
        for (page, versions) in &self.volatile {
            for v in versions {
                all.push((*page, v.write, v.mask, v.data.clone()));
            }
        }
        for (write, parts) in in_flight {
            for p in *parts {
                all.push((p.page, *write, p.mask, p.data.clone()));
            }
        }
        // Stable: keeps the order of execution within a page, which is not the order of submission.
        all.sort_by_key(|(page, ..)| *page);
        all
    }
}

/// Which device a page is on, and its number there.
fn place<'m>(data: &'m mut Side, log: &'m mut Side, page: u64) -> (&'m mut Side, usize) {
    if is_log(page) {
        (log, (page - LOG_PAGE) as usize)
    } else {
        (data, page as usize)
    }
}

/// Which writes survive one power loss. Decisions are functions of the write (and unit), not of the
/// order of asking.
struct Luck {
    rng: Rng,
    keep: f64,
    tear: f64,
    unit: u64,
}

impl Luck {
    fn draw(rng: &mut Rng, unit: u64) -> Luck {
        let keep = [0.05, 0.3, 0.5, 0.7, 0.95][rng.below(5) as usize];
        let tear = [0.0, 0.1, 0.5][rng.below(3) as usize];
        Luck {
            rng: rng.clone(),
            keep,
            tear,
            unit,
        }
    }

    /// The sectors of `mask` that survive.
    fn kept(&self, write: u64, page: u64, mask: u8) -> u8 {
        let mut rng = self.rng.clone();
        let mut of_write = Rng::new(rng.next(), super::rng::Purpose::Crash, write);
        let torn = of_write.chance(self.tear);
        if !torn {
            return if of_write.chance(self.keep) { mask } else { 0 };
        }
        let mut of_page = Rng::new(of_write.next(), super::rng::Purpose::Crash, page);
        random_units(&mut of_page, self.unit) & mask
    }
}

/// Sectors of a page, each atomic unit in or out by a coin.
pub(super) fn random_units(rng: &mut Rng, unit: u64) -> u8 {
    let bits = rng.next();
    if unit >= PAGE {
        if bits & 1 == 0 { 0 } else { 0xff }
    } else {
        bits as u8
    }
}

pub(super) fn zeros() -> Page {
    Arc::new([0; PAGE as usize])
}

/// Puts the sectors of `mask` into a page.
fn merge(slot: &mut Option<Page>, mask: u8, data: &Page) {
    if mask == 0xff {
        *slot = Some(data.clone());
        return;
    }
    if mask == 0 {
        return;
    }
    let page = Arc::make_mut(slot.get_or_insert_with(zeros));
    for sector in (0..8).filter(|s| mask & 1 << s != 0) {
        let range = sector * SECTOR as usize..(sector + 1) * SECTOR as usize;
        page[range.clone()].copy_from_slice(&data[range]);
    }
}

/// Cuts `bytes`, to be written at `offset`, into pages. Both are multiples of a sector.
pub(super) fn page_writes(offset: u64, bytes: &[u8], parts: &mut Vec<PageWrite>) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let start = (at % PAGE) as usize;
        let n = (PAGE as usize - start).min(rest.len());
        parts.push(PageWrite {
            page: at / PAGE,
            mask: sectors(start, n),
            data: page_of(start, &rest[..n]),
        });
        at += n as u64;
        rest = &rest[n..];
    }
}

/// A page with `bytes` from byte `start` on, the rest zero.
fn page_of(start: usize, bytes: &[u8]) -> Page {
    // A whole page in one copy; the conversion fails for a part of one.
    Page::try_from(Arc::<[u8]>::from(bytes)).unwrap_or_else(|_| {
        let mut data = [0; PAGE as usize];
        data[start..start + bytes.len()].copy_from_slice(bytes);
        Arc::new(data)
    })
}

/// The mask of the sectors of `n` bytes from byte `start` of a page.
pub(super) fn sectors(start: usize, n: usize) -> u8 {
    let (first, count) = (start / SECTOR as usize, n / SECTOR as usize);
    // At most 8 sectors of a page.
    (((1u16 << count) - 1) << first) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::rng::Purpose;

    fn put(medium: &mut Medium, write: u64, offset: u64, len: usize, value: u8, durable: bool) {
        let mut parts = Vec::new();
        page_writes(offset, &vec![value; len], &mut parts);
        medium.write(write, &parts, durable);
    }

    fn sector(medium: &Medium, at: u64) -> u8 {
        let page = medium.page(at / PAGE);
        page.map_or(0, |p| p[(at % PAGE) as usize])
    }

    fn lost(medium: &Medium) -> Medium {
        let rng = Rng::new(0, Purpose::Crash, 0);
        medium.after_power_loss([Survivors::None; 2], &[], 512, rng)
    }

    #[test]
    fn a_durable_write_is_not_undone_by_an_older_one() {
        let mut medium = Medium::default();
        medium.grow(8192);
        put(&mut medium, 0, 3584, 1024, 1, false);
        put(&mut medium, 1, 3584, 512, 2, true);
        for seed in 0..100 {
            let rng = Rng::new(seed, Purpose::Crash, 0);
            let after = medium.after_power_loss([Survivors::Random; 2], &[], 512, rng);
            assert_eq!(sector(&after, 3584), 2);
            assert!([0, 1].contains(&sector(&after, 4096)));
        }
        medium.flush(|write| write == 0, false);
        assert_eq!(
            (sector(&lost(&medium), 3584), sector(&lost(&medium), 4096)),
            (2, 1)
        );
    }

    #[test]
    fn a_flush_covers_what_it_covers() {
        let mut medium = Medium::default();
        medium.grow(4096);
        put(&mut medium, 5, 0, 512, 5, false);
        put(&mut medium, 3, 0, 1024, 3, false);
        medium.flush(|write| write == 3, false);
        // 3 was executed after 5: what 5 wrote first can never win again.
        assert_eq!(sector(&lost(&medium), 0), 3);
        assert!(medium.volatile.is_empty());
        assert_eq!(sector(&medium, 512), 3);
    }

    #[test]
    fn the_log_device_is_flushed_and_loses_its_cache_on_its_own() {
        let mut medium = Medium::default();
        medium.grow(4096);
        medium.grow_log(4096);
        put(&mut medium, 0, 0, 512, 1, false);
        put(&mut medium, 1, LOG_OFFSET, 512, 2, false);
        let values = |medium: &Medium| (sector(medium, 0), sector(medium, LOG_OFFSET));
        assert_eq!(values(&medium), (1, 2));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let rng = Rng::new(seed, Purpose::Crash, 0);
            let after = medium.after_power_loss([Survivors::Random; 2], &[], 512, rng);
            seen.insert(values(&after));
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
        let rng = || Rng::new(0, Purpose::Crash, 0);
        let kept = [Survivors::None, Survivors::Executed];
        let after = medium.after_power_loss(kept, &[], 512, rng());
        assert_eq!(values(&after), (0, 2));
        medium.flush(|_| true, false);
        assert_eq!(values(&lost(&medium)), (1, 0));
        medium.flush(|_| true, true);
        assert_eq!(values(&lost(&medium)), (1, 2));
    }

    #[test]
    fn masks() {
        assert_eq!(sectors(0, 4096), 0xff);
        assert_eq!(sectors(512, 512), 2);
        assert_eq!(sectors(3584, 512), 0x80);
    }
}
