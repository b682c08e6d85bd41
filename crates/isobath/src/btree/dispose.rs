//! Freeing a whole tree in bounded steps.
//!
//! Leaves are taken from the right end. Between two steps the tree is no valid
//! search tree (its right edge is missing), but every page that is left is still
//! reachable from the root, so that the work can stop, and go on after a crash.

use super::descend::{Hold, root};
use super::smo::Modification;
use super::{AttemptError, Descriptor, Tree, ValueKind};
use crate::buffer::Restart;
use crate::context::WriteContext;
use crate::node::{Builder, Image, MalformedNode, Node, without_last_children};
use crate::page::{Lsn, PageId};
use crate::sync::HashSet;

/// Most leaves that one structure modification frees.
const BATCH: usize = 16;

/// Callback that receives the extents of freed records; it may fail.
pub(crate) type OnExtent<'f, E> = dyn FnMut(&Descriptor) -> Result<(), E> + 'f;

/// The result of one step.
enum Step {
    /// So many pages are gone; perhaps nothing but an empty root is left.
    Freed { pages: u32, is_empty: bool },
    /// Nothing yet: the pages that it would free name these extents, which the callback has not
    /// received yet.
    Untold(Vec<Descriptor>),
}

impl Tree {
    /// Frees about `pages` pages of a tree that is not used any more; returns
    /// whether nothing but an empty root is left. `on_extent` receives every
    /// extent once, before the page that names it is freed: if recovery finds
    /// the free of the page, it also finds what the callback logged.
    pub(crate) fn free_some<C: WriteContext>(
        &self,
        ctx: &C,
        pages: u32,
        on_extent: &mut OnExtent<'_, C::Error>,
    ) -> Result<bool, C::Error> {
        let mut freed = 0;
        let mut told = HashSet::default();
        loop {
            let room = ctx.reserve_for_structure()?;
            match self.try_free(ctx, &told) {
                Ok(Step::Freed {
                    pages: gone,
                    is_empty,
                }) => {
                    told.clear();
                    freed += gone;
                    if is_empty || freed >= pages {
                        return Ok(is_empty);
                    }
                }
                Ok(Step::Untold(extents)) => {
                    drop(room);
                    for extent in extents {
                        on_extent(&extent)?;
                        told.insert(extent);
                    }
                }
                Err(fail) => {
                    drop(room);
                    fail.resolve(ctx)?;
                }
            }
        }
    }

    /// Frees the last page of a tree of which [`Tree::free_some`] has left
    /// nothing else.
    pub(crate) fn free_root<C: WriteContext>(&self, ctx: &C) -> Result<(), C::Error> {
        let _reservation = ctx.reserve_for_structure()?;
        loop {
            let latched = root(ctx.pool(), self).and_then(|root| Ok(root.page.exclusive()?));
            match latched {
                Ok(page) => {
                    Modification::new(*self).unlink(page).apply(ctx);
                    return Ok(());
                }
                Err(fail) => fail.resolve(ctx)?,
            }
        }
    }

    /// Frees the last page of such a tree, as the log record at `record` says.
    pub(crate) fn free_root_logged<C: WriteContext>(
        &self,
        ctx: &C,
        record: Lsn,
    ) -> Result<(), C::Error> {
        loop {
            let latched = root(ctx.pool(), self).and_then(|root| Ok(root.page.exclusive()?));
            match latched {
                Ok(page) => {
                    ctx.end(&page);
                    ctx.free(page, record);
                    return Ok(());
                }
                Err(fail) => fail.resolve(ctx)?,
            }
        }
    }

    fn try_free<C: WriteContext>(
        &self,
        ctx: &C,
        told: &HashSet<Descriptor>,
    ) -> Result<Step, AttemptError> {
        let edge = self.right_edge(ctx)?;
        // The lowest node from which something can be taken: below it, every
        // node has one child.
        let lowest = edge
            .iter()
            .rposition(|(_, node_count, level)| *level > 0 && *node_count > 0);
        let Some(lowest) = lowest else {
            return self.empty_root(ctx, &edge, told);
        };
        let (hold, count, level) = edge[lowest];
        let mut victims = Vec::new();
        let mut taken = 1;
        if level == 1 {
            taken = count.min(BATCH);
            self.collect_leaves(ctx, &hold, count, taken, &mut victims)?;
        } else {
            victims.extend(edge[lowest + 1..].iter().map(|(hold, ..)| *hold));
        }
        let page = hold.page.exclusive()?;
        let corrupt = |why: MalformedNode| AttemptError::Corrupt(hold.id, why.0);
        let image = Image::copy_of(page.words());
        let image = Node::open(&*image, self.id)
            .and_then(|node| without_last_children(node, self.id, taken))
            .map_err(corrupt)?;
        self.unlink(
            ctx,
            Modification::new(*self).page(page, image),
            &victims,
            Vec::new(),
            told,
            false,
        )
    }

