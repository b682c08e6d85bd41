//! A tree as its newest state, or as a transaction sees it, behind one interface. All of it is
//! called without the GIL.

use std::ops::Bound;
use std::sync::Arc;

use isobath::{Error, TransactionRange, Tree};

use crate::bytes::Keys;
use crate::errors::Failure;
use crate::transaction::Open;

/// Up to so many records are read without more pages than they need.
const FEW: usize = 64;
/// How often a part of a value is read that others keep replacing.
const READINGS: usize = 16;

#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) tree: Tree,
    pub(crate) open: Option<Arc<Open>>,
}

/// Indexes of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) start: Option<i64>,
    pub(crate) stop: Option<i64>,
}

impl Part {
    /// Where it begins and ends in a value of so many bytes.
    fn within(self, length: u64) -> (u64, u64) {
        let place = |index: i64| match u64::try_from(index) {
            Ok(index) => index.min(length),
            Err(_) => length.saturating_sub(index.unsigned_abs()),
        };
        (self.start.map_or(0, place), self.stop.map_or(length, place))
    }
}

/// How far a visit goes.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) is_reverse: bool,
    /// Large values are not read; the others may be.
    pub(crate) keys_only: bool,
    pub(crate) records: usize,
    /// Bytes of keys and values after which it ends.
    pub(crate) bytes: usize,
}

impl Source {
    pub(crate) fn read<T>(
        &self,
        plain: impl FnOnce(&Tree) -> Result<T, Error>,
        within: impl FnOnce(&isobath::Transaction, &Tree) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        Ok(match &self.open {
            None => plain(&self.tree)?,
            Some(open) => within(open.read().as_ref().ok_or(Failure::Ended)?, &self.tree)?,
        })
    }

    pub(crate) fn change<T>(
        &self,
        plain: impl FnOnce(&Tree) -> Result<T, Error>,
        within: impl FnOnce(&mut isobath::Transaction, &Tree) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        Ok(match &self.open {
            None => plain(&self.tree)?,
            Some(open) => within(open.write().as_mut().ok_or(Failure::Ended)?, &self.tree)?,
        })
    }

    /// Reads the value of a key; whether it has one.
    #[inline]
    pub(crate) fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Failure> {
        Ok(match &self.open {
            None => self.tree.get_into(key, value)?,
            Some(open) => {
                let open = open.read();
                let open = open.as_ref().ok_or(Failure::Ended)?;
                open.get_into(&self.tree, key, value)?
            }
        })
    }

    /// A part of the value of a key, by indexes as Python's slices have them.
    pub(crate) fn part(&self, key: &[u8], part: Part) -> Result<Option<Vec<u8>>, Failure> {
        for _ in 0..READINGS {
            let reader = self.read(|tree| tree.reader(key), |open, tree| open.reader(tree, key))?;
            let Some(reader) = reader else {
                return Ok(None);
            };
            let (first, end) = part.within(reader.len());
            let length = end.saturating_sub(first) as usize;
            match reader.read_at(first, length) {
                // Another write came between. The newest value is read instead.
                Err(Error::ValueReplaced) => {}
                other => return Ok(Some(other?)),
            }
        }
        Err(Error::ValueReplaced.into())
    }

    pub(crate) fn compare_and_swap(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, Failure> {
        self.change(
            |tree| Ok(tree.compare_and_swap(key, old, new)?.is_ok()),
            |open, tree| Ok(open.compare_and_swap(tree, key, old, new)?.is_ok()),
        )
    }

    /// Calls `each` with the first records of `keys`, or the last ones, and cuts those keys off
    /// `keys`; whether nothing is left of them. After an error `keys` is as before.
    pub(crate) fn visit(
        &self,
        keys: &mut Keys,
        extent: Extent,
        mut each: impl FnMut(&[u8], &[u8], u64) + Send,
    ) -> Result<bool, Failure> {
        let (mut records, mut bytes) = (0, 0);
        let mut last = Vec::new();
        let mut visit = |key: &[u8], value: &[u8], length: u64| {
            each(key, value, length);
            records += 1;
            bytes += key.len() + value.len();
            let goes_on = records < extent.records && bytes < extent.bytes;
            if !goes_on {
                last = key.to_vec();
            }
            goes_on
        };
        let bounds = keys.bounds();
        let (tree, is_reverse) = (&self.tree, extent.is_reverse);
        match &self.open {
            None if extent.keys_only => {
                tree.visit_keys(bounds, is_reverse, |key, length| visit(key, b"", length))?;
            }
            None if is_reverse => tree.scan_reverse(bounds, |key, value| visit(key, value, 0))?,
            None if extent.records <= FEW => {
                tree.scan_first(bounds, extent.records, |key, value| {
                    // It ends by itself.
                    let _ = visit(key, value, 0);
                })?;
            }
            None => tree.scan(bounds, |key, value| visit(key, value, 0))?,
            Some(open) => {
                let open = open.read();
                let open = open.as_ref().ok_or(Failure::Ended)?;
                if extent.keys_only {
                    each_key(open.keys(tree, bounds)?, is_reverse, |key, length| {
                        visit(key, b"", length)
                    })?;
                } else if is_reverse {
                    open.scan_reverse(tree, bounds, |key, value| visit(key, value, 0))?;
                } else {
                    open.scan(tree, bounds, |key, value| visit(key, value, 0))?;
                }
            }
        }
        if records < extent.records && bytes < extent.bytes {
            return Ok(true);
        }
        match extent.is_reverse {
            false => keys.lower = Bound::Excluded(last),
            true => keys.upper = Bound::Excluded(last),
        }
        Ok(false)
    }
}

fn each_key(
    mut range: TransactionRange<'_, u64>,
    is_reverse: bool,
    mut visit: impl FnMut(&[u8], u64) -> bool,
) -> Result<(), Error> {
    // Bound: each round passes a record.
    loop {
        let next = match is_reverse {
            false => range.next(),
            true => range.next_back(),
        };
        match next.transpose()? {
            Some((key, length)) if visit(&key, length) => {}
            _ => return Ok(()),
        }
    }
}
