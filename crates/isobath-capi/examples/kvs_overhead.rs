//! What a call of the key value interface costs beyond the engine's own, pair by pair in turns.
//!
//! ```text
//! cargo run --release -p isobath-capi --example kvs_overhead
//! ```
//!
//! Each row: nanoseconds of the caller's CPU per call (of time, for the asynchronous one) of the engine's function, of the `kvs_` function, and the difference, medians of rounds that
//! take turns. Everything is in the pool; stores are acknowledged at once, so that no drive is waited for.

// SAFETY, of every call: what its pointers point to outlives it, or its callback.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

use std::ffi::CString;
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

use isobath::{Durability, Options, Store};
use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;

const PAIRS: usize = 2_000;
const ROUNDS: usize = 9;

/// Nanoseconds of CPU that the calling thread has used: on a machine that is busy, time says nothing.
fn cpu_ns() -> f64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Nanoseconds of the calling thread's CPU per call, of one round over all keys.
fn round(keys: &[[u8; 16]], mut call: impl FnMut(&[u8; 16])) -> f64 {
    let start = cpu_ns();
    for key in keys {
        call(key);
    }
    (cpu_ns() - start) / keys.len() as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn compare(
    what: &str,
    keys: &[[u8; 16]],
    mut engine: impl FnMut(&[u8; 16]),
    mut kvs: impl FnMut(&[u8; 16]),
) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(round(keys, &mut engine));
        theirs.push(round(keys, &mut kvs));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "{what:<24} {ours:>10.0} {theirs:>10.0} {:>10.0}",
        theirs - ours
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    let options = Options::new()
        .pool_bytes(256 << 20)
        .workers(1)
        .durability(Durability::None);
    let store = Store::create(at("engine.iso"), &options)?;
    let tree = store.create_tree("pairs")?;
    let uri = format!(
        "{}?create=yes&pool=256MiB&workers=1&durability=none",
        at("device.iso").display()
    );
    let (mut device, mut space) = (null_mut(), null_mut());
    let mut keys: Vec<[u8; 16]> = Vec::new();
    for n in 0..PAIRS as u64 {
        // Scattered over the tree.
        let number = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        keys.push(
            format!("{number:016x}")
                .into_bytes()
                .try_into()
                .map_err(|_| "16 digits")?,
        );
    }
    let mut text = b"pairs".to_vec();
    unsafe {
        let uri = CString::new(uri)?;
        assert_eq!(kvs_open_device(uri.as_ptr(), &mut device), KVS_SUCCESS);
        let mut name = kvs_key_space_name {
            name_len: 5,
            name: text.as_mut_ptr().cast(),
        };
        let option = kvs_option_key_space { ordering: 0 };
        assert_eq!(
            kvs_create_key_space(device, &mut name, 0, option),
            KVS_SUCCESS
        );
        assert_eq!(
            kvs_open_key_space(device, c"pairs".as_ptr(), &mut space),
            KVS_SUCCESS
        );
    }
    println!(
        "{:<24} {:>10} {:>10} {:>10}",
        "ns per call", "engine", "kvs", "overhead"
    );
    for length in [100usize, 1000] {
        let data = vec![7u8; length];
        let kvs_store = |key: &[u8; 16]| {
            let mut key = key_of(key);
            let mut value = value_of(&data);
            let code = unsafe { kvs_store_kvp(space, &mut key, &mut value, null_mut()) };
            assert_eq!(code, KVS_SUCCESS);
        };
        compare(
            &format!("store {length} B"),
            &keys,
            |key| tree.insert(key, &data).unwrap(),
            kvs_store,
        );
        let (mut read, buffer) = (Vec::new(), vec![0u8; length]);
        compare(
            &format!("retrieve {length} B"),
            &keys,
            |key| assert!(black_box(tree.get_into(key, &mut read).unwrap())),
            |key| {
                let mut key = key_of(key);
                let mut value = value_of(&buffer);
                let code = unsafe { kvs_retrieve_kvp(space, &mut key, null_mut(), &mut value) };
                assert_eq!(black_box(code), KVS_SUCCESS);
            },
        );
    }
    compare(
        "exist",
        &keys,
        |key| assert!(black_box(tree.contains(key).unwrap())),
        |key| {
            let mut key = key_of(key);
            let mut bits = [0u8];
            let mut list = kvs_exist_list {
                num_keys: 0,
                keys: null_mut(),
                length: 1,
                result_buffer: bits.as_mut_ptr(),
            };
            let code = unsafe { kvs_exist_kv_pairs(space, 1, &mut key, &mut list) };
            assert_eq!((code, bits[0]), (KVS_SUCCESS, 1));
        },
    );
    asynchronous(&tree, &store, space, &keys);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    store.close()?;
    Ok(())
}

unsafe extern "C" fn count(context: *mut kvs_postprocess_context) {
    let counter = unsafe { &*(*context).private1.cast::<std::sync::atomic::AtomicUsize>() };
    counter.fetch_add(1, std::sync::atomic::Ordering::Release);
}

/// Many retrievals in flight: tasks of the engine, and asynchronous calls.
fn asynchronous(
    tree: &isobath::Tree,
    store: &Store,
    space: kvs_key_space_handle,
    keys: &[[u8; 16]],
) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let completed = AtomicUsize::new(0);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let buffer = vec![0u8; 1000];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut tasks = std::collections::VecDeque::new();
        for key in keys {
            let (tree, key) = (tree.clone(), *key);
            tasks.push_back(store.spawn(move || tree.get(key).unwrap().is_some()));
            if tasks.len() == 256 {
                assert!(tasks.pop_front().unwrap().join().unwrap());
            }
        }
        for task in tasks {
            assert!(task.join().unwrap());
        }
        ours.push(start.elapsed().as_nanos() as f64 / keys.len() as f64);

        completed.store(0, Ordering::Release);
        let mut kvs_keys: Vec<kvs_key> = keys.iter().map(key_of).collect();
        let mut values = vec![value_of(&buffer); keys.len()];
        let private = std::ptr::from_ref(&completed).cast_mut().cast();
        let start = Instant::now();
        for (key, value) in kvs_keys.iter_mut().zip(&mut values) {
            let code = unsafe {
                kvs_retrieve_kvp_async(
                    space,
                    key,
                    null_mut(),
                    private,
                    null_mut(),
                    value,
                    Some(count),
                )
            };
            assert_eq!(code, KVS_SUCCESS);
        }
        while completed.load(Ordering::Acquire) < keys.len() {
            std::hint::spin_loop();
        }
        theirs.push(start.elapsed().as_nanos() as f64 / keys.len() as f64);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "{:<24} {ours:>10.0} {theirs:>10.0} {:>10.0}",
        "retrieve, asynchronous",
        theirs - ours
    );
}

fn key_of(key: &[u8; 16]) -> kvs_key {
    kvs_key {
        key: key.as_ptr().cast_mut().cast(),
        length: 16,
    }
}

fn value_of(value: &[u8]) -> kvs_value {
    kvs_value {
        value: value.as_ptr().cast_mut().cast(),
        length: value.len() as u32,
        actual_value_size: 0,
        offset: 0,
    }
}
