//! The application: keys with values.

use isobath::{Store, Transaction, Tree};
use isobath_raft::{Application, SnapshotFiles};
use openraft::BasicNode;
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    /// The types of this service.
    pub Types:
        D = Request,
        R = Answer,
        Node = BasicNode,
        SnapshotData = SnapshotFiles,
);

/// A change that clients ask for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Gives a key a value.
    Put {
        /// The key.
        key: String,
        /// Its value from now on.
        value: String,
    },
    /// Gives a key a value if it has another one.
    Swap {
        /// The key.
        key: String,
        /// The value that it must have; none if `None`.
        old: Option<String>,
        /// Its value from then on.
        new: String,
    },
}

/// What became of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It was made.
    #[default]
    Done,
    /// It was not: the key has this value.
    Other(Option<String>),
}

/// The keys, in a tree.
#[derive(Debug)]
pub struct Registers {
    tree: Tree,
}

impl Registers {
    /// The value of `key`, as of the last entry applied.
    ///
    /// # Errors
    ///
    /// Any of the store's.
    pub fn get(&self, key: &str) -> Result<Option<String>, isobath::Error> {
        Ok(self.tree.get(key)?.map(text))
    }
}

pub(crate) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Application<Types> for Registers {
    fn open(store: &Store) -> Result<Registers, isobath::Error> {
        let tree = store.open_or_create_tree("registers")?;
        Ok(Registers { tree })
    }

    fn apply(&self, txn: &mut Transaction, request: &Request) -> Result<Answer, isobath::Error> {
        let (key, value) = match request {
            Request::Put { key, value } => (key, value),
            Request::Swap { key, old, new } => {
                let found = txn.get(&self.tree, key)?.map(text);
                if found != *old {
                    return Ok(Answer::Other(found));
                }
                (key, new)
            }
        };
        txn.insert(&self.tree, key, value)?;
        Ok(Answer::Done)
    }
}