    /// The path to the last leaf: each node with its separators and level.
    fn right_edge<'p, C: WriteContext>(
        &self,
        ctx: &'p C,
    ) -> Result<Vec<(Hold<'p>, usize, u8)>, AttemptError> {
        let mut hold = root(ctx.pool(), self)?;
        let mut edge: Vec<(Hold<'p>, usize, u8)> = Vec::new();
        // Bound: each round is one level lower.
        loop {
            let node = hold.node(self)?;
            if edge.last().is_some_and(|above| above.2 != node.level() + 1) {
                return Err(
                    hold.malformed(MalformedNode("its level is not one below its parent's"))
                );
            }
            edge.push((hold, node.count(), node.level()));
            if node.is_leaf() {
                hold.validate()?;
                return Ok(edge);
            }
            let id = hold.checked(node.child(node.count()))?;
            hold = hold.child(ctx.pool(), id, false)?;
        }
    }

    /// Holds the last `taken` children of a parent of leaves.
    fn collect_leaves<'p, C: WriteContext>(
        &self,
        ctx: &'p C,
        parent: &Hold<'p>,
        count: usize,
        taken: usize,
        into: &mut Vec<Hold<'p>>,
    ) -> Result<(), AttemptError> {
        let node = parent.node(self)?;
        let mut ids: Vec<PageId> = Vec::with_capacity(taken);
        for position in count + 1 - taken..=count {
            ids.push(parent.checked(node.child(position))?);
        }
        parent.validate()?;
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < ids.len() {
            return Err(parent.malformed(MalformedNode("it names a child twice")));
        }
        for &id in &ids {
            match parent.child(ctx.pool(), id, false) {
                Ok(hold) => into.push(hold),
                Err(fail) => {
                    if let AttemptError::Restart(Restart::NotResident(_)) = fail {
                        ctx.read_ahead(&ids);
                    }
                    return Err(fail);
                }
            }
        }
        Ok(())
    }

    /// Makes the root, below which no node has two children, an empty leaf.
    fn empty_root<C: WriteContext>(
        &self,
        ctx: &C,
        edge: &[(Hold<'_>, usize, u8)],
        told: &HashSet<Descriptor>,
    ) -> Result<Step, AttemptError> {
        let (root, ..) = edge[0];
        let below: Vec<_> = edge[1..].iter().map(|(hold, ..)| *hold).collect();
        let page = root.page.exclusive()?;
        let mut extents = Vec::new();
        if below.is_empty() {
            let image = Image::copy_of(page.words());
            collect_extents(self, &image, &mut extents)
                .map_err(|why| AttemptError::Corrupt(root.id, why.0))?;
        }
        let image = Builder::new(self.id, 0, &[], None).finish();
        let modification = Modification::new(*self).page(page, image);
        self.unlink(ctx, modification, &below, extents, told, true)
    }

    /// Adds `victims` to the modification as unlinked, and applies it, if the callback has received
    /// (`told`) every extent in them and all of `extents`.
    fn unlink<'p, C: WriteContext>(
        &self,
        ctx: &'p C,
        mut modification: Modification<'p>,
        victims: &[Hold<'p>],
        mut extents: Vec<Descriptor>,
        told: &HashSet<Descriptor>,
        is_empty: bool,
    ) -> Result<Step, AttemptError> {
        for victim in victims {
            let page = victim.page.exclusive()?;
            let image = Image::copy_of(page.words());
            collect_extents(self, &image, &mut extents)
                .map_err(|why| AttemptError::Corrupt(victim.id, why.0))?;
            modification = modification.unlink(page);
        }
        extents.retain(|extent| !told.contains(extent));
        if !extents.is_empty() {
            return Ok(Step::Untold(extents));
        }
        modification.apply(ctx);
        Ok(Step::Freed {
            pages: victims.len() as u32,
            is_empty,
        })
    }
}

fn collect_extents(
    tree: &Tree,
    image: &Image,
    into: &mut Vec<Descriptor>,
) -> Result<(), MalformedNode> {
    let node = Node::open(image, tree.id)?;
    if node.is_leaf() {
        for position in 0..node.count() {
            let value = node.value(position)?;
            if value.kind == ValueKind::Extent {
                into.push(Descriptor::new(&image.0[value.at..value.at + value.len]));
            }
        }
    }
    Ok(())
}
