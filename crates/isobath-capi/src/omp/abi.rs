//! The functions of `isobath_omp.h`.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::budget::MemoryBudget;
use super::session::Session;
use super::settings::{HELP, Settings};
use super::transfer;
use crate::kvs::code::{self, Code};
use crate::kvs::device::is_key_length;
use crate::kvs::request::Bytes;
use crate::kvs::types::kvs_result::*;
use crate::kvs::types::*;
use crate::kvs::{guard, registry};

/// The session of this process.
static SESSION: RwLock<Option<Arc<Session>>> = RwLock::new(None);
/// How often that has changed; counted with the lock, after the change.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A session that a thread remembers. The outer count of uses is the thread's own; all threads
/// share the inner one.
#[allow(
    clippy::redundant_allocation,
    reason = "the outer count is the thread's"
)]
type Remembered = Rc<Arc<Session>>;

thread_local! {
    /// The session after so many changes. Accesses of all threads ask for it: they take no lock,
    /// and write to nothing that is shared.
    static REMEMBERED: RefCell<(u64, Option<Remembered>)> = const { RefCell::new((0, None)) };
}

/// The session, for calls that need none: if it is missing, the thread's message stays what it
/// was.
fn current() -> Option<Remembered> {
    let look_up = || SESSION.read().clone().map(Rc::new);
    let changes = CHANGES.load(Ordering::Acquire);
    let remembered = REMEMBERED.try_with(|remembered| {
        let mut remembered = remembered.borrow_mut();
        if remembered.0 != changes {
            *remembered = (changes, look_up());
        }
        remembered.1.clone()
    });
    // A thread that ends remembers nothing any more.
    remembered.unwrap_or_else(|_| look_up())
}

/// The session, for calls that need one.
fn session() -> Result<Remembered, Code> {
    let reason = "isobath_omp_init was not called";
    current().ok_or_else(|| code::because(KVS_ERR_PARAM_INVALID, reason))
}

/// What [`isobath_omp_load`] calls with each value.
pub type isobath_omp_work = Option<
    unsafe extern "C" fn(context: *mut c_void, index: usize, value: *const c_void, length: usize),
>;

/// Sums over all loads and stores of the session.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct isobath_omp_totals {
    /// Objects.
    pub requests: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Nanoseconds that compute threads waited.
    pub wait_ns: u64,
    /// Nanoseconds that data tasks worked on requests.
    pub busy_ns: u64,
}

/// Begins the session; takes this library's options out of the program's arguments.
///
/// # Safety
///
/// `argc` and `argv` are those of `main`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_omp_start(
    argc: *mut c_int,
    argv: *mut *mut c_char,
    processors: c_int,
) -> kvs_result {
    guard(|| {
        let mut session = SESSION.write();
        if session.is_some() {
            let reason = "isobath_omp_init was called before";
            return Err(code::because(KVS_ERR_PARAM_INVALID, reason));
        }
        let count = match argc.is_null() || argv.is_null() {
            true => 0,
            false => given!(argc.read()).max(0) as usize,
        };
        // SAFETY: `argv` has so many strings.
        let pointers: Vec<*mut c_char> = (0..count).map(|at| unsafe { *argv.add(at) }).collect();
        let arguments: Vec<String> = pointers
            .iter()
            .map(|text| given!(CStr::from_ptr(*text)))
            .map(|text| text.to_string_lossy().into_owned())
            .collect();
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let started = Settings::read(processors.max(1) as u32, variables, &arguments)
            .and_then(|(settings, others)| Ok((Session::start(settings)?, others)));
        let (started, others) =
            started.map_err(|reason| code::because(KVS_ERR_PARAM_INVALID, reason))?;
        if count > 0 {
            for (at, from) in others.iter().enumerate() {
                // SAFETY: there are fewer than before.
                unsafe { argv.add(at).write(pointers[*from]) };
            }
            if others.len() < count {
                // SAFETY: as above; as `main` gets it, the last one is NULL.
                unsafe { argv.add(others.len()).write(std::ptr::null_mut()) };
            }
            given!(argc.write(others.len() as c_int));
        }
        *session = Some(started);
        CHANGES.fetch_add(1, Ordering::Release);
        Ok(())
    })
}

/// Help for the options.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_help() -> *const c_char {
    HELP.as_ptr()
}

/// Takes over the limits and the channel of a device.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_attach(dev_hd: kvs_device_handle) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        session()?.attach(device.handle);
        Ok(())
    })
}

/// A region begins; how many compute threads it gets.
///
/// # Safety
///
/// `name` is a string that ends with a zero, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_omp_region_begin(name: *const c_char) -> c_int {
    let mut threads = 1;
    guard(|| {
        let name = match name.is_null() {
            true => "region".into(),
            false => given!(CStr::from_ptr(name)).to_string_lossy(),
        };
        threads = session()?.begin(&name) as c_int;
        Ok(())
    });
    threads
}

/// The region ends.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_region_end(items: u64) {
    guard(|| {
        session()?.end(items);
        Ok(())
    });
}

/// Data accesses that a compute thread may have at once, now.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_data_accesses() -> u32 {
    current().map_or(1, |session| session.data_accesses())
}

/// 1 if all threads share one data channel.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_is_serial() -> c_int {
    current().map_or(1, |session| c_int::from(session.is_serial()))
}

/// Counts data accesses that the program made by its own means.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_count(requests: u64, bytes: u64) {
    guard(|| {
        session()?.count(requests, bytes);
        Ok(())
    });
}

