//! Estimates the shape of a tree from a small part of its pages.

use super::{AttemptError, Tree, ValueKind};
use crate::buffer::{PagePlace, Restart};
use crate::context::ReadContext;
use crate::node::{Image, MalformedNode, Node};
use crate::page::{PageId, get_u64};

/// Pages that are asked for together, if they are missing in memory.
const ASKED_TOGETHER: usize = 64;

/// Attempts to read a tree that others change much.
const MAX_ROUNDS: u32 = 16;

/// Most pages of a level that are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxPages {
    pub(crate) leaves: usize,
    /// Inner pages. If keys differ in length, inner pages differ in their number of leaves: the
    /// more are read, the more evenly leaves are chosen.
    pub(crate) inner: usize,
}

/// An estimate of a tree's contents. Exact if no level has more pages than were read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Levels, that of the leaves included.
    pub(crate) levels: u8,
    pub(crate) leaf_pages: f64,
    pub(crate) inner_pages: f64,
    pub(crate) records: f64,
    /// Bytes of leaves that slots, records and fences take.
    pub(crate) leaf_bytes_used: f64,
    /// Bytes of keys, and of values wherever they lie.
    pub(crate) key_bytes: f64,
    pub(crate) value_bytes: f64,
    /// Values that have chunks of their own, and their bytes.
    pub(crate) large_values: f64,
    pub(crate) large_value_bytes: f64,
    /// Every page was read.
    pub(crate) is_exact: bool,
    /// The last pages that were added have leaves as children.
    is_above_leaves: bool,
}

impl Tree {
    /// Reads at most `max` pages of each level, spread over the tree, and says what all of it
    /// looks like. Others may change the tree during that.
    ///
    /// # Errors
    ///
    /// A failed read, or a page that breaks a rule.
    pub(crate) fn sample<C: ReadContext>(
        &self,
        ctx: &C,
        max: MaxPages,
    ) -> Result<Sample, C::Error> {
        // Bound: with so many concurrent changes, the last read counts as it is.
        for _ in 0..MAX_ROUNDS {
            let (sample, is_sound) = self.sample_once(ctx, max)?;
            if is_sound {
                return Ok(sample);
            }
        }
        Ok(self.sample_once(ctx, max)?.0)
    }

    /// One attempt, and whether it met few pages that were gone by then.
    fn sample_once<C: ReadContext>(
        &self,
        ctx: &C,
        max: MaxPages,
    ) -> Result<(Sample, bool), C::Error> {
        let mut sample = Sample {
            is_exact: true,
            ..Sample::default()
        };
        let mut level = vec![self.root];
        let mut max_pages = max.inner;
        // Pages of the level, for each that is read.
        let mut weight = 1.0;
        // Bound: a level less each time, or fewer pages.
        loop {
            let chosen = spread(&level, max_pages);
            let mut found = Sample::default();
            let mut children = Vec::new();
            let (mut pages, mut leaves, mut read) = (0, 0, 0);
            for together in chosen.chunks(ASKED_TOGETHER) {
                ctx.read_ahead(together);
                if ctx.interleaves() {
                    ctx.next_turn();
                }
                for &id in together {
                    let Some(image) = read_page(ctx, id, id == self.root)? else {
                        continue;
                    };
                    pages += 1;
                    match found.add(self, &image, &mut children) {
                        Ok(is_leaf) => leaves += usize::from(is_leaf),
                        // The id is another page's by now.
                        Err(_) if level.len() > 1 => continue,
                        Err(why) => AttemptError::Corrupt(self.root, why.0).resolve(ctx)?,
                    }
                    read += 1;
                }
            }
            weight *= level.len() as f64 / f64::from(pages.max(1));
            sample.add_level(&found, weight);
            sample.levels += 1;
            let is_sound = 2 * read >= chosen.len() && (leaves == 0 || leaves == read);
            sample.is_exact &= read == level.len();
            if leaves > 0 || children.is_empty() || !is_sound {
                return Ok((sample, is_sound && leaves > 0));
            }
            level = children;
            if found.is_above_leaves {
                max_pages = max.leaves;
            }
        }
    }
}

impl Sample {
    /// Adds pages of a level, each of which stands for `weight` pages.
    fn add_level(&mut self, found: &Sample, weight: f64) {
        for (sum, found) in [
            (&mut self.leaf_pages, found.leaf_pages),
            (&mut self.inner_pages, found.inner_pages),
            (&mut self.records, found.records),
            (&mut self.leaf_bytes_used, found.leaf_bytes_used),
            (&mut self.key_bytes, found.key_bytes),
            (&mut self.value_bytes, found.value_bytes),
            (&mut self.large_values, found.large_values),
            (&mut self.large_value_bytes, found.large_value_bytes),
        ] {
            *sum += weight * found;
        }
    }

    /// Adds a page; whether it is a leaf.
    fn add(
        &mut self,
        tree: &Tree,
        image: &Image,
        children: &mut Vec<PageId>,
    ) -> Result<bool, MalformedNode> {
        let node = Node::open(image, tree.id)?;
        if !node.is_leaf() {
            self.inner_pages += 1.0;
            self.is_above_leaves = node.level() == 1;
            for position in 0..=node.count() {
                children.push(node.child(position)?);
            }
            return Ok(false);
        }
        self.leaf_pages += 1.0;
        self.records += node.count() as f64;
        self.leaf_bytes_used += node.used() as f64;
        let mut key = Vec::new();
        for position in 0..node.count() {
            key.clear();
            node.key(position, &mut key)?;
            self.key_bytes += key.len() as f64;
            let value = node.value(position)?;
            let mut length = value.len as f64;
            if value.kind == ValueKind::Extent {
                let descriptor = image.0.get(value.at..value.at + value.len);
                length = descriptor
                    .filter(|bytes| bytes.len() >= 8)
                    .map_or(0.0, |bytes| get_u64(bytes, 0) as f64);
                self.large_values += 1.0;
                self.large_value_bytes += length;
            }
            self.value_bytes += length;
        }
        Ok(true)
    }
}

/// At most `max` of `pages`: one of each of as many parts of equal length, at places that no
/// pattern of the pages follows.
fn spread(pages: &[PageId], max: usize) -> Vec<PageId> {
    if pages.len() <= max {
        return pages.to_vec();
    }
    let place = |at: usize| {
        // The multiples of the golden ratio are spread evenly modulo 1.
        let within = (at as u32).wrapping_mul(0x9e37_79b9);
        let part = (at as u64) << 32 | u64::from(within);
        (u128::from(part) * pages.len() as u128 / ((max as u128) << 32)) as usize
    };
    (0..max).map(|at| pages[place(at)]).collect()
}

/// A copy of a page; `None` if it is one no longer.
fn read_page<C: ReadContext>(
    ctx: &C,
    id: PageId,
    is_root: bool,
) -> Result<Option<Box<Image>>, C::Error> {
    let mut was_read = false;
    // Bound: others' changes of the page.
    loop {
        let fail = match ctx.pool().read_untouched(id) {
            Ok(page) => {
                let image = Image::copy_of(page.words());
                match page.validate() {
                    Ok(()) => return Ok(Some(image)),
                    Err(why) => why,
                }
            }
            Err(why) => why,
        };
        let is_gone = match fail {
            Restart::Changed => ctx.pool().mapping.place(id) == PagePlace::Free,
            // The stored bytes are no page of a tree; a root always is one.
            Restart::NotResident(_) => std::mem::replace(&mut was_read, true) && !is_root,
            _ => false,
        };
        if is_gone {
            return Ok(None);
        }
        AttemptError::Restart(fail).resolve(ctx)?;
    }
}
