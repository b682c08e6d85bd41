//! RocksDB itself loads the OPTIONS files that `isobath advise` writes, opens a database with them,
//! means by them what the advice says, and reads as much per scan.
#![cfg(feature = "rocksdb")]
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_uchar};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use isobath_flash::rng::Rng;
use isobath_lab::drive_model;
use isobath_model::advise::{Advice, Advisor};
use isobath_model::lsm::Layout;
use isobath_model::workload::Workload;

/// Of databases that hold nothing.
const CACHE_BYTES: usize = 8 << 20;

/// The declarations of the benchmark's adapter.
#[path = "../src/engine/rocksdb/sys.rs"]
#[allow(dead_code, reason = "the adapter calls more of the library")]
mod sys;

use sys::*;

unsafe extern "C" {
    fn rocksdb_create_default_env() -> *mut Opaque;
    fn rocksdb_env_destroy(env: *mut Opaque);
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut Opaque;
    fn rocksdb_cache_destroy(cache: *mut Opaque);
    fn rocksdb_load_latest_options(
        path: *const c_char,
        env: *mut Opaque,
        ignore_unknown: bool,
        cache: *mut Opaque,
        db_options: *mut *mut Opaque,
        family_count: *mut usize,
        family_names: *mut *mut *mut c_char,
        family_options: *mut *mut *mut Opaque,
        error: *mut *mut c_char,
    );
    fn rocksdb_load_latest_options_destroy(
        db_options: *mut Opaque,
        family_names: *mut *mut c_char,
        family_options: *mut *mut Opaque,
        family_count: usize,
    );
    fn rocksdb_options_get_create_if_missing(options: *mut Opaque) -> c_uchar;
    fn rocksdb_put(
        db: *mut Opaque,
        options: *const Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_compact_range(
        db: *mut Opaque,
        from: *const c_char,
        from_bytes: usize,
        to: *const c_char,
        to_bytes: usize,
    );
    fn rocksdb_create_iterator(db: *mut Opaque, options: *const Opaque) -> *mut Opaque;
}

fn check(error: *mut c_char) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the library gives a string with a final zero, which is ours to free.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        Err(text)
    }
}

/// Loads the OPTIONS file of `directory`, unknown keys being errors, opens a new database there
/// with what it says, and gives it to `work`. The block cache is an object of the caller's, not the
/// file's.
fn load_and_open(
    directory: &Path,
    cache_bytes: usize,
    work: impl FnOnce(*mut Opaque),
) -> Result<(), String> {
    let path = CString::new(directory.to_str().unwrap()).unwrap();
    let (mut options, mut count) = (null_mut(), 0);
    let (mut names, mut families) = (null_mut(), null_mut());
    let mut error = null_mut();
    // SAFETY: every pointer is a live local or what the library gave back; each is destroyed once,
    // after its last use.
    unsafe {
        let env = rocksdb_create_default_env();
        let cache = rocksdb_cache_create_lru(cache_bytes);
        rocksdb_load_latest_options(
            path.as_ptr(),
            env,
            false,
            cache,
            &raw mut options,
            &raw mut count,
            &raw mut names,
            &raw mut families,
            &raw mut error,
        );
        let mut outcome = check(error);
        if outcome.is_ok() {
            assert_eq!(count, 1, "column families");
            assert_eq!(rocksdb_options_get_create_if_missing(options), 1);
            let (mut handle, mut error) = (null_mut(), null_mut());
            let db = rocksdb_open_column_families(
                options,
                path.as_ptr(),
                1,
                names.cast_const().cast(),
                families.cast_const().cast(),
                &raw mut handle,
                &raw mut error,
            );
            outcome = check(error);
            if outcome.is_ok() {
                work(db);
                rocksdb_column_family_handle_destroy(handle);
                rocksdb_close(db);
            }
            rocksdb_load_latest_options_destroy(options, names, families, count);
        }
        rocksdb_cache_destroy(cache);
        rocksdb_env_destroy(env);
        outcome
    }
}

/// `section.key → value` of an OPTIONS file.
fn entries(text: &str) -> BTreeMap<String, String> {
    let mut section = String::new();
    let mut found = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
        if line.starts_with('[') {
            section = line.to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            found.insert(format!("{section} {key}"), value.to_owned());
        }
    }
    found
}

