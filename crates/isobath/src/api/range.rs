//! Iteration over a key range from both ends.

use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use crate::Error;
use crate::api::transaction::{Found, MergeCursor, Source};
use crate::api::tree::Tree;
use crate::btree::Direction;
use crate::engine::Runtime;

/// The part of each value that a range returns: all of it (`Vec<u8>`), or its length in bytes
/// (`u64`), for which no large value is read.
pub trait Part: sealed::Part {}

impl Part for Vec<u8> {}
impl Part for u64 {}

mod sealed {
    use crate::Error;

    pub trait Part: Sized + Send + Unpin + 'static {
        /// Of a value in a leaf.
        fn of_bytes(bytes: &[u8]) -> Self;

        /// Of a value that was copied.
        fn of_whole(bytes: Vec<u8>) -> Self;

        /// Of a large value, which `read` reads, unless the record is gone.
        fn of_large(
            length: u64,
            read: impl FnOnce() -> Result<Option<Vec<u8>>, Error>,
        ) -> Result<Option<Self>, Error>;

        /// Bytes that it takes, beside those of its own.
        fn bytes(&self) -> usize;
    }

    impl Part for Vec<u8> {
        fn of_bytes(bytes: &[u8]) -> Vec<u8> {
            bytes.to_vec()
        }

        fn of_whole(bytes: Vec<u8>) -> Vec<u8> {
            bytes
        }

        fn of_large(
            _: u64,
            read: impl FnOnce() -> Result<Option<Vec<u8>>, Error>,
        ) -> Result<Option<Vec<u8>>, Error> {
            read()
        }

        fn bytes(&self) -> usize {
            self.len()
        }
    }

    impl Part for u64 {
        fn of_bytes(bytes: &[u8]) -> u64 {
            bytes.len() as u64
        }

        fn of_whole(bytes: Vec<u8>) -> u64 {
            bytes.len() as u64
        }

        fn of_large(
            length: u64,
            _: impl FnOnce() -> Result<Option<Vec<u8>>, Error>,
        ) -> Result<Option<u64>, Error> {
            Ok(Some(length))
        }

        fn bytes(&self) -> usize {
            0
        }
    }
}

/// A range that is left from both ends until these meet.
pub(crate) struct Ends {
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    front: End,
    back: End,
    ended: bool,
    /// How many are wanted of each end, where that is known.
    limit: Option<usize>,
}

/// One end of it, once something was taken there.
#[derive(Default)]
struct End {
    cursor: Option<MergeCursor>,
    /// The key that came last, if there was one.
    last: Option<Vec<u8>>,
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ends")
            .field("bounds", &self.bounds)
            .field("passed", &(&self.front.last, &self.back.last))
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Ends {
    pub(crate) fn new(lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Ends {
        Ends {
            bounds: (lower, upper),
            front: End::default(),
            back: End::default(),
            ended: false,
            limit: None,
        }
    }

    /// Where it is known how many are wanted of each end, no more are read.
    pub(crate) fn with_limit(mut self, limit: Option<usize>) -> Ends {
        self.limit = limit;
        self
    }

    /// Takes a record from one end.
    pub(crate) fn step<V: Part>(
        &mut self,
        source: &Source<'_>,
        direction: Direction,
    ) -> Option<Result<(Vec<u8>, V), Error>> {
        if self.ended {
            return None;
        }
        let record = self.take(source, direction);
        self.ended = !matches!(record, Ok(Some(_)));
        record.transpose()
    }

    fn take<V: Part>(
        &mut self,
        source: &Source<'_>,
        direction: Direction,
    ) -> Result<Option<(Vec<u8>, V)>, Error> {
        let is_forward = direction == Direction::Forward;
        let (end, other) = match is_forward {
            true => (&mut self.front, &self.back),
            false => (&mut self.back, &self.front),
        };
        let ((lower, upper), limit) = (&self.bounds, self.limit);
        let cursor = end.cursor.get_or_insert_with(|| {
            let bounds = (
                lower.as_ref().map(Vec::as_slice),
                upper.as_ref().map(Vec::as_slice),
            );
            MergeCursor::new(*source, bounds, direction, limit)
        });
        // Bound: each round passes a record.
        while let Some((key, found)) = cursor.next::<V>(source)? {
            // The other end has been here already.
            let has_met = other.last.as_ref().is_some_and(|other| match is_forward {
                true => key >= *other,
                false => key <= *other,
            });
            if has_met {
                return Ok(None);
            }
            let value = match found {
                Found::Whole(value) => Some(value),
                Found::Large(extent) => V::of_large(extent.length, || {
                    let mut bytes = Vec::new();
                    let is_there = source.read_large_of(&key, extent, &mut bytes)?;
                    Ok(is_there.then_some(bytes))
                })?,
            };
            if let Some(value) = value {
                let last = end.last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(&key);
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

/// Records in key order, from [`Tree::range`] or [`Tree::prefix`], or their keys with the lengths
/// of their values, from [`Tree::keys`].
///
/// It reads a leaf or a few at a time, and a large value as it is given; between two calls it holds
/// nothing. After an error it ends.
pub struct Range<V = Vec<u8>> {
    tree: Tree,
    ends: Ends,
    part: PhantomData<fn() -> V>,
}

impl<V> std::fmt::Debug for Range<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range")
            .field("tree", &self.tree.name())
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

impl<V> Range<V> {
    pub(crate) fn new(tree: Tree, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Range<V> {
        Range {
            tree,
            ends: Ends::new(lower, upper),
            part: PhantomData,
        }
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.tree.runtime
    }

    /// Gives nothing more.
    pub(crate) fn end(&mut self) {
        self.ends.ended = true;
    }
}

impl<V: Part> Range<V> {
    fn step(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, V), Error>> {
        match Source::newest(&self.tree) {
            Ok(source) => self.ends.step(&source, direction),
            Err(error) => {
                let has_ended = std::mem::replace(&mut self.ends.ended, true);
                (!has_ended).then_some(Err(error.into()))
            }
        }
    }
}

impl<V: Part> Iterator for Range<V> {
    type Item = Result<(Vec<u8>, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl<V: Part> DoubleEndedIterator for Range<V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Reverse)
    }
}

/// After the end, and after an error, there is nothing more.
impl<V: Part> FusedIterator for Range<V> {}
