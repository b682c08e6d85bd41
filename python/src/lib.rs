//! The native part of the Python package `isobath`: the engine over PyO3. The package's Python
//! files have what needs no native code, and the documentation.
//!
//! Each call that may wait releases the GIL. Locks of this crate are taken without the GIL, or at
//! once, and none is held while Python code runs: so neither can wait for the other.

#[cfg(feature = "benchmarks")]
mod benchmarks;
mod bytes;
mod changes;
mod cursor;
mod errors;
mod model;
mod operation;
mod options;
mod source;
mod store;
mod transaction;
mod tree;
mod value;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[cfg(feature = "benchmarks")]
    #[pymodule_export]
    use crate::benchmarks::{nothing, rust_get, rust_get_many};
    #[pymodule_export]
    use crate::changes::{Changes, Committed};
    #[pymodule_export]
    use crate::cursor::Cursor;
    #[pymodule_export]
    use crate::model::{Predictor, best_node_pages, printed_lsm_us};
    #[pymodule_export]
    use crate::operation::{Completions, Operation};
    #[pymodule_export]
    use crate::store::{Store, restore};
    #[pymodule_export]
    use crate::transaction::{Place, Transaction};
    #[pymodule_export]
    use crate::tree::Tree;
    #[pymodule_export]
    use crate::value::{Content, Reader, Writer};
    #[pymodule_export]
    const MAX_KEY_BYTES: usize = isobath::MAX_KEY_BYTES;
    #[pymodule_export]
    const MAX_VALUE_BYTES: u64 = isobath::MAX_VALUE_BYTES;
}
