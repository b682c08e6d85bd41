//! What a tree looks like, from a small part of its pages.

use super::node::{Image, MalformedNode, Node};
use super::{AttemptError, Tree, ValueKind};
use crate::buffer::{Place, Restart};
use crate::context::ReadContext;
use crate::page::{PageId, get_u64};

/// Attempts to read a tree that others change much.
const MAX_ROUNDS: u32 = 16;

/// What a tree holds, about. Exact where it has no more pages in any level than were read.
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
}

impl Tree {
    /// Reads at most `most` pages of each level, spread evenly over the tree, and says what all of it looks like. Others may
    /// change the tree during that.
    ///
    /// # Errors
    ///
    /// A failed read, or a page that breaks a rule.
    pub(crate) fn sample<C: ReadContext>(&self, ctx: &C, most: usize) -> Result<Sample, C::Error> {
        // Bound: beside so many changes, what was read counts as it is.
        for _ in 0..MAX_ROUNDS {
            let (sample, is_sound) = self.sample_once(ctx, most)?;
            if is_sound {
                return Ok(sample);
            }
        }
        Ok(self.sample_once(ctx, most)?.0)
    }

    /// One attempt, and whether it met few pages that were gone by then.
    fn sample_once<C: ReadContext>(
        &self,
        ctx: &C,
        most: usize,
    ) -> Result<(Sample, bool), C::Error> {
        let mut sample = Sample {
            is_exact: true,
            ..Sample::default()
        };
        let mut level = vec![self.root];
        // Pages of the level, for each that is read.
        let mut weight = 1.0;
        // Bound: a level less each time, or fewer pages.
        loop {
            let chosen = spread(&level, most);
            let mut images = Vec::with_capacity(chosen.len());
            for &id in &chosen {
                images.extend(read_page(ctx, id, id == self.root)?);
            }
            weight *= level.len() as f64 / images.len().max(1) as f64;
            sample.is_exact &= images.len() == level.len();
            sample.levels += 1;
            let mut children = Vec::new();
            let (mut leaves, mut read) = (0, 0);
            for image in &images {
                match sample.add(self, image, weight, &mut children) {
                    Ok(is_leaf) => leaves += usize::from(is_leaf),
                    // The id is another page's by now.
                    Err(_) if level.len() > 1 => continue,
                    Err(why) => AttemptError::Corrupt(self.root, why.0).resolve(ctx)?,
                }
                read += 1;
            }
            let is_sound = 2 * read >= chosen.len() && (leaves == 0 || leaves == read);
            sample.is_exact &= read == level.len();
            if leaves > 0 || children.is_empty() || !is_sound {
                return Ok((sample, is_sound && leaves > 0));
            }
            level = children;
        }
    }
}

impl Sample {
    /// Adds a page that stands for `weight` pages; whether it is a leaf.
    fn add(
        &mut self,
        tree: &Tree,
        image: &Image,
        weight: f64,
        children: &mut Vec<PageId>,
    ) -> Result<bool, MalformedNode> {
        let node = Node::open(image, tree.id)?;
        if !node.is_leaf() {
            self.inner_pages += weight;
            for position in 0..=node.count() {
                children.push(node.child(position)?);
            }
            return Ok(false);
        }
        self.leaf_pages += weight;
        self.records += weight * node.count() as f64;
        self.leaf_bytes_used += weight * node.used() as f64;
        let mut key = Vec::new();
        for position in 0..node.count() {
            key.clear();
            node.key(position, &mut key)?;
            self.key_bytes += weight * key.len() as f64;
            let value = node.value(position)?;
            let mut length = value.len as f64;
            if value.kind == ValueKind::Extent {
                let descriptor = image.0.get(value.at..value.at + value.len);
                length = descriptor
                    .filter(|bytes| bytes.len() >= 8)
                    .map_or(0.0, |bytes| get_u64(bytes, 0) as f64);
                self.large_values += weight;
                self.large_value_bytes += weight * length;
            }
            self.value_bytes += weight * length;
        }
        Ok(true)
    }
}

/// At most `most` of `pages`, in equal distances.
fn spread(pages: &[PageId], most: usize) -> Vec<PageId> {
    if pages.len() <= most {
        return pages.to_vec();
    }
    (0..most)
        .map(|at| pages[(2 * at + 1) * pages.len() / (2 * most)])
        .collect()
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
            Restart::Changed => ctx.pool().mapping.place(id) == Place::Free,
            // What is stored there is no page of a tree; a root always is one.
            Restart::NotResident(_) => std::mem::replace(&mut was_read, true) && !is_root,
            _ => false,
        };
        if is_gone {
            return Ok(None);
        }
        AttemptError::Restart(fail).resolve(ctx)?;
    }
}
