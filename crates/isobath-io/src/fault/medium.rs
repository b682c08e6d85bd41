//! The bytes of a faulty device: what reads see, what would survive a power loss, and the writes in between.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::fault::plan::Survivors;
use crate::fault::rng::Rng;

pub(super) const PAGE: u64 = 4096;
pub(super) const SECTOR: u64 = 512;

/// Pages are immutable and shared: between what is visible and what is durable, and between a device and its crash
/// images.
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

#[derive(Default)]
pub(super) struct Medium {
    /// What reads see; `None` is zeros.
    visible: Vec<Option<Page>>,
    /// What is certain to survive.
    durable: Vec<Option<Page>>,
    /// Per page, in the order of execution.
    volatile: PageMap<Vec<Version>>,
}

impl Medium {
    pub(super) fn grow(&mut self, bytes: u64) {
        let pages = bytes.div_ceil(PAGE) as usize;
        self.visible.resize(pages.max(self.visible.len()), None);
        self.durable.resize(pages.max(self.durable.len()), None);
    }

    /// The page that reads see.
    pub(super) fn page(&self, page: u64) -> Option<Page> {
        self.visible.get(page as usize).cloned().flatten()
    }

    /// Executes a write: visible at once, and durable too when it says so.
    pub(super) fn write(&mut self, write: u64, parts: &[PageWrite], durable: bool) {
        for part in parts {
            let Some(visible) = self.visible.get_mut(part.page as usize) else {
                continue;
            };
            merge(visible, part.mask, &part.data);
            let versions = self.volatile.entry(part.page).or_default();
            if durable {
                // What was written before cannot come back over it.
                versions.iter_mut().for_each(|v| v.mask &= !part.mask);
                merge(&mut self.durable[part.page as usize], part.mask, &part.data);
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

    /// Makes the writes that `covered` names durable.
    pub(super) fn flush(&mut self, covered: impl Fn(u64) -> bool) {
        let durable = &mut self.durable;
        self.volatile.retain(|page, versions| {
            for i in 0..versions.len() {
                if !covered(versions[i].write) {
                    continue;
                }
                let (older, rest) = versions.split_at_mut(i);
                let version = &mut rest[0];
                older.iter_mut().for_each(|v| v.mask &= !version.mask);
                merge(&mut durable[*page as usize], version.mask, &version.data);
                version.mask = 0;
            }
            versions.retain(|v| v.mask != 0);
            !versions.is_empty()
        });
    }

    /// Changes bytes of one page in what reads see and in what survives, with no write remembered.
    pub(super) fn alter(&mut self, page: u64, change: impl Fn(&mut [u8; PAGE as usize])) {
        let index = page as usize;
        for side in [&mut self.visible, &mut self.durable] {
            if let Some(slot) = side.get_mut(index) {
                let data = slot.get_or_insert_with(zeros);
                change(Arc::make_mut(data));
            }
        }
        for version in self.volatile.get_mut(&page).into_iter().flatten() {
            change(Arc::make_mut(&mut version.data));
        }
    }

    /// The medium as found after a power loss. `in_flight` are writes that were submitted and not executed.
    pub(super) fn after_power_loss(
        &self,
        survivors: Survivors,
        in_flight: &[(u64, &[PageWrite])],
        unit: u64,
        mut rng: Rng,
    ) -> Medium {
        let mut durable = self.durable.clone();
        match survivors {
            Survivors::None => {}
            Survivors::Executed => durable.clone_from(&self.visible),
            Survivors::Random => {
                let luck = Luck::draw(&mut rng, unit);
                for (page, write, mask, data) in self.candidates(in_flight) {
                    let kept = luck.kept(write, page, mask);
                    if let Some(slot) = durable.get_mut(page as usize) {
                        merge(slot, kept, &data);
                    }
                }
            }
        }
        Medium {
            visible: durable.clone(),
            durable,
            volatile: PageMap::default(),
        }
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

/// Which writes survive one power loss. Decisions are functions of the write (and unit), not of the order of asking.
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
        medium.after_power_loss(Survivors::None, &[], 512, rng)
    }

    #[test]
    fn a_durable_write_is_not_undone_by_an_older_one() {
        let mut medium = Medium::default();
        medium.grow(8192);
        put(&mut medium, 0, 3584, 1024, 1, false);
        put(&mut medium, 1, 3584, 512, 2, true);
        for seed in 0..100 {
            let rng = Rng::new(seed, Purpose::Crash, 0);
            let after = medium.after_power_loss(Survivors::Random, &[], 512, rng);
            assert_eq!(sector(&after, 3584), 2);
            assert!([0, 1].contains(&sector(&after, 4096)));
        }
        medium.flush(|write| write == 0);
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
        medium.flush(|write| write == 3);
        // 3 was executed after 5: what 5 wrote first can never win again.
        assert_eq!(sector(&lost(&medium), 0), 3);
        assert!(medium.volatile.is_empty());
        assert_eq!(sector(&medium, 512), 3);
    }

    #[test]
    fn masks() {
        assert_eq!(sectors(0, 4096), 0xff);
        assert_eq!(sectors(512, 512), 2);
        assert_eq!(sectors(3584, 512), 0x80);
    }
}
