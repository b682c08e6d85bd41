//! The stream of a store's committed changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isobath::{Change, ChangesStop, LogPosition};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::errors::Failure;
use crate::options;
use crate::store::Store;
use crate::waiting::{Progress, Released, run};

/// How often a waiting stream looks for signals.
const INTERVAL: Duration = Duration::from_millis(50);
/// Records of a replaced tree that are read at a time, and bytes after which no more are.
const BATCH: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;

/// A stream of changes. `isobath.Changes` iterates over it.
#[pyclass(subclass, frozen, module = "isobath._native")]
pub(crate) struct Changes {
    /// Taken without the GIL.
    changes: Released<Mutex<isobath::Changes>>,
    stop: ChangesStop,
}

fn position_of(text: Option<&str>) -> Result<Option<LogPosition>, Failure> {
    Ok(text.map(str::parse::<LogPosition>).transpose()?)
}

/// A kind, a tree, a key and a value.
type PyChange<'py> = (
    &'static str,
    String,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
);

fn shown<'py>(py: Python<'py>, change: &Change) -> Option<PyChange<'py>> {
    let bytes = |bytes: &[u8]| Some(PyBytes::new(py, bytes));
    Some(match change {
        Change::Put { tree, key, value } => ("put", tree.to_string(), bytes(key), bytes(value)),
        Change::Remove { tree, key } => ("remove", tree.to_string(), bytes(key), None),
        Change::Create { tree } => ("create", tree.to_string(), None, None),
        Change::Drop { tree } => ("drop", tree.to_string(), None, None),
        Change::Replace { tree, from } => ("replace", tree.to_string(), bytes(from), None),
        _ => return None,
    })
}

#[pymethods]
impl Changes {
    /// Of an open store, or of the one on `paths`, which another process may write.
    #[new]
    fn new(
        py: Python<'_>,
        store: Option<&Store>,
        paths: Vec<PathBuf>,
        position: Option<&str>,
        arguments: &Bound<'_, PyDict>,
    ) -> PyResult<Changes> {
        let from = position_of(position)?;
        let options = options::of(arguments)?;
        let store = store.map(|store| store.open().cloned()).transpose()?;
        let changes = run(py, Progress::new(None), false, move |_| {
            Ok(match store {
                Some(store) => store.changes(from)?,
                None => isobath::Store::changes_beside(&paths, &options, from)?,
            })
        })?;
        Ok(Changes {
            stop: changes.stop_handle(),
            changes: Released::new(Mutex::new(changes)),
        })
    }

    /// The next transaction, or `None` after `timeout` seconds, or once the stream was stopped.
    fn take(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Committed>> {
        let began = Instant::now();
        let timeout = timeout.map(|seconds| {
            let seconds = seconds.max(0.0);
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        });
        loop {
            let left = timeout.map_or(INTERVAL, |timeout| timeout.saturating_sub(began.elapsed()));
            let wait = left.min(INTERVAL);
            let changes = self
                .changes
                .get()
                .ok_or(Failure::Engine(isobath::Error::Closed))?;
            let next = py.detach(|| changes.lock().next_within(wait));
            if let Some(committed) = next.map_err(Failure::from)? {
                return Ok(Some(Committed::new(committed)));
            }
            py.check_signals()?;
            if left.is_zero() || self.stop.is_stopped() {
                return Ok(None);
            }
        }
    }

    /// The position behind what was given out.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<String> {
        let changes = self
            .changes
            .get()
            .ok_or(Failure::Engine(isobath::Error::Closed))?;
        Ok(py.detach(|| changes.lock().position()).to_string())
    }

    /// Ends the waiting, of another thread too.
    fn stop(&self) {
        self.stop.stop();
    }

    /// Whether it was stopped.
    #[getter]
    fn stopped(&self) -> bool {
        self.stop.is_stopped()
    }
}

/// A transaction of the stream.
#[pyclass(subclass, frozen, module = "isobath._native")]
pub(crate) struct Committed {
    /// Taken without the GIL.
    committed: Arc<Released<Mutex<isobath::Committed>>>,
    /// The position behind it.
    #[pyo3(get)]
    position: String,
    /// Whether the store has no trees but those that are replaced.
    #[pyo3(get)]
    is_whole: bool,
}

impl Committed {
    fn new(committed: isobath::Committed) -> Committed {
        Committed {
            position: committed.position.to_string(),
            is_whole: committed.is_whole,
            committed: Arc::new(Released::new(Mutex::new(committed))),
        }
    }
}

#[pymethods]
impl Committed {
    /// Its changes: kind, tree, key, value.
    fn listed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let changes = self.committed.get();
        let changes = changes.map(|committed| py.detach(|| committed.lock().changes.clone()));
        let changes = changes.unwrap_or_default();
        PyList::new(py, changes.iter().filter_map(|change| shown(py, change)))
    }

    /// The next records of a replaced tree behind the key `last`.
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        tree: String,
        last: Option<Vec<u8>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let committed = Arc::clone(&self.committed);
        let records = run(py, Progress::new(None), false, move |_| {
            let committed = committed
                .get()
                .ok_or(Failure::Engine(isobath::Error::Closed))?;
            let committed = committed.lock();
            let range = match last {
                None => committed.records(&tree)?,
                Some(last) => committed.records_behind(&tree, last)?,
            };
            let (mut records, mut bytes) = (Vec::new(), 0);
            for record in range {
                let record = record?;
                bytes += record.0.len() + record.1.len();
                records.push(record);
                if bytes >= BATCH_BYTES || records.len() == BATCH {
                    break;
                }
            }
            Ok(records)
        })?;
        let pairs = records
            .iter()
            .map(|(key, value)| (PyBytes::new(py, key), PyBytes::new(py, value)));
        PyList::new(py, pairs)
    }
}
