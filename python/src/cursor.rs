//! Iteration over a range.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pyo3::IntoPyObjectExt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::bytes::Keys;
use crate::errors::Failure;
use crate::source::{Extent, Source};

/// Records of the first batch and of the largest; each is twice as long as the one before, so that
/// an iteration that ends early has read little more than it gave.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 1024;
/// Bytes after which a batch ends.
const BATCH_BYTES: usize = 256 << 10;

/// What each step gives.
#[derive(Clone, Copy)]
pub(crate) enum Gives {
    Keys,
    Values,
    Items,
    /// Keys with the lengths of their values.
    Sizes,
}

impl Gives {
    pub(crate) fn of(name: &str) -> Gives {
        match name {
            "keys" => Gives::Keys,
            "values" => Gives::Values,
            "sizes" => Gives::Sizes,
            _ => Gives::Items,
        }
    }
}

/// Records in the order of an iteration: their bytes one after another.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Where the key begins and ends; where the value ends, or its length if only that was read.
    records: Vec<(usize, usize, u64)>,
}

struct State {
    keys: Keys,
    batch: Arc<Batch>,
    /// The next record of the batch.
    next: usize,
    /// Records of the next batch.
    size: usize,
    has_ended: bool,
}

/// An iterator over the records of a range. It holds nothing of the store between two steps.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Cursor {
    source: Source,
    gives: Gives,
    is_reverse: bool,
    /// Taken without the GIL, or at once. No Python code runs while it is held.
    state: Mutex<State>,
    /// Keeps the store open.
    owner: Py<PyAny>,
}

impl Cursor {
    pub(crate) fn new(
        source: Source,
        keys: Keys,
        gives: Gives,
        is_reverse: bool,
        owner: Py<PyAny>,
    ) -> Cursor {
        Cursor {
            source,
            gives,
            is_reverse,
            state: Mutex::new(State {
                keys,
                batch: Arc::default(),
                next: 0,
                size: FIRST_BATCH,
                has_ended: false,
            }),
            owner,
        }
    }

    /// The next record of the batch.
    fn take(mut state: MutexGuard<'_, State>) -> Option<(Arc<Batch>, usize)> {
        let at = state.next;
        if at == state.batch.records.len() {
            return None;
        }
        state.next += 1;
        Some((Arc::clone(&state.batch), at))
    }

    fn fill(&self) -> Result<bool, Failure> {
        let mut state = self.state.lock();
        if state.next < state.batch.records.len() {
            // Another thread was here.
            return Ok(true);
        }
        if state.has_ended {
            return Ok(false);
        }
        let size = state.size;
        let read = Batch::read(
            &self.source,
            &mut state.keys,
            self.gives,
            self.is_reverse,
            size,
        );
        // After an error there is nothing more.
        state.has_ended = read.as_ref().map_or(true, |(_, is_last)| *is_last);
        let (batch, _) = read?;
        state.size = (2 * size).min(LARGEST_BATCH);
        state.next = 0;
        state.batch = Arc::new(batch);
        Ok(state.batch.len() > 0)
    }
}

#[pymethods]
impl Cursor {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.owner)
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Bound: each round takes a record, or reads a batch of them.
        loop {
            if let Some((batch, at)) = self.state.try_lock().and_then(Cursor::take) {
                return batch.give(py, self.gives, at).map(Some);
            }
            // A loop over an iterator in C, such as that of `list`, looks for no signals.
            py.check_signals()?;
            if !py.detach(|| self.fill())? {
                return Ok(None);
            }
        }
    }
}

impl Batch {
    /// Reads the first records of `keys`, or the last ones, and cuts them off; whether nothing is
    /// left.
    pub(crate) fn read(
        source: &Source,
        keys: &mut Keys,
        gives: Gives,
        is_reverse: bool,
        records: usize,
    ) -> Result<(Batch, bool), Failure> {
        let extent = Extent {
            is_reverse,
            keys_only: matches!(gives, Gives::Keys | Gives::Sizes),
            records,
            bytes: BATCH_BYTES,
        };
        let mut batch = Batch::default();
        let is_last = source.visit(keys, extent, |key, value, length| {
            let first = batch.bytes.len();
            batch.bytes.extend_from_slice(key);
            let end = batch.bytes.len();
            batch.bytes.extend_from_slice(value);
            let last = match extent.keys_only {
                true => length,
                false => batch.bytes.len() as u64,
            };
            batch.records.push((first, end, last));
        })?;
        Ok((batch, is_last))
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn give<'py>(
        &self,
        py: Python<'py>,
        gives: Gives,
        at: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (first, end, last) = self.records[at];
        let key = || PyBytes::new(py, &self.bytes[first..end]);
        let value = || PyBytes::new(py, &self.bytes[end..last as usize]);
        Ok(match gives {
            Gives::Keys => key().into_any(),
            Gives::Values => value().into_any(),
            Gives::Items => PyTuple::new(py, [key(), value()])?.into_any(),
            Gives::Sizes => (key(), last).into_bound_py_any(py)?,
        })
    }
}
