//! The trees of the objects, and work on them as tasks and transactions.

use std::sync::Arc;

use isobath::{Error, Store, Transaction, TransactionOptions, Tree};
use object_store::path::Path;

use crate::error::Failure;
use crate::id::Id;
use crate::record::ObjectRecord;

/// Parts that are removed one by one; more are removed as a range.
const FEW_PARTS: usize = 16;

pub(crate) struct Trees {
    pub(crate) store: Store,
    /// Records by path.
    pub(crate) objects: Tree,
    /// Parts by id and number.
    pub(crate) contents: Tree,
    /// Uploads under way by id.
    pub(crate) uploads: Tree,
}

impl Trees {
    pub(crate) fn open(store: &Store, name: &str) -> Result<Trees, Error> {
        let open = |name: &str| match store.tree(name) {
            // A store that is read-only makes none.
            Err(Error::NoSuchTree { .. }) => store.open_or_create_tree(name),
            other => other,
        };
        Ok(Trees {
            objects: open(name)?,
            contents: open(&format!("{name}.contents"))?,
            uploads: open(&format!("{name}.uploads"))?,
            store: store.clone(),
        })
    }

    /// Runs `work` as a task of the store.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Trees) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let trees = Arc::clone(self);
        let task = self.store.spawn(move || work(&trees));
        match task.await {
            Ok(result) => result,
            Err(panic) => {
                // It was not run if the store is closed.
                self.objects.contains_async(b"").await?;
                let message = panic.to_string();
                Err(Error::TaskPanicked { message }.into())
            }
        }
    }

    /// Runs `work` in a transaction, as a task, until that commits. It begins with this call, and
    /// goes on where the future is dropped.
    pub(crate) fn transact<T, W>(
        self: &Arc<Self>,
        options: TransactionOptions,
        mut work: W,
    ) -> impl Future<Output = Result<T, Failure>> + Send + 'static + use<T, W>
    where
        T: Send + 'static,
        W: FnMut(&Trees, &mut Transaction) -> Result<T, Failure> + Send + 'static,
    {
        let trees = Arc::clone(self);
        self.store
            .transact_async(options, move |transaction| work(&trees, transaction))
    }

    /// The object of a path.
    pub(crate) fn record(
        &self,
        transaction: &Transaction,
        location: &Path,
    ) -> Result<Option<ObjectRecord>, Error> {
        let record = transaction.get(&self.objects, location.as_ref())?;
        record.map(|bytes| ObjectRecord::decode(&bytes)).transpose()
    }

    /// Gives a path a record, and removes the contents that it had.
    pub(crate) fn replace(
        &self,
        transaction: &mut Transaction,
        location: &Path,
        record: &ObjectRecord,
        old: Option<&ObjectRecord>,
    ) -> Result<(), Error> {
        transaction.insert(&self.objects, location.as_ref(), record.encode())?;
        match old {
            Some(old) => self.remove_contents(transaction, old),
            None => Ok(()),
        }
    }

    /// Removes all contents of an object.
    pub(crate) fn remove_contents(
        &self,
        transaction: &mut Transaction,
        record: &ObjectRecord,
    ) -> Result<(), Error> {
        if record.parts.len() > FEW_PARTS {
            return self.remove_parts(transaction, record.id);
        }
        for part in 0..record.parts.len() as u32 {
            transaction.remove(&self.contents, record.id.part_key(part))?;
        }
        Ok(())
    }

    /// Removes all parts of an id.
    pub(crate) fn remove_parts(&self, transaction: &mut Transaction, id: Id) -> Result<(), Error> {
        let parts = isobath::prefix_range(id.key());
        transaction.remove_range(&self.contents, parts)?;
        Ok(())
    }
}