/// RocksDB's own OPTIONS file of the database that it opened.
fn persisted(directory: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(directory).unwrap();
    let names = files.map(|f| f.unwrap().path());
    let latest = names
        .filter(|p| {
            p.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("OPTIONS-")
        })
        .max()
        .unwrap();
    entries(&std::fs::read_to_string(latest).unwrap())
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// The advice for one of the documented workloads.
fn advice(workload: &str) -> Advice {
    let workload = docs(&format!("workloads/{workload}.toml"));
    drive_model::advise(&docs("examples/profile.json"), &workload, None)
        .unwrap()
        .1
}

fn loads_and_means(what: &str, text: &str) {
    let directory = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::write(directory.path().join("OPTIONS-000005"), text).unwrap();
    load_and_open(directory.path(), CACHE_BYTES, |_| {})
        .unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
    let (asked, found) = (entries(text), persisted(directory.path()));
    let mut compared = 0;
    for (key, value) in &asked {
        // The version is RocksDB's own, and a cache is an object that it does not write down.
        if key.starts_with("[Version]") || key.ends_with("block_cache") {
            continue;
        }
        let found = found
            .get(key)
            .unwrap_or_else(|| panic!("{what}: RocksDB forgot {key}"));
        assert!(
            found.starts_with(value),
            "{what}: {key}={value} became {found}"
        );
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn rocksdb_loads_and_means_what_the_advice_says() {
    for workload in ["read-mostly", "update-heavy", "ingest"] {
        loads_and_means(workload, &advice(workload).rocksdb_options_file());
    }
}

#[test]
fn rocksdb_loads_every_layout() {
    let mut advice = advice("ingest");
    let layouts = [2, 4, 8, 16, 32].map(|fanout| Layout::Leveled {
        fanout,
        l0_files: 4,
    });
    for layout in layouts.into_iter().chain([Layout::SingleLevel]) {
        advice.rocksdb.settings.layout = layout;
        advice.rocksdb.settings.filter_bits_per_key = match layout {
            Layout::SingleLevel => 0,
            Layout::Leveled { .. } => 10,
        };
        loads_and_means(&format!("{layout:?}"), &advice.rocksdb_options_file());
    }
}

#[test]
fn a_key_that_rocksdb_does_not_know_is_refused() {
    let text = advice("ingest")
        .rocksdb_options_file()
        .replace("max_open_files", "max_open_filez");
    let directory = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::write(directory.path().join("OPTIONS-000005"), text).unwrap();
    let error = load_and_open(directory.path(), CACHE_BYTES, |_| {}).unwrap_err();
    assert!(error.contains("max_open_filez"), "{error}");
}

const RECORDS: u32 = 1_600_000;
const VALUE_BYTES: usize = 120;
const SCANS: u32 = 2_000;

/// Advice for scans of a store of 205 MB by a machine with 128 MiB.
fn scan_advice(scan_records: u32) -> Advice {
    let profile = drive_model::read_profile(&docs("examples/profile.json")).unwrap();
    let text = format!(
        "[data]\nrecord_count = {RECORDS}\nkey_bytes = 8\nvalue_bytes = {VALUE_BYTES}\n\
         [operations]\nscans = 1.0\nscan_records = {scan_records}\nclients = 8\n\
         [machine]\nmemory_bytes = 134_217_728\ncore_count = 1\n"
    );
    let workload = Workload::from_toml(&text).unwrap();
    Advisor::new(&profile).unwrap().advise(&workload).unwrap()
}

/// Bytes that this process has read from drives.
fn drive_bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    line.unwrap().parse().unwrap()
}

fn key_of(n: u32) -> [u8; 8] {
    let mut key = u64::from(n).to_le_bytes();
    key.reverse();
    key
}

/// Loads the records in order and compacts them.
fn load(db: *mut Opaque) {
    let value = [0u8; VALUE_BYTES];
    // SAFETY: `db` is open; key and value are valid for their lengths, and copied; the options are
    // destroyed once, after their use.
    unsafe {
        let options = rocksdb_writeoptions_create();
        rocksdb_writeoptions_disable_WAL(options, 1);
        for n in 0..RECORDS {
            let (key, mut error) = (key_of(n), null_mut());
            rocksdb_put(
                db,
                options,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &raw mut error,
            );
            check(error).unwrap();
        }
        rocksdb_writeoptions_destroy(options);
        rocksdb_compact_range(db, std::ptr::null(), 0, std::ptr::null(), 0);
    }
}

/// Pages read from the drive per scan of `records` records.
fn pages_per_scan(db: *mut Opaque, rng: &mut Rng, records: u32) -> f64 {
    let before = drive_bytes_read();
    // SAFETY: `db` is open; the iterator and the options are destroyed once, after their last use,
    // the iterator first.
    unsafe {
        let options = rocksdb_readoptions_create();
        for _ in 0..SCANS {
            let key = key_of(rng.below(RECORDS));
            let iterator = rocksdb_create_iterator(db, options);
            rocksdb_iter_seek(iterator, key.as_ptr().cast(), key.len());
            let mut left = records;
            while left > 0 && rocksdb_iter_valid(iterator) != 0 {
                rocksdb_iter_next(iterator);
                left -= 1;
            }
            let mut error = null_mut();
            rocksdb_iter_get_error(iterator, &raw mut error);
            check(error).unwrap();
            rocksdb_iter_destroy(iterator);
        }
        rocksdb_readoptions_destroy(options);
    }
    (drive_bytes_read() - before) as f64 / 4096.0 / f64::from(SCANS)
}

/// Pages per scan are what the operating system counts of RocksDB's direct reads. Measured: 7%
/// more, 4% more, 7% less than advised; the goal is 15%.
#[test]
fn rocksdb_reads_as_many_pages_per_scan_as_advised() {
    let advice = scan_advice(100);
    let directory = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let options = directory.path().join("OPTIONS-000005");
    std::fs::write(options, advice.rocksdb_options_file()).unwrap();
    println!("{:?}", advice.rocksdb.settings);
    let cache_bytes = advice.rocksdb.settings.block_cache_bytes as usize;
    load_and_open(directory.path(), cache_bytes, |db| {
        load(db);
        let mut rng = Rng::new(1);
        // The cache's contents after the load are no sample of its contents in use.
        for _ in 0..4 {
            pages_per_scan(db, &mut rng, 100);
        }
        for records in [10, 100, 400] {
            let measured = pages_per_scan(db, &mut rng, records);
            let predicted = scan_advice(records).rocksdb.predicted;
            let predicted = predicted.page_reads_per_operation;
            println!("{records} records: predicted {predicted:.3}, measured {measured:.3}");
            assert!(
                (predicted / measured - 1.0).abs() < 0.15,
                "{records} records: predicted {predicted}, measured {measured}"
            );
        }
    })
    .unwrap();
}
