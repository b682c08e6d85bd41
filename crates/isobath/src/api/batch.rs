//! Changes that are collected and committed together.

use std::collections::BTreeMap;

use crate::api::tree::Tree;

/// A key's new value; `None` removes it.
type Change = Option<Vec<u8>>;

/// Changes of any trees of one store, for [`Store::write`](crate::Store::write): all become
/// visible and lasting at once, or none.
///
/// A batch reads nothing and meets no conflict: of two that change the same key, the later one
/// wins. Within a batch the last change of a key counts. [`Transaction`](crate::Transaction)s read
/// as well, and see their own changes.
///
/// ```
/// # fn main() -> Result<(), isobath::Error> {
/// use isobath::{Options, Store, WriteBatch};
///
/// let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
/// let (names, ages) = (store.create_tree("names")?, store.create_tree("ages")?);
/// let mut batch = WriteBatch::new();
/// batch.insert(&names, "1", "Ada");
/// batch.insert(&ages, "1", "36");
/// batch.remove(&names, "2");
/// store.write(&batch)?;
/// assert_eq!(names.get("1")?, Some(b"Ada".to_vec()));
/// # store.close()
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    trees: Vec<(Tree, BTreeMap<Vec<u8>, Change>)>,
}

impl WriteBatch {
    /// A batch without changes.
    #[must_use]
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Gives `key` of `tree` the value `value`.
    pub fn insert(&mut self, tree: &Tree, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let value = value.as_ref().to_vec();
        self.of(tree).insert(key.as_ref().to_vec(), Some(value));
    }

    /// Removes `key` of `tree`, whether it has a value or not.
    pub fn remove(&mut self, tree: &Tree, key: impl AsRef<[u8]>) {
        self.of(tree).insert(key.as_ref().to_vec(), None);
    }

    /// Keys that the batch changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trees.iter().map(|(_, changes)| changes.len()).sum()
    }

    /// Whether the batch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all changes.
    pub fn clear(&mut self) {
        self.trees.clear();
    }

    fn of(&mut self, tree: &Tree) -> &mut BTreeMap<Vec<u8>, Change> {
        let at = self.trees.iter().position(|(other, _)| other.is(tree));
        let at = at.unwrap_or_else(|| {
            self.trees.push((tree.clone(), BTreeMap::new()));
            self.trees.len() - 1
        });
        &mut self.trees[at].1
    }

    /// All changes, by tree.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&Tree, &[u8], Option<&[u8]>)> {
        self.trees.iter().flat_map(|(tree, changes)| {
            let changes = changes.iter();
            changes.map(move |(key, value)| (tree, &key[..], value.as_deref()))
        })
    }
}
