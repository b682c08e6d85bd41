//! What `benchmarks/reads.py` compares with: the engine without Python, and Python without the
//! engine. Only with the feature `benchmarks`.

use std::hint::black_box;
use std::time::Instant;

use pyo3::prelude::*;

use crate::bytes::Buffer;
use crate::errors::Failure;
use crate::tree::Tree;

/// Does nothing with the arguments of `Tree.get`.
#[pyfunction]
#[pyo3(signature = (key, default=None, /))]
pub(crate) fn nothing<'py>(
    key: Buffer<'_>,
    default: Option<Bound<'py, PyAny>>,
) -> Option<Bound<'py, PyAny>> {
    black_box(&key);
    default
}

/// Seconds that Rust takes for `get_many` of all keys, so many times.
#[pyfunction]
pub(crate) fn rust_get_many(
    py: Python<'_>,
    tree: &Bound<'_, Tree>,
    keys: Vec<Vec<u8>>,
    rounds: usize,
) -> PyResult<f64> {
    let tree = tree.get().plain()?;
    let seconds = py.detach(|| -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(tree.get_many(&keys)?);
        }
        Ok(start.elapsed().as_secs_f64())
    });
    Ok(seconds?)
}

/// Seconds that Rust takes for `get` of all keys one after another, so many times.
#[pyfunction]
pub(crate) fn rust_get(
    py: Python<'_>,
    tree: &Bound<'_, Tree>,
    keys: Vec<Vec<u8>>,
    rounds: usize,
) -> PyResult<f64> {
    let tree = tree.get().plain()?;
    let seconds = py.detach(|| -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..rounds {
            for key in &keys {
                black_box(tree.get(key)?);
            }
        }
        Ok(start.elapsed().as_secs_f64())
    });
    Ok(seconds?)
}
