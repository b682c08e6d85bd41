//! Ranges of keys, as users write them.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: any of the standard library's ranges of anything that is bytes, as in
/// `b"a"..b"c"`, `"a"..="c"`, `first..` with a `Vec<u8>`, `..`, or a pair of
/// [`Bound`]s. One whose end lies before its start is empty.
pub trait KeyRange {
    /// The bounds of the range.
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

impl KeyRange for RangeFull {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let (start, end) = (self.start.as_ref(), self.end.as_ref());
        (Bound::Included(start), Bound::Excluded(end))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let (start, end) = (self.start().as_ref(), self.end().as_ref());
        (Bound::Included(start), Bound::Included(end))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(self.start.as_ref()), Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Excluded(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Included(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (
            self.0.as_ref().map(AsRef::as_ref),
            self.1.as_ref().map(AsRef::as_ref),
        )
    }
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (**self).key_bounds()
    }
}

/// The bounds with keys of their own.
pub(crate) fn owned(range: &impl KeyRange) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (lower, upper) = range.key_bounds();
    (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec))
}

/// The range of all keys that start with `prefix`, for whatever takes a range:
///
/// ```
/// # use isobath::{Options, Store, prefix_range};
/// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
/// # let tree = store.create_tree("t")?;
/// for key in ["photos/1", "photos/2", "texts/1"] {
///     tree.insert(key, "")?;
/// }
/// assert_eq!(tree.count(prefix_range("photos/"))?, 2);
/// assert_eq!(tree.remove_range(prefix_range("photos/"))?, 2);
/// # store.close()?;
/// # Ok::<(), isobath::Error>(())
/// ```
#[must_use]
pub fn prefix_range(prefix: impl AsRef<[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let prefix = prefix.as_ref();
    (Bound::Included(prefix.to_vec()), prefix_end(prefix))
}

/// The smallest key that is greater than every key with this prefix.
pub(crate) fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_the_next_begins() {
        assert_eq!(prefix_end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), Bound::Unbounded);
        assert_eq!(prefix_end(b""), Bound::Unbounded);
    }
}