/// Keys as they are used.
///
/// # Safety
///
/// `keys` has `count` keys, which are valid.
unsafe fn keys_of(keys: *const kvs_key, count: usize) -> Result<Vec<Bytes>, Code> {
    if keys.is_null() && count > 0 {
        return Err(KVS_ERR_PARAM_INVALID);
    }
    let keys = match count {
        0 => &[],
        _ => given!(slice::from_raw_parts(keys, count)),
    };
    let check = |key: &kvs_key| match () {
        () if key.key.is_null() => Err(KVS_ERR_PARAM_INVALID),
        () if !is_key_length(key.length as usize) => Err(KVS_ERR_KEY_LENGTH_INVALID),
        () => Ok(Bytes::new(key.key, key.length as usize)),
    };
    keys.iter().map(check).collect()
}

/// Loads objects.
///
/// # Safety
///
/// `keys` has `count` keys; they stay valid until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_omp_load(
    ks_hd: kvs_key_space_handle,
    count: usize,
    keys: *const kvs_key,
    in_order: c_int,
    work: isobath_omp_work,
    context: *mut c_void,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        let keys = given!(keys_of(keys, count)?);
        let work = work.ok_or(KVS_ERR_PARAM_INVALID)?;
        let session = current();
        let endless = MemoryBudget::new();
        let budget = session
            .as_ref()
            .map_or(&endless, |session| session.budget());
        let (spent, result) =
            transfer::load(&space, &keys, in_order != 0, budget, |index, value| {
                // SAFETY: the program gave a function of this type.
                unsafe { work(context, index, value.as_ptr().cast(), value.len()) };
            });
        if let Some(session) = session {
            session.spend(spent);
        }
        result
    })
}

/// Stores objects.
///
/// # Safety
///
/// `keys` and `values` have `count` elements each; they stay valid until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_omp_store(
    ks_hd: kvs_key_space_handle,
    count: usize,
    keys: *const kvs_key,
    values: *const kvs_value,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        let keys = given!(keys_of(keys, count)?);
        if values.is_null() && count > 0 {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        let mut pairs = Vec::with_capacity(count);
        for (at, key) in keys.into_iter().enumerate() {
            let value = given!(*values.add(at));
            match value.length {
                length if length > space.device.max_value() => {
                    return Err(KVS_ERR_VALUE_LENGTH_INVALID);
                }
                length if length > 0 && value.value.is_null() => return Err(KVS_ERR_PARAM_INVALID),
                _ if value.offset != 0 => return Err(KVS_ERR_VALUE_OFFSET_INVALID),
                _ => {}
            }
            pairs.push((key, Bytes::new(value.value, value.length as usize)));
        }
        let session = current();
        let endless = MemoryBudget::new();
        let budget = session
            .as_ref()
            .map_or(&endless, |session| session.budget());
        let (spent, result) = transfer::store(&space, &pairs, budget);
        if let Some(session) = session {
            session.spend(spent);
        }
        result
    })
}

/// Sums over all loads and stores.
///
/// # Safety
///
/// `totals` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_omp_get_totals(totals: *mut isobath_omp_totals) -> kvs_result {
    guard(|| {
        if totals.is_null() {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        let spent = session()?.spent();
        let answer = isobath_omp_totals {
            requests: spent.requests,
            bytes: spent.bytes,
            wait_ns: spent.wait_ns,
            busy_ns: spent.busy_ns,
        };
        given!(totals.write(answer));
        Ok(())
    })
}

/// Ends the session and writes its log out.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_omp_finish() -> kvs_result {
    guard(|| {
        let mut known = SESSION.write();
        let session = known.take().ok_or_else(|| {
            code::because(KVS_ERR_PARAM_INVALID, "isobath_omp_init was not called")
        })?;
        CHANGES.fetch_add(1, Ordering::Release);
        drop(known);
        match session.finish() {
            true => Ok(()),
            false => Err(code::because(
                KVS_ERR_SYS_IO,
                "the log could not be written",
            )),
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A session that begins and ends is seen by threads that have remembered another one, and
    /// asking for it takes no lock.
    #[test]
    fn threads_remember_the_session_without_a_lock() {
        let (ask, asked) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let other = std::thread::spawn(move || {
            for () in asked {
                isobath_omp_count(1, 1);
                answer.send(isobath_omp_data_accesses()).unwrap();
            }
        });
        let accesses = || {
            ask.send(()).unwrap();
            answered.recv_timeout(Duration::from_secs(10))
        };
        assert_eq!(accesses(), Ok(1));
        for pda in [7, 9] {
            let option = std::ffi::CString::new(format!("--isobath-omp-pda={pda}")).unwrap();
            let arguments = [c"program".to_owned(), option];
            let mut pointers: Vec<*mut c_char> = arguments
                .iter()
                .map(|text| text.as_ptr().cast_mut())
                .collect();
            let mut count = 2;
            // SAFETY: as `main` gets them.
            let started = unsafe { isobath_omp_start(&mut count, pointers.as_mut_ptr(), 2) };
            assert_eq!(started, KVS_SUCCESS);
            assert_eq!(accesses(), Ok(pda));
            let held = SESSION.write();
            assert_eq!(accesses(), Ok(pda));
            drop(held);
            assert_eq!(isobath_omp_finish(), KVS_SUCCESS);
            assert_eq!(accesses(), Ok(1));
        }
        drop(ask);
        other.join().unwrap();
    }
}
