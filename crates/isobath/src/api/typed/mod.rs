//! Trees whose keys and values are Rust types: a thin layer that encodes and decodes.

mod key;

pub use key::{EncodeKey, Key, Value};

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::{Error, Range, Transaction, Tree};

/// A [`Tree`] with keys of type `K` and values of type `V`, which it stores as [`Key`] and
/// [`Value`] say. Ranges go in the order of the keys. Nothing in the store says of which types a
/// tree is: that is for the application to know. What was written as other types is an
/// [`Error::BadEncoding`], or reads as something else.
///
/// ```
/// # use isobath::{Options, Store, TypedTree};
/// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
/// let readings: TypedTree<(String, i64), f64> = store.create_tree("readings")?.typed();
/// readings.insert(&("cellar".to_owned(), 1_700_000_000), &11.5)?;
/// readings.insert(&("attic".to_owned(), 1_700_000_060), &23.0)?;
/// assert_eq!(readings.get(&("cellar".to_owned(), 1_700_000_000))?, Some(11.5));
/// let (key, _) = readings.first()?.expect("there are two");
/// assert_eq!(key.0, "attic");
///
/// let names: TypedTree<String, u32> = store.create_tree("names")?.typed();
/// names.insert("Ada", &1815)?;
/// assert_eq!(names.get("Ada")?, Some(1815));
/// # store.close()?;
/// # Ok::<(), isobath::Error>(())
/// ```
pub struct TypedTree<K, V> {
    tree: Tree,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for TypedTree<K, V> {
    fn clone(&self) -> Self {
        self.tree.typed()
    }
}

impl<K, V> std::fmt::Debug for TypedTree<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TypedTree").field(&self.tree).finish()
    }
}

impl Tree {
    /// The tree with keys and values of these types.
    #[must_use]
    pub fn typed<K, V>(&self) -> TypedTree<K, V> {
        TypedTree {
            tree: self.clone(),
            types: PhantomData,
        }
    }
}

fn key_bytes<Q: EncodeKey + ?Sized>(key: &Q) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

fn value_bytes<V: Value>(value: &V) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode_value(&mut bytes);
    bytes
}

fn decode<K: Key, V: Value>((key, value): (Vec<u8>, Vec<u8>)) -> Result<(K, V), Error> {
    Ok((key::decode_all(&key, "a key")?, V::decode_value(&value)?))
}

impl<K: Key, V: Value> TypedTree<K, V> {
    /// The tree of bytes behind it.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::BadEncoding`], and as for [`Tree::get`].
    pub fn get<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
    {
        let value = self.tree.get(key_bytes(key))?;
        value.map(|bytes| V::decode_value(&bytes)).transpose()
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    ///
    /// As for [`Tree::contains`].
    pub fn contains<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
    {
        self.tree.contains(key_bytes(key))
    }

    /// The same as [`TypedTree::contains`], by the name that it has in the standard library's maps.
    ///
    /// # Errors
    ///
    /// As for [`Tree::contains`].
    pub fn contains_key<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
    {
        self.contains(key)
    }

    /// Gives `key` a value, in place of the one that it has.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    pub fn insert<Q: EncodeKey + ?Sized>(&self, key: &Q, value: &V) -> Result<(), Error>
    where
        K: Borrow<Q>,
    {
        self.tree.insert(key_bytes(key), value_bytes(value))
    }

    /// Removes `key`; whether it had a value.
    ///
    /// # Errors
    ///
    /// As for [`Tree::remove`].
    pub fn remove<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
    {
        self.tree.remove(key_bytes(key))
    }

    /// The record with the smallest key.
    ///
    /// # Errors
    ///
    /// As for [`TypedTree::get`].
    pub fn first(&self) -> Result<Option<(K, V)>, Error> {
        self.tree.first()?.map(decode).transpose()
    }

    /// The record with the largest key.
    ///
    /// # Errors
    ///
    /// As for [`TypedTree::get`].
    pub fn last(&self) -> Result<Option<(K, V)>, Error> {
        self.tree.last()?.map(decode).transpose()
    }

    /// The records whose keys lie within `bounds`, in order, from both ends.
    pub fn range(&self, bounds: impl RangeBounds<K>) -> TypedRange<K, V> {
        let encoded = |bound: Bound<&K>| bound.map(|key| key_bytes(key));
        let bounds = (encoded(bounds.start_bound()), encoded(bounds.end_bound()));
        TypedRange {
            range: self.tree.range(bounds),
            types: PhantomData,
        }
    }

    /// All records, in order, from both ends.
    pub fn iter(&self) -> TypedRange<K, V> {
        self.range(..)
    }

    /// Removes all records, as [`Tree::clear`].
    ///
    /// # Errors
    ///
    /// As for [`Tree::clear`].
    pub fn clear(&self) -> Result<u64, Error> {
        self.tree.clear()
    }

    /// As [`TypedTree::get`], in a transaction.
    ///
    /// # Errors
    ///
    /// [`Error::BadEncoding`], and as for [`Transaction::get`].
    pub fn get_in<Q: EncodeKey + ?Sized>(
        &self,
        transaction: &mut Transaction,
        key: &Q,
    ) -> Result<Option<V>, Error>
    where
        K: Borrow<Q>,
    {
        let value = transaction.get(&self.tree, key_bytes(key))?;
        value.map(|bytes| V::decode_value(&bytes)).transpose()
    }

    /// As [`TypedTree::insert`], in a transaction.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`].
    pub fn insert_in<Q: EncodeKey + ?Sized>(
        &self,
        transaction: &mut Transaction,
        key: &Q,
        value: &V,
    ) -> Result<(), Error>
    where
        K: Borrow<Q>,
    {
        transaction.insert(&self.tree, key_bytes(key), value_bytes(value))
    }

    /// As [`TypedTree::remove`], in a transaction.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::remove`].
    pub fn remove_in<Q: EncodeKey + ?Sized>(
        &self,
        transaction: &mut Transaction,
        key: &Q,
    ) -> Result<bool, Error>
    where
        K: Borrow<Q>,
    {
        transaction.remove(&self.tree, key_bytes(key))
    }
}

/// All records in order, as [`TypedTree::iter`].
impl<K: Key, V: Value> IntoIterator for &TypedTree<K, V> {
    type Item = Result<(K, V), Error>;
    type IntoIter = TypedRange<K, V>;

    fn into_iter(self) -> TypedRange<K, V> {
        self.iter()
    }
}

/// Records of a [`TypedTree`] in key order, from [`TypedTree::range`].
#[must_use = "an iterator does nothing until it is used"]
pub struct TypedRange<K, V> {
    range: Range,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> std::fmt::Debug for TypedRange<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedRange").finish_non_exhaustive()
    }
}

impl<K: Key, V: Value> Iterator for TypedRange<K, V> {
    type Item = Result<(K, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.range.next().map(|record| record.and_then(decode))
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for TypedRange<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().map(|record| record.and_then(decode))
    }
}

impl<K: Key, V: Value> std::iter::FusedIterator for TypedRange<K, V> {}
