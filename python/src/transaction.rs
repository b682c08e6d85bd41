//! Transactions and snapshots.

use std::sync::Arc;

use isobath::Savepoint;
use parking_lot::RwLock;
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::operation::{Answer, Operation};
use crate::options;
use crate::store::Store;
use crate::waiting::Released;

/// A transaction until it ends. No thread waits for this lock while it holds the GIL, and none
/// runs Python code while it holds this lock.
pub(crate) type Open = RwLock<Option<isobath::Transaction>>;

/// A transaction over all trees of a store. `isobath.Transaction` adds what needs no native code.
#[pyclass(subclass, frozen, weakref, module = "isobath._native")]
pub(crate) struct Transaction {
    open: Released<Arc<Open>>,
}

impl Transaction {
    pub(crate) fn open(&self) -> Result<&Arc<Open>, Failure> {
        self.open.get().ok_or(Failure::Ended)
    }

    fn change<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut isobath::Transaction) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let open = self.open()?;
        let result = py.detach(|| work(open.write().as_mut().ok_or(Failure::Ended)?));
        Ok(result?)
    }
}

/// A place in a transaction to go back to.
#[pyclass(frozen, name = "Savepoint", module = "isobath._native")]
pub(crate) struct Place(Savepoint);

#[pymethods]
impl Transaction {
    #[new]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, Store>,
        isolation: &str,
        durability: Option<&Bound<'_, PyAny>>,
        read_only: bool,
    ) -> PyResult<Transaction> {
        let options = options::transaction(isolation, durability, read_only)?;
        let store = store.get().open()?;
        let begun = py.detach(|| store.begin_with(options));
        let begun = begun.map_err(Failure::from)?;
        Ok(Transaction {
            open: Released::new(Arc::new(RwLock::new(Some(begun)))),
        })
    }

    /// Makes all changes visible and durable, or none. Either way the transaction has ended.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open()?;
        let result = py.detach(|| {
            let transaction = open.write().take().ok_or(Failure::Ended)?;
            transaction.commit().map_err(Failure::from)
        });
        Ok(result?)
    }

    /// Starts to commit.
    fn start_commit(&self, py: Python<'_>) -> PyResult<Operation> {
        let open = self.open()?;
        let done = py.detach(|| -> Result<_, Failure> {
            let transaction = open.write().take().ok_or(Failure::Ended)?;
            Ok(transaction.commit_async())
        })?;
        Ok(Operation::new(async {
            done.await?;
            Ok(Answer::Nothing)
        }))
    }

    /// Ends the transaction without changing anything; nothing if it has ended.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open()?;
        py.detach(|| {
            let transaction = open.write().take();
            drop(transaction);
        });
        Ok(())
    }

    /// Whether it was committed or rolled back.
    #[getter]
    fn ended(&self, py: Python<'_>) -> PyResult<bool> {
        let open = self.open()?;
        Ok(py.detach(|| open.read().is_none()))
    }

    /// Remembers the changes so far.
    fn savepoint(&self, py: Python<'_>) -> PyResult<Place> {
        self.change(py, |transaction| Ok(Place(transaction.savepoint())))
    }

    /// Undoes all changes since a savepoint.
    fn rollback_to(&self, py: Python<'_>, savepoint: &Place) -> PyResult<()> {
        let place = savepoint.0;
        self.change(py, move |transaction| Ok(transaction.rollback_to(place)?))
    }
}
