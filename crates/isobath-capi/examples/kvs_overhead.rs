//! Measures the cost of a call of the key-value interface beyond the engine's own, in pairs of
//! runs.
//!
//! ```text
//! cargo run --release -p isobath-capi --example kvs_overhead
//! ```
//!
//! Each row: nanoseconds of the process's CPU per call, all threads together, of the engine's
//! function, of the `kvs_` function, and the difference, medians of rounds that take turns.
//! Everything is in the pool; stores are acknowledged at once, so that no drive is waited for.
//! Iterators are compared with scans behind the last key that copy the same entries; asynchronous
//! calls with closures that `Store::spawn` runs, the engine's own way to have many calls in flight.

// SAFETY, of every call: what its pointers point to outlives it, or its callback.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

use std::ffi::CString;
use std::hint::black_box;
use std::ops::Bound;
use std::ptr::null_mut;
use std::time::Duration;

use isobath::{Durability, Options, Store};
use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;

const PAIRS: usize = 2_000;
const ROUNDS: usize = 9;

/// Nanoseconds of CPU that the process has used, all threads together: changes are made by a
/// worker, and its share and the caller's are not to be told apart. On a machine that is busy, time
/// says nothing.
fn cpu_ns() -> f64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Nanoseconds of CPU per call, of one round over all keys.
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
    compare_rounds(what, || round(keys, &mut engine), || round(keys, &mut kvs));
}

/// Rounds in turns, each of which says how many nanoseconds a call took.
fn compare_rounds(what: &str, mut engine: impl FnMut() -> f64, mut kvs: impl FnMut() -> f64) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(engine());
        theirs.push(kvs());
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
    for (what, has_values, room) in [
        ("iterate, 1 key a call", false, 4 + 16),
        ("iterate, keys, 32 KiB", false, ITERATOR_BYTES),
        ("iterate, pairs, 32 KiB", true, ITERATOR_BYTES),
    ] {
        let mut buffer = vec![0u8; room];
        let mut other = vec![0u8; room];
        compare_rounds(
            what,
            || scan(&tree, has_values, &mut buffer),
            || iterate(space, has_values, &mut other),
        );
    }
    asynchronous(&tree, &store, space, &keys);
    // Last, as it leaves nothing.
    let data = vec![7u8; 100];
    let refill = |key: &[u8; 16]| tree.insert(key, &data).unwrap();
    compare_rounds(
        "delete",
        || {
            keys.iter().for_each(refill);
            round(&keys, |key| assert!(tree.remove(key).unwrap()))
        },
        || {
            for key in &keys {
                let (mut key, mut value) = (key_of(key), value_of(&data));
                let code = unsafe { kvs_store_kvp(space, &mut key, &mut value, null_mut()) };
                assert_eq!(code, KVS_SUCCESS);
            }
            // As the engine says it, too: a key that was not there is an error.
            let mut option = kvs_option_delete {
                kvs_delete_error: 1,
            };
            round(&keys, |key| {
                let code = unsafe { kvs_delete_kvp(space, &mut key_of(key), &mut option) };
                assert_eq!(code, KVS_SUCCESS);
            })
        },
    );
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    store.close()?;
    Ok(())
}

/// Bytes of the buffer that programs for key-value SSDs iterate with.
const ITERATOR_BYTES: usize = 32 << 10;

/// Copies all entries of a tree to a buffer, as `kvs_iterate_next` lays them out, one buffer after
/// the other; nanoseconds per buffer.
fn scan(tree: &isobath::Tree, has_values: bool, buffer: &mut [u8]) -> f64 {
    let (mut last, mut buffers, mut entries) = (Vec::new(), 0u32, 0);
    let start = cpu_ns();
    loop {
        let mut used = 0;
        let mut is_full = false;
        let mut at_last = 0..0;
        let mut visit = |key: &[u8], value: Option<&[u8]>| {
            let needed = 4 + key.len() + value.map_or(0, |value| 4 + value.len());
            is_full = buffer.len() - used < needed;
            if is_full {
                return false;
            }
            at_last = used + 4..used + 4 + key.len();
            for part in std::iter::once(key).chain(value) {
                buffer[used..][..4].copy_from_slice(&(part.len() as u32).to_le_bytes());
                buffer[used + 4..][..part.len()].copy_from_slice(part);
                used += 4 + part.len();
            }
            entries += 1;
            true
        };
        let behind = match last.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(std::mem::take(&mut last)),
        };
        let bounds = (behind, Bound::<Vec<u8>>::Unbounded);
        match has_values {
            false => tree.visit_keys(bounds, false, |key, _| visit(key, None)),
            true => tree.scan(bounds, |key, value| visit(key, Some(value))),
        }
        .unwrap();
        buffers += 1;
        if !is_full {
            break;
        }
        last.extend_from_slice(&buffer[at_last]);
    }
    let spent = cpu_ns() - start;
    assert_eq!(entries, PAIRS);
    spent / f64::from(buffers)
}

/// The same by an iterator, its opening and closing included; nanoseconds per call of
/// `kvs_iterate_next`.
fn iterate(space: kvs_key_space_handle, has_values: bool, buffer: &mut [u8]) -> f64 {
    let mut filter = kvs_key_group_filter {
        bitmask: [0; 4],
        bit_pattern: [0; 4],
    };
    let mut option = kvs_option_iterator {
        iter_type: u32::from(has_values),
    };
    let (mut iterator, mut calls, mut entries) = (0, 0u32, 0);
    let start = cpu_ns();
    let code = unsafe { kvs_create_iterator(space, &mut option, &mut filter, &mut iterator) };
    assert_eq!(code, KVS_SUCCESS);
    loop {
        let mut list = kvs_iterator_list {
            num_entries: 0,
            end: 0,
            size: buffer.len() as u32,
            it_list: buffer.as_mut_ptr(),
        };
        let code = unsafe { kvs_iterate_next(space, iterator, &mut list) };
        assert_eq!(code, KVS_SUCCESS);
        calls += 1;
        entries += list.num_entries as usize;
        if list.end != 0 {
            break;
        }
    }
    assert_eq!(kvs_delete_iterator(space, iterator), KVS_SUCCESS);
    let spent = cpu_ns() - start;
    assert_eq!(entries, PAIRS);
    spent / f64::from(calls)
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
        let start = cpu_ns();
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
        ours.push((cpu_ns() - start) / keys.len() as f64);

        completed.store(0, Ordering::Release);
        let mut kvs_keys: Vec<kvs_key> = keys.iter().map(key_of).collect();
        let mut values = vec![value_of(&buffer); keys.len()];
        let private = std::ptr::from_ref(&completed).cast_mut().cast();
        let start = cpu_ns();
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
            std::thread::sleep(Duration::from_micros(20));
        }
        theirs.push((cpu_ns() - start) / keys.len() as f64);
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
