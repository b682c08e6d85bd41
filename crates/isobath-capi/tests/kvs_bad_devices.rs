//! Bad input that takes more than an argument: key spaces that were deleted, devices of other
//! processes, configuration files that are missing, drives that are full.

// SAFETY, of every call: what its pointers point to outlives it.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod support;

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;
use isobath_c::omp::{isobath_omp_load, isobath_omp_store};
use support::*;

unsafe extern "C" fn no_work(_: *mut c_void, _: usize, _: *const c_void, _: usize) {
    std::process::abort();
}

/// The codes of the calls that objects of OpenMP programs take.
fn of_objects(space: kvs_key_space_handle) -> Vec<(&'static str, kvs_result)> {
    let (mut key, mut value) = (key_of(b"key1"), value_of(b"value"));
    let (key, value) = (&raw mut key, &raw mut value);
    unsafe {
        vec![
            (
                "load",
                isobath_omp_load(space, 1, key, 0, Some(no_work), null_mut()),
            ),
            ("store many", isobath_omp_store(space, 1, key, value)),
        ]
    }
}

/// Every call on the handle of a key space that was deleted, on a thread that has used it and on
/// one that has not; also when there is a new key space of its name.
#[test]
fn calls_on_a_key_space_that_was_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let old = space(device, "name");
    assert_eq!(store(old, b"key1", b"value"), KVS_SUCCESS);
    let open = iterator(old, 0, filter([0; 4], [0; 4])).unwrap();
    assert_eq!(drop_space(device, "name"), KVS_SUCCESS);
    let check = |handle: usize| {
        let codes = [of_objects(handle as _), of_space(handle as _, open)];
        for (what, code) in codes.concat() {
            assert_eq!(code, KVS_ERR_KS_NOT_EXIST, "{what}");
        }
        assert_eq!(kvs_get_ioevents(handle as _, 1), -1);
    };
    check(old as usize);
    let new = space(device, "name");
    let old = old as usize;
    std::thread::scope(|scope| scope.spawn(|| check(old)).join()).unwrap();
    check(old);
    // Nothing of it has come to the new one, and its iterator is free.
    assert_eq!(get(new, b"key1"), None);
    for group in 0..16 {
        assert!(iterator(new, 0, filter([0xff, 0, 0, 0], [group, 0, 0, 0])).is_ok());
    }
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

/// Runs a test of this program in a process of its own, with a variable set.
fn in_a_process(test: &str, variable: &str, value: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}{errors}");
}

/// The same test is both processes: the one that has the device, and, if the variable is set,
/// the one that wants it.
#[test]
fn a_device_that_another_process_has_open() {
    const DEVICE: &str = "ISOBATH_TEST_DEVICE";
    if let Ok(uri) = std::env::var(DEVICE) {
        assert_eq!(open(&uri), Err(KVS_ERR_SYS_IO));
        assert!(said().contains("in use"), "{}", said());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let opened = device(directory.path(), "");
    let space = space(opened, "space");
    assert_eq!(store(space, b"key1", b"value"), KVS_SUCCESS);
    let uri = format!("{}?pool=8MiB", directory.path().join("dev.iso").display());
    let test = "a_device_that_another_process_has_open";
    in_a_process(test, DEVICE, &uri);
    in_a_process(test, DEVICE, &format!("{uri}&create=yes"));
    // The one that has it goes on.
    assert_eq!(store(space, b"key2", b"value"), KVS_SUCCESS);
    assert_eq!(get(space, b"key1"), Some(b"value".to_vec()));
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

/// The environment names a file that is missing; what the URI names comes first.
#[test]
fn a_configuration_file_of_the_environment_that_is_missing() {
    const CONFIG: &str = "ISOBATH_KVS_CONFIG";
    let test = "a_configuration_file_of_the_environment_that_is_missing";
    if std::env::var_os(CONFIG).is_none() {
        in_a_process(test, CONFIG, "/nonexistent/environment.conf");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dev.iso");
    let uri = format!("{}?create=yes&pool=8MiB", path.display());
    assert_eq!(open(&uri), Err(KVS_ERR_PARAM_INVALID));
    assert!(said().contains("environment.conf"), "{}", said());
    assert!(!path.exists());
    let file = directory.path().join("there.conf");
    std::fs::write(&file, "workers = 1\n").unwrap();
    let opened = open(&format!("{uri}&config={}", file.display())).unwrap();
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

/// Stores until nothing fits any more; acknowledged pairs stay, refused ones are not there,
/// and deleting makes room.
fn fill(directory: &Path, more: &str) {
    let device = device(directory, more);
    let space = space(device, "full");
    let value = |number: u32| vec![(number % 251) as u8; 100_000];
    let key = |number: u32| format!("key-{number:06}").into_bytes();
    let (sender, completed) = channel();
    let mut stored = 0;
    // Synchronous and asynchronous ones in turns: both are refused with the standard's code.
    let mut refused = [false; 2];
    while refused != [true; 2] {
        assert!(stored < 2_000, "it is never full");
        let (name, value) = (key(stored), value(stored));
        let is_later = !refused[1] && (stored % 2 == 1 || refused[0]);
        let code = match is_later {
            false => store(space, &name, &value),
            true => {
                let (mut key, mut value) = (key_of(&name), value_of(&value));
                let (private, no) = (pointer(sender), null_mut());
                let none = null_mut();
                let code = unsafe {
                    kvs_store_kvp_async(space, &mut key, &mut value, none, private, no, Some(tell))
                };
                assert_eq!(code, KVS_SUCCESS);
                completed.recv().unwrap().0
            }
        };
        match code {
            KVS_SUCCESS => stored += 1,
            KVS_ERR_KS_CAPACITY => refused[usize::from(is_later)] = true,
            code => panic!("{stored}: {code:?}: {}", said()),
        }
    }
    assert!(stored > 20, "{stored}");
    assert_eq!(get(space, &key(stored)), None);
    for number in 0..stored {
        assert_eq!(get(space, &key(number)), Some(value(number)), "{number}");
    }
    for number in 0..stored / 2 {
        assert_eq!(delete(space, &key(number), true), KVS_SUCCESS, "{}", said());
    }
    assert_eq!(store(space, b"after", &value(7)), KVS_SUCCESS, "{}", said());
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    // As it was, also when it is opened again.
    let device = support::device(directory, more);
    let space = open_space(device, "full").unwrap();
    assert_eq!(get(space, b"after"), Some(value(7)));
    assert_eq!(get(space, &key(stored - 1)), Some(value(stored - 1)));
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn a_device_whose_limit_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), "&capacity=48MiB&log=4MiB");
}

/// A file system, in memory, that is unmounted in the end.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(size: &str) -> Option<Mounted> {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(directory.path())
            .output();
        let is_mounted = mount.is_ok_and(|output| output.status.success());
        is_mounted.then_some(Mounted(directory))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn a_drive_without_space() {
    let Some(mounted) = Mounted::new("64m") else {
        skipped::skipped("no file system can be mounted");
        return;
    };
    fill(mounted.0.path(), "&log=4MiB");
}
