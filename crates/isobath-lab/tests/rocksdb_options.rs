//! RocksDB itself loads the OPTIONS files that `isobath advise` writes, opens a database with them, and means by them what
//! the advice says.
#![cfg(feature = "rocksdb")]
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use isobath_lab::drive_model;
use isobath_model::advise::Advice;
use isobath_model::lsm::Layout;

type Opaque = c_void;

#[link(name = "rocksdb")]
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
    fn rocksdb_open_column_families(
        options: *const Opaque,
        path: *const c_char,
        family_count: c_int,
        family_names: *const *const c_char,
        family_options: *const *const Opaque,
        handles: *mut *mut Opaque,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    fn rocksdb_column_family_handle_destroy(handle: *mut Opaque);
    fn rocksdb_close(db: *mut Opaque);
    fn rocksdb_options_get_create_if_missing(options: *mut Opaque) -> c_uchar;
    fn rocksdb_free(memory: *mut c_void);
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

/// Loads the OPTIONS file of `directory`, unknown keys being errors, and opens a new database there with what it says.
fn load_and_open(directory: &Path) -> Result<(), String> {
    let path = CString::new(directory.to_str().unwrap()).unwrap();
    let (mut options, mut count) = (null_mut(), 0);
    let (mut names, mut families) = (null_mut(), null_mut());
    let mut error = null_mut();
    // SAFETY: every pointer is a live local or what the library gave back; each is destroyed once, after its last use.
    unsafe {
        let env = rocksdb_create_default_env();
        let cache = rocksdb_cache_create_lru(8 << 20);
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

/// What RocksDB wrote down about the database that it opened.
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
    load_and_open(directory.path()).unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
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
    let error = load_and_open(directory.path()).unwrap_err();
    assert!(error.contains("max_open_filez"), "{error}");
}
