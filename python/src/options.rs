//! The options of a store, from keyword arguments.

use std::path::PathBuf;
use std::time::Duration;

use isobath::{
    Backend, DirectMode, Durability, Isolation, Options, PolicyKind, TransactionOptions,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;

fn unknown(option: &str, wanted: &str) -> PyErr {
    Failure::Value(format!("option {option}: it is one of {wanted}")).into()
}

fn seconds(option: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| unknown(option, "the finite numbers of seconds from 0"))
}

/// `"synced"`, `"none"`, or the seconds of commits that a crash may lose.
pub(crate) fn durability(value: &Bound<'_, PyAny>) -> PyResult<Durability> {
    const WANTED: &str = "'synced', 'none', and the seconds that a crash may lose";
    if let Ok(window) = value.extract::<f64>() {
        let window_ms = seconds("durability", window)?.as_millis();
        let window_ms = u32::try_from(window_ms).map_err(|_| unknown("durability", WANTED))?;
        return Ok(Durability::Buffered { window_ms });
    }
    match value.extract::<&str>()? {
        "synced" => Ok(Durability::Synced),
        "none" => Ok(Durability::None),
        _ => Err(unknown("durability", WANTED)),
    }
}

pub(crate) fn transaction(
    isolation: &str,
    given_durability: Option<&Bound<'_, PyAny>>,
    read_only: bool,
) -> PyResult<TransactionOptions> {
    let isolation = match isolation {
        "snapshot" => Isolation::Snapshot,
        "serializable" => Isolation::Serializable,
        _ => return Err(unknown("isolation", "'snapshot' and 'serializable'")),
    };
    let options = TransactionOptions::new()
        .isolation(isolation)
        .read_only(read_only);
    Ok(match given_durability {
        Some(given) => options.durability(durability(given)?),
        None => options,
    })
}

pub(crate) fn of(arguments: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::new();
    for (name, value) in arguments {
        let name: String = name.extract()?;
        let set = set(options, &name, &value).map_err(|error| named(&name, &value, error))?;
        options = set
            .ok_or_else(|| PyTypeError::new_err(format!("there is no option {name} of a store")))?;
    }
    Ok(options)
}

/// The error of a value, which names the option.
fn named(name: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = value.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        return Failure::Value(format!("option {name}: {value} is out of range")).into();
    }
    match error.is_instance_of::<PyTypeError>(py) {
        true => PyTypeError::new_err(format!("option {name}: {}", error.value(py))),
        false => error,
    }
}

/// `None`: there is no option of that name.
fn set(options: Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<Options>> {
    Ok(Some(match name {
        "pool_bytes" => options.pool_bytes(value.extract()?),
        "workers" => options.workers(value.extract()?),
        "tasks_per_worker" => options.tasks_per_worker(value.extract()?),
        "task_stack_bytes" => options.task_stack_bytes(value.extract()?),
        "transaction_bytes" => options.transaction_bytes(value.extract()?),
        "depth_per_worker" => options.depth_per_worker(value.extract()?),
        "segment_bytes" => options.segment_bytes(value.extract()?),
        "expected_bytes" => options.expected_bytes(value.extract()?),
        "volume_limit_bytes" => options.volume_limit_bytes(value.extract()?),
        "fill_factor" => options.fill_factor(value.extract()?),
        "log_bytes" => options.log_bytes(value.extract()?),
        "log_path" => options.log_path(value.extract::<PathBuf>()?),
        "overlays" => options.overlays(value.extract()?),
        "publish_stats" => options.publish_stats(value.extract()?),
        "read_only" => options.read_only(value.extract()?),
        "open_timeout" => options.open_timeout(seconds(name, value.extract()?)?),
        "stripe_unit" => options.stripe_unit(value.extract()?),
        "version_store_bytes" => options.version_store_bytes(value.extract()?),
        "backend" => options.backend(match value.extract::<&str>()? {
            "auto" => Backend::Auto,
            "io_uring" => Backend::IoUring {
                iopoll: false,
                sqpoll: false,
            },
            "libaio" => Backend::Libaio,
            "pread" => Backend::Pread,
            _ => return Err(unknown(name, "'auto', 'io_uring', 'libaio' and 'pread'")),
        }),
        "direct" => options.direct(match value.extract::<&str>()? {
            "auto" => DirectMode::Auto,
            "required" => DirectMode::Required,
            "off" => DirectMode::Off,
            _ => return Err(unknown(name, "'auto', 'required' and 'off'")),
        }),
        "cleaning_policy" => {
            let kind = value.extract::<&str>()?.parse::<PolicyKind>();
            options.cleaning_policy(kind.map_err(|_| unknown(name, &PolicyKind::names()))?)
        }
        "durability" => options.durability(durability(value)?),
        _ => return Ok(None),
    }))
}
