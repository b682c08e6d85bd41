//! The status of one tree outside its pages: which operations may change it.
//!
//! Commits change a tree side by side. A bulk load that links its pages, and the
//! drop of the tree, have it to themselves: each closes the tree, then waits for
//! the commits in flight. A commit asks after it has occupied its slot of the
//! tracker, so of the two one sees the other.

use crate::canary::{self, Canary};
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const OPEN: u8 = 0;
/// A bulk load links its pages.
const LOADING: u8 = 1;
/// The tree is about to be dropped, unless that fails.
const DROPPING: u8 = 2;
const DROPPED: u8 = 3;

/// The state of one tree, shared by all its handles.
#[derive(Default)]
pub(crate) struct TreeStatus {
    status: AtomicU8,
    /// Snapshots below this cannot read the tree: it was loaded since, which
    /// leaves no versions.
    loaded: AtomicU64,
}

/// Whether a commit may change the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Granted,
    /// A load of the tree is being linked.
    Later,
    /// It is dropped.
    Never,
}

/// A closed tree; dropping this opens it again.
pub(crate) struct Closed<'g>(&'g TreeStatus);

impl TreeStatus {
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.status.load(Ordering::Acquire) >= DROPPING
    }

    /// Whether a commit that has occupied its slot may change the tree.
    #[inline]
    pub(crate) fn access(&self) -> Access {
        match self.status.load(Ordering::SeqCst) {
            OPEN => Access::Granted,
            LOADING => Access::Later,
            _ => Access::Never,
        }
    }

    /// The LSN below which snapshots cannot read the tree. It changes only while
    /// the tree is closed.
    #[inline]
    pub(crate) fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::SeqCst)
    }

    /// The tree exists no longer.
    pub(crate) fn set_dropped(&self) {
        self.status.store(DROPPED, Ordering::SeqCst);
    }

    /// Closes the tree for a load; `None` if the tree is dropped. `wait` lets
    /// others run while another task has closed it, and says when to give up.
    pub(crate) fn close_to_load<E>(
        &self,
        wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Closed<'_>>, E> {
        self.close(LOADING, wait)
    }

    /// As [`TreeStatus::close_to_load`], for dropping the tree.
    pub(crate) fn close_to_drop<E>(
        &self,
        wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Closed<'_>>, E> {
        self.close(DROPPING, wait)
    }

    fn close<E>(
        &self,
        status: u8,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Closed<'_>>, E> {
        loop {
            let closed =
                self.status
                    .compare_exchange(OPEN, status, Ordering::SeqCst, Ordering::SeqCst);
            match closed {
                Ok(_) => return Ok(Some(Closed(self))),
                Err(_) if status == LOADING && canary::is_on(Canary::LoadBesideOthers) => {
                    return Ok(Some(Closed(self)));
                }
                Err(DROPPED) => return Ok(None),
                Err(_) => wait()?,
            }
        }
    }
}

impl Closed<'_> {
    /// Keeps all snapshots that are open, or begin before [`Closed::set_loaded`],
    /// from the tree; returns what was said before.
    pub(crate) fn begin_loading(&self) -> u64 {
        self.0.loaded.swap(u64::MAX, Ordering::SeqCst)
    }

    /// Keeps snapshots below `lsn` from the tree.
    pub(crate) fn set_loaded(&self, lsn: u64) {
        self.0.loaded.store(lsn, Ordering::SeqCst);
    }

    /// Leaves the tree closed permanently: it exists no longer.
    pub(crate) fn drop_tree(self) {
        self.0.set_dropped();
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Unless the tree was dropped.
        let opened = |status| (status != DROPPED).then_some(OPEN);
        let _ = self
            .0
            .status
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, opened);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_the_tree_to_itself() {
        let status = TreeStatus::default();
        let refuse = || Err("closed");
        assert_eq!(status.access(), Access::Granted);
        let load = status.close_to_load(refuse).unwrap().unwrap();
        assert!(status.access() == Access::Later && !status.is_dropped());
        assert!(status.close_to_load(refuse).is_err() && status.close_to_drop(refuse).is_err());
        assert_eq!(load.begin_loading(), 0);
        load.set_loaded(8);
        drop(load);
        assert_eq!((status.access(), status.loaded()), (Access::Granted, 8));
        // A drop that fails, and one that does not.
        let failed = status.close_to_drop(refuse).unwrap().unwrap();
        assert!(status.is_dropped() && status.access() == Access::Never);
        drop(failed);
        assert!(!status.is_dropped());
        status.close_to_drop(refuse).unwrap().unwrap().drop_tree();
        assert!(status.is_dropped() && status.access() == Access::Never);
        assert!(status.close_to_drop(refuse).unwrap().is_none());
        assert!(status.close_to_load(refuse).unwrap().is_none());
    }
}
