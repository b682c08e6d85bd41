//! Stores.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use isobath::BackupOptions;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;
use crate::options;
use crate::waiting::{Progress, Released, run};

/// An open store. `isobath.Store` adds what needs no native code.
#[pyclass(subclass, frozen, weakref, module = "isobath._native")]
pub(crate) struct Store {
    store: Released<isobath::Store>,
}

impl Store {
    pub(crate) fn open(&self) -> Result<&isobath::Store, Failure> {
        self.store
            .get()
            .ok_or(Failure::Engine(isobath::Error::Closed))
    }

    fn cloned(&self) -> Result<isobath::Store, Failure> {
        self.open().cloned()
    }
}

#[pymethods]
impl Store {
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        how: String,
        arguments: &Bound<'_, PyDict>,
    ) -> PyResult<Store> {
        let options = options::of(arguments)?;
        let store = run(py, Progress::new(None), false, move |_| {
            Ok(match how.as_str() {
                "open" => isobath::Store::open(&paths, &options)?,
                "create" => isobath::Store::create(&paths, &options)?,
                "memory" => isobath::Store::in_memory(&options)?,
                _ => isobath::Store::open_or_create(&paths, &options)?,
            })
        })?;
        Ok(Store {
            store: Released::new(store),
        })
    }

    /// Writes a checkpoint and closes the store.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.cloned()?;
        Ok(py.detach(|| store.close()).map_err(Failure::from)?)
    }

    /// The store's files, as absolute paths.
    #[getter]
    fn paths(&self) -> PyResult<Vec<PathBuf>> {
        Ok(self.open()?.paths().to_vec())
    }

    /// The names of the trees.
    fn trees(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let store = self.open()?;
        let trees = py.detach(|| store.trees()).map_err(Failure::from)?;
        Ok(trees.into_iter().map(|tree| tree.name).collect())
    }

    /// Removes a tree with all of its records.
    fn drop_tree(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let store = self.open()?;
        Ok(py.detach(|| store.drop_tree(name)).map_err(Failure::from)?)
    }

    /// Writes a checkpoint: everything committed so far is on the drive then.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.cloned()?;
        run(py, Progress::new(None), false, move |_| {
            Ok(store.checkpoint()?)
        })
    }

    fn compacted(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let store = self.cloned()?;
        let done = run(
            py,
            Progress::new(None),
            false,
            move |_| Ok(store.compact()?),
        )?;
        Ok((done.bytes_before, done.bytes_after, done.bytes_discarded))
    }

    fn checked<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let store = self.cloned()?;
        let report = run(py, Progress::new(progress), false, move |work| {
            Ok(store.check(&mut |done, total| {
                work.tell(done, total);
            })?)
        })?;
        let dict = PyDict::new(py);
        dict.set_item("trees", report.trees)?;
        dict.set_item("pages", report.pages)?;
        dict.set_item("records", report.records)?;
        dict.set_item("value_chunks", report.value_chunks)?;
        dict.set_item("bytes_verified", report.bytes_verified)?;
        dict.set_item("problems", report.problems)?;
        Ok(dict)
    }

    fn backed_up(
        &self,
        py: Python<'_>,
        to: PathBuf,
        since: Option<PathBuf>,
        overwrite: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let store = self.cloned()?;
        let mut options = BackupOptions::new().overwrite(overwrite);
        if let Some(base) = since {
            options = options.since(base);
        }
        let report = run(py, Progress::new(progress), true, move |work| {
            let mut watch = |_: &'static str, done, total| go_on(work.tell(done, total));
            Ok(store.backup(&to, &options, &mut watch)?)
        })?;
        Ok(report.file_bytes)
    }

    /// The position in the log behind all that is durable.
    fn log_position(&self, py: Python<'_>) -> PyResult<String> {
        let store = self.open()?;
        let position = py.detach(|| store.log_position()).map_err(Failure::from)?;
        Ok(position.to_string())
    }

    fn numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.open()?.stats();
        let dict = PyDict::new(py);
        for stat in stats.numbers() {
            dict.set_item(stat.name, stat.value)?;
        }
        dict.set_item("segment_emptiness", stats.segment_emptiness.to_vec())?;
        dict.set_item("backend", stats.backend)?;
        Ok(dict)
    }

    /// A page of all statistics for Prometheus.
    #[pyo3(signature = (labels=BTreeMap::new()))]
    fn openmetrics(&self, labels: BTreeMap<String, String>) -> PyResult<String> {
        let labels: Vec<(&str, &str)> = labels
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        Ok(self.open()?.stats().to_openmetrics(&labels))
    }
}

/// Makes a store on `paths` from backups, the full one first.
#[pyfunction]
pub(crate) fn restore(
    py: Python<'_>,
    backups: Vec<PathBuf>,
    paths: Vec<PathBuf>,
    arguments: &Bound<'_, PyDict>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let options = options::of(arguments)?;
    run(py, Progress::new(progress), true, move |work| {
        let mut watch = |_: &'static str, done, total| go_on(work.tell(done, total));
        isobath::Store::restore(&backups, &paths, &options, &mut watch)?;
        Ok(())
    })
}

pub(crate) fn go_on(goes_on: bool) -> ControlFlow<()> {
    match goes_on {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}
