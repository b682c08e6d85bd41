//! What a transaction is going to change.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Error;
use crate::btree::ValueRef;
use crate::extent::{DESCRIPTOR_BYTES, Extent};
use crate::sync::HashSet;
use crate::tree::{Tree, TreeState};
use crate::txn::commit::{Change, change_bytes};
use crate::txn::versions::{Bounds, is_range};

/// What a key is going to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    Removed,
    Inline(Box<[u8]>),
    Extent(Extent),
}

impl Write {
    fn bytes(&self, key: &[u8]) -> u64 {
        let value = match self {
            Write::Removed => 0,
            Write::Inline(value) => value.len(),
            Write::Extent(_) => DESCRIPTOR_BYTES,
        };
        change_bytes(key.len(), value)
    }
}

pub(super) type TreeWrites = BTreeMap<Vec<u8>, Write>;

/// How to undo the writes of one key since a savepoint: tree, key, what the write set had there.
struct Undo {
    tree: usize,
    key: Arc<[u8]>,
    before: Option<Write>,
}

impl Undo {
    /// What it takes, beside the bytes of its key and value.
    const OVERHEAD: u64 = 160;

    fn bytes(&self) -> u64 {
        let before = self.before.as_ref();
        Undo::OVERHEAD + before.map_or(self.key.len() as u64, |before| before.bytes(&self.key))
    }
}

/// All changes of one transaction.
#[derive(Default)]
pub(super) struct WriteSet {
    trees: Vec<(Arc<TreeState>, TreeWrites)>,
    bytes: u64,
    /// Since the first savepoint; of each key one between two savepoints.
    undo: Vec<Undo>,
    undo_bytes: u64,
    /// Keys that can be undone to the last savepoint.
    saved: HashSet<(usize, Arc<[u8]>)>,
    /// Savepoints that can be gone back to: number, and length of `undo` then.
    savepoints: Vec<(u64, usize)>,
    next_savepoint: u64,
    /// Large values that were written and are not wanted any more.
    dead: Vec<Extent>,
}

