//! Options of stores.

use std::ffi::c_char;
use std::time::Duration;

use isobath::{Backend, DirectMode, Durability, Options, PolicyKind};

use super::status::{Failure, isobath_status};
use super::{free, guard, object, object_mut, text_of};

/// How a store is created and opened. One thread at a time.
pub struct isobath_options(pub(crate) Options);

/// When commits are acknowledged.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum isobath_durability {
    /// Once they are on the drive, its volatile cache included.
    ISOBATH_SYNCED = 0,
    /// At once; on the drive within so many milliseconds.
    ISOBATH_BUFFERED = 1,
    /// At once; on the drive when something else makes it so.
    ISOBATH_NONE = 2,
}

/// A durability that C gives as a number.
pub(crate) fn durability(kind: i32, window_ms: u32) -> Result<Durability, Failure> {
    match kind {
        0 => Ok(Durability::Synced),
        1 => Ok(Durability::Buffered { window_ms }),
        2 => Ok(Durability::None),
        _ => Err(Failure::Argument("there is no such durability")),
    }
}

/// Options with their defaults, which fit the machine. Freed by isobath_options_free. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_options_new() -> *mut isobath_options {
    Box::into_raw(Box::new(isobath_options(Options::new())))
}

/// Frees options; stores that were opened with them are not concerned. One thread at a time.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_options_free(options: *mut isobath_options) {
    given!(free(options));
}

/// Sets an option by its name, as the book's page on tuning lists them, to a value in text: numbers
/// in decimal; sizes in bytes, or with KiB, MiB, GiB behind them; "true" and "false"; names such as
/// "mdc" for `cleaning_policy`, "io_uring", "libaio", "pread", "auto" for `backend`, "auto",
/// "required", "off" for `direct`; "synced", "buffered:MILLISECONDS", "none" for `durability`;
/// milliseconds for `open_timeout`. One thread at a time.
///
/// # Safety
///
/// As of all; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_options_set(
    options: *mut isobath_options,
    name: *const c_char,
    value: *const c_char,
) -> isobath_status {
    guard(|| {
        let (options, name, value) =
            given!((object_mut(options)?, text_of(name)?, text_of(value)?));
        options.0 = set(options.0.clone(), name, value).ok_or_else(|| {
            let reason = format!("option {name}: no such option, or no such value: {value:?}");
            Failure::Status(isobath_status::ISOBATH_OPTION, reason)
        })?;
        Ok(isobath_status::ISOBATH_OK)
    })
}

/// Sets a number, as isobath_options_set does. One thread at a time.
///
/// # Safety
///
/// As of all; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_options_set_number(
    options: *mut isobath_options,
    name: *const c_char,
    value: u64,
) -> isobath_status {
    guard(|| {
        let (options, name) = given!((object_mut(options)?, text_of(name)?));
        options.0 = set(options.0.clone(), name, &value.to_string()).ok_or_else(|| {
            let reason = format!("option {name}: no such option, or no such value: {value}");
            Failure::Status(isobath_status::ISOBATH_OPTION, reason)
        })?;
        Ok(isobath_status::ISOBATH_OK)
    })
}

/// The options, or the defaults for NULL.
///
/// # Safety
///
/// As for [`object`].
pub(crate) unsafe fn options_of(options: *const isobath_options) -> Options {
    given!(object(options)).map_or_else(|_| Options::new(), |options| options.0.clone())
}

fn set(options: Options, name: &str, value: &str) -> Option<Options> {
    let number = || bytes(value);
    let small = || bytes(value).and_then(|number| u32::try_from(number).ok());
    Some(match name {
        "pool_bytes" => options.pool_bytes(number()?),
        "workers" => options.workers(number()? as usize),
        "tasks_per_worker" => options.tasks_per_worker(number()? as usize),
        "task_stack_bytes" => options.task_stack_bytes(number()? as usize),
        "transaction_bytes" => options.transaction_bytes(number()?),
        "depth_per_worker" => options.depth_per_worker(small()?),
        "segment_bytes" => options.segment_bytes(small()?),
        "expected_bytes" => options.expected_bytes(number()?),
        "volume_limit_bytes" => options.volume_limit_bytes(match value {
            "none" => None,
            _ => Some(number()?),
        }),
        "fill_factor" => options.fill_factor(value.parse().ok()?),
        "log_bytes" => options.log_bytes(number()?),
        "log_path" => options.log_path(value),
        "overlays" => options.overlays(value.parse().ok()?),
        "publish_stats" => options.publish_stats(value.parse().ok()?),
        "read_only" => options.read_only(value.parse().ok()?),
        "open_timeout" => options.open_timeout(Duration::from_millis(number()?)),
        "stripe_unit" => options.stripe_unit(small()?),
        "version_store_bytes" => options.version_store_bytes(number()?),
        "backend" => options.backend(match value {
            "auto" => Backend::Auto,
            "io_uring" => Backend::IoUring {
                iopoll: false,
                sqpoll: false,
            },
            "libaio" => Backend::Libaio,
            "pread" => Backend::Pread,
            _ => return None,
        }),
        "direct" => options.direct(match value {
            "auto" => DirectMode::Auto,
            "required" => DirectMode::Required,
            "off" => DirectMode::Off,
            _ => return None,
        }),
        "cleaning_policy" => {
            let kind = PolicyKind::ALL.iter().find(|kind| kind.name() == value)?;
            options.cleaning_policy(*kind)
        }
        "durability" => options.durability(match value {
            "synced" => Durability::Synced,
            "none" => Durability::None,
            _ => Durability::Buffered {
                window_ms: value.strip_prefix("buffered:")?.parse().ok()?,
            },
        }),
        _ => return None,
    })
}

/// A number, with or without a binary unit.
fn bytes(value: &str) -> Option<u64> {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)]
        .iter()
        .find_map(|(unit, shift)| Some((value.strip_suffix(unit)?, *shift)))
        .unwrap_or((value, 0));
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}
