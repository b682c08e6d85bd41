//! Records are JSON: `isobath get` shows them.

use isobath::{Error as StoreError, Tree};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

fn failed(name: &str) -> impl FnOnce(serde_json::Error) -> Error {
    move |source| Error::Record {
        name: name.to_owned(),
        source,
    }
}

pub(crate) fn encode(name: &str, value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(failed(name))
}

pub(crate) fn decode<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(failed(name))
}

/// The record of `tree` under the key `name`.
pub(crate) fn read<T: DeserializeOwned>(tree: &Tree, name: &str) -> Result<Option<T>, Error> {
    from_found(name, tree.get(name))
}

/// What the store has answered when it was asked for `name`.
pub(crate) fn from_found<T: DeserializeOwned>(
    name: &str,
    found: Result<Option<Vec<u8>>, StoreError>,
) -> Result<Option<T>, Error> {
    found?.map(|bytes| decode(name, &bytes)).transpose()
}
