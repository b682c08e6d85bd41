//! The interface of the crate [`object_store`] over an [Isobath](isobath) store.
//!
//! An [`IsobathObjectStore`] keeps objects in a store, beside its other trees. What takes an
//! `Arc<dyn ObjectStore>`, such as DataFusion or delta-rs, works on it.
//!
//! - Each operation is one transaction: a put, also one with a condition, a copy, a rename and a
//!   delete leave all of it or nothing. A rename moves no contents, however large they are.
//! - A multipart upload takes parts of any size in any order, and the object appears when it is
//!   completed. An upload that is aborted, dropped, or cut off by a crash leaves nothing.
//! - Ranges read only the chunks that they need. A stream reads the object as it was when it began,
//!   whatever others write.
//! - Operations run as tasks of the store's workers: they need no particular async runtime, and
//!   block none.
//!
//! ```
//! use std::sync::Arc;
//!
//! use isobath::{Options, Store};
//! use isobath_object_store::IsobathObjectStore;
//! use object_store::path::Path;
//! use object_store::{ObjectStore, ObjectStoreExt, PutMode};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! let objects: Arc<dyn ObjectStore> = Arc::new(IsobathObjectStore::open(&store, "objects")?);
//!
//! let path = Path::from("tables/people/0.parquet");
//! objects.put(&path, "ada, grace".into()).await?;
//! assert_eq!(objects.get_range(&path, 5..10).await?, "grace");
//!
//! let again = objects.put_opts(&path, "linus".into(), PutMode::Create.into());
//! assert!(matches!(again.await, Err(object_store::Error::AlreadyExists { .. })));
//!
//! objects.rename(&path, &Path::from("tables/people/1.parquet")).await?;
//! let tables = objects.list_with_delimiter(Some(&Path::from("tables"))).await?;
//! assert_eq!(tables.common_prefixes, [Path::from("tables/people")]);
//! # drop(objects);
//! # store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is stored
//!
//! Three trees, for a store of objects that is named `NAME`:
//!
//! | tree | key | value |
//! | --- | --- | --- |
//! | `NAME` | the path | id, time, lengths of the parts, attributes |
//! | `NAME.contents` | id and number of a part | the part |
//! | `NAME.uploads` | id | attributes of an upload under way |
//!
//! Each write of an object has a new id, which is its `e_tag`. Contents are never changed: so a
//! completed upload, a rename and an overwrite only change which id a path has. A path has at most
//! [`isobath::MAX_KEY_BYTES`] bytes of UTF-8. Objects have no older versions, and tags are not
//! kept.

mod error;
mod id;
mod list;
mod multipart;
mod operations;
mod read;
mod record;
mod trees;
mod upload;
mod write;

use std::fmt;
use std::sync::Arc;

use isobath::Store;

use trees::Trees;

/// Objects in three trees of a store. Clones share them.
#[derive(Clone)]
pub struct IsobathObjectStore {
    trees: Arc<Trees>,
}

impl IsobathObjectStore {
    /// The objects that are named `name` in a store, whose trees are made if they are not there.
    /// Removes what uploads have left that can no longer go on.
    ///
    /// This waits for the drive: call it before asynchronous work begins, or in a task of the
    /// store.
    ///
    /// # Errors
    ///
    /// As for [`Store::open_or_create_tree`] and [`Store::transact`].
    pub fn open(store: &Store, name: &str) -> Result<IsobathObjectStore, isobath::Error> {
        let trees = Trees::open(store, name)?;
        upload::remove_left(&trees)?;
        Ok(IsobathObjectStore {
            trees: Arc::new(trees),
        })
    }

    /// The store that has the objects.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.trees.store
    }
}

impl fmt::Debug for IsobathObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsobathObjectStore")
            .field("store", &self.trees.store)
            .field("name", &self.trees.objects.name())
            .finish()
    }
}

impl fmt::Display for IsobathObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Isobath({})", self.trees.objects.name())
    }
}