impl WriteSet {
    /// Bytes that the changes take in the log.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trees.iter().all(|(_, writes)| writes.is_empty())
    }

    /// The changes of one tree, if there are any.
    pub(super) fn of(&self, tree: &Tree) -> Option<&TreeWrites> {
        let at = self.position(&tree.state)?;
        Some(&self.trees[at].1)
    }

    fn position(&self, state: &Arc<TreeState>) -> Option<usize> {
        let same = |(other, _): &(Arc<TreeState>, _)| other.tree == state.tree;
        self.trees.iter().position(same)
    }

    /// Adds a change, if all take at most `limit` bytes then, and what savepoints keep no more either. One that is refused
    /// is given up.
    pub(super) fn put(
        &mut self,
        tree: &Tree,
        key: &[u8],
        write: Write,
        limit: u64,
    ) -> Result<(), Error> {
        let at = self.position(&tree.state).unwrap_or_else(|| {
            self.trees
                .push((Arc::clone(&tree.state), TreeWrites::new()));
            self.trees.len() - 1
        });
        let writes = &mut self.trees[at].1;
        let before = writes.get(key).map_or(0, |before| before.bytes(key));
        let bytes = self.bytes - before + write.bytes(key);
        if bytes > limit {
            self.give_up(Some(write));
            return Err(Error::TransactionTooLarge { bytes, limit });
        }
        let shared: Option<(usize, Arc<[u8]>)> =
            (!self.savepoints.is_empty()).then(|| (at, key.into()));
        let shared = shared.filter(|shared| !self.saved.contains(shared));
        if shared.is_some() {
            let kept = writes.get(key).map_or(0, |before| before.bytes(key));
            let bytes = self.undo_bytes + Undo::OVERHEAD + kept.max(key.len() as u64);
            if bytes > limit {
                self.give_up(Some(write));
                return Err(Error::TransactionTooLarge { bytes, limit });
            }
        }
        self.bytes = bytes;
        let before = match writes.get_mut(key) {
            Some(place) => Some(std::mem::replace(place, write)),
            None => writes.insert(key.to_vec(), write),
        };
        let Some((tree, key)) = shared else {
            self.give_up(before);
            return Ok(());
        };
        self.saved.insert((tree, Arc::clone(&key)));
        let undo = Undo { tree, key, before };
        self.undo_bytes += undo.bytes();
        self.undo.push(undo);
        Ok(())
    }

    fn give_up(&mut self, write: Option<Write>) {
        if let Some(Write::Extent(extent)) = write {
            self.dead.push(extent);
        }
    }

    /// Large values that are to be freed.
    pub(super) fn take_dead(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.dead)
    }

    pub(super) fn savepoint(&mut self) -> u64 {
        if let Some(&(number, length)) = self.savepoints.last()
            && length == self.undo.len()
        {
            // Nothing was written since.
            return number;
        }
        self.saved.clear();
        let number = self.next_savepoint;
        self.next_savepoint += 1;
        self.savepoints.push((number, self.undo.len()));
        number
    }

    /// Undoes all since a savepoint; `false` if it is not one.
    pub(super) fn rollback_to(&mut self, number: u64) -> bool {
        let Some(at) = self.savepoints.iter().position(|s| s.0 == number) else {
            return false;
        };
        self.savepoints.truncate(at + 1);
        let length = self.savepoints[at].1;
        self.saved.clear();
        while self.undo.len() > length {
            let Some(undo) = self.undo.pop() else { break };
            self.undo_bytes -= undo.bytes();
            let writes = &mut self.trees[undo.tree].1;
            let key = undo.key;
            self.bytes += undo.before.as_ref().map_or(0, |before| before.bytes(&key));
            let undone = match undo.before {
                Some(before) => writes.insert(key.to_vec(), before),
                None => writes.remove(&key[..]),
            };
            self.bytes -= undone.as_ref().map_or(0, |undone| undone.bytes(&key));
            self.give_up(undone);
        }
        true
    }

    /// The transaction has committed: what it wrote belongs to the trees. What a
    /// savepoint kept is given up.
    pub(super) fn forget(&mut self) {
        self.trees.clear();
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
    }

    /// The transaction has ended without a commit: all that it wrote is given up.
    pub(super) fn abandon(&mut self) {
        for (_, writes) in std::mem::take(&mut self.trees) {
            for (_, write) in writes {
                self.give_up(Some(write));
            }
        }
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
    }

    /// Bytes of keys and values.
    pub(super) fn user_bytes(&self) -> u64 {
        let all = self.trees.iter().flat_map(|(_, writes)| writes);
        all.map(|(key, write)| {
            key.len() as u64
                + match write {
                    Write::Removed => 0,
                    Write::Inline(value) => value.len() as u64,
                    Write::Extent(extent) => extent.length,
                }
        })
        .sum()
    }

    /// All changes, by tree and key, as a commit takes them.
    pub(super) fn changes(&self) -> Vec<Encoded<'_>> {
        let all = self.trees.iter().flat_map(|(state, writes)| {
            writes
                .iter()
                .map(move |(key, write)| (&**state, &key[..], write))
        });
        all.map(|(state, key, write)| Encoded {
            state,
            key,
            write,
            descriptor: match write {
                Write::Extent(extent) => extent.encode(),
                Write::Removed | Write::Inline(_) => [0; DESCRIPTOR_BYTES],
            },
        })
        .collect()
    }
}

/// A change with its descriptor, if its value is a large one.
pub(super) struct Encoded<'w> {
    state: &'w TreeState,
    key: &'w [u8],
    write: &'w Write,
    descriptor: [u8; DESCRIPTOR_BYTES],
}

impl Encoded<'_> {
    pub(super) fn change(&self) -> Change<'_> {
        let value = match self.write {
            Write::Removed => None,
            Write::Inline(value) => Some(ValueRef::inline(value)),
            Write::Extent(_) => Some(ValueRef::extent(&self.descriptor)),
        };
        self.state.change(self.key, value)
    }
}

/// The writes within `bounds`, in ascending order.
pub(super) fn within<'w>(
    writes: Option<&'w TreeWrites>,
    bounds: Bounds<'_>,
) -> Vec<(&'w [u8], &'w Write)> {
    match writes {
        Some(writes) if is_range(bounds) => writes
            .range::<[u8], _>(bounds)
            .map(|(key, write)| (&key[..], write))
            .collect(),
        _ => Vec::new(),
    }
}
