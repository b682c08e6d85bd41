//! `kvs_files.h` with bad input: the documented result code, never a crash.

#![allow(unsafe_code, clippy::unwrap_used)]

mod support;

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use isobath_c::files::change::*;
use isobath_c::files::data::*;
use isobath_c::files::open::*;
use isobath_c::files::result::kvs_files_result::*;
use isobath_c::files::result::*;
use isobath_c::kvs::kvs_close_device;
use isobath_c::kvs::types::kvs_result::KVS_SUCCESS;

fn said() -> String {
    // SAFETY: a string that ends with a zero.
    let text = unsafe { CStr::from_ptr(kvs_files_last_error()) };
    text.to_string_lossy().into_owned()
}

fn c(text: impl AsRef<[u8]>) -> CString {
    CString::new(text.as_ref()).unwrap()
}

#[test]
fn bad_input_gets_its_result_code() {
    let directory = tempfile::tempdir().unwrap();
    let device = support::device(directory.path(), "");
    let (root, name) = (c("/"), c("files"));
    // SAFETY: pointers are valid or NULL, as the header requires.
    unsafe {
        let mut files = null_mut();
        let open =
            |device, name: *const _, create, files| kvs_files_open(device, name, create, files);
        assert_eq!(
            open(device, name.as_ptr(), false, &mut files),
            KVS_FILES_ERR_NOT_FOUND
        );
        assert_eq!(
            open(null_mut(), name.as_ptr(), true, &mut files),
            KVS_FILES_ERR_CLOSED
        );
        assert_eq!(open(device, null(), true, &mut files), KVS_FILES_ERR_NULL);
        assert_eq!(
            open(device, name.as_ptr(), true, null_mut()),
            KVS_FILES_ERR_NULL
        );
        assert_eq!(
            open(device, c("").as_ptr(), true, &mut files),
            KVS_FILES_ERR_ARGUMENT
        );
        assert_eq!(
            open(device, c("\u{7f}\u{80}").as_ptr(), false, &mut files),
            KVS_FILES_ERR_NOT_FOUND
        );
        assert_eq!(
            open(device, c(b"\xff").as_ptr(), true, &mut files),
            KVS_FILES_ERR_ARGUMENT
        );
        // The device's own trees are for no files.
        for name in ["kvs", "kvs.7"] {
            let name = c(name);
            let opened = open(device, name.as_ptr(), true, &mut files);
            assert_eq!(opened, KVS_FILES_ERR_ARGUMENT);
        }
        assert_eq!(open(device, name.as_ptr(), true, &mut files), KVS_FILES_OK);
        assert_eq!(
            kvs_files_open_store(null(), name.as_ptr(), true, &mut null_mut()),
            KVS_FILES_ERR_NULL
        );

        let store = |path: &str, data: &[u8]| {
            let path = c(path);
            kvs_store(
                files,
                path.as_ptr(),
                data.as_ptr().cast(),
                data.len(),
                0o644,
            )
        };
        assert_eq!(store("f", b"contents"), KVS_FILES_OK);
        assert_eq!(store("f/g", b""), KVS_FILES_ERR_NOT_A_DIRECTORY);
        assert_eq!(store("no/g", b""), KVS_FILES_ERR_NOT_FOUND);
        assert!(said().contains("no/g"), "{}", said());
        assert_eq!(store("/", b""), KVS_FILES_ERR_IS_A_DIRECTORY);
        assert_eq!(store("a/../b", b""), KVS_FILES_ERR_NAME);
        assert_eq!(store(&"x".repeat(256), b""), KVS_FILES_ERR_NAME);
        let f = c("f");
        assert_eq!(
            kvs_store(files, f.as_ptr(), null(), 5, 0),
            KVS_FILES_ERR_NULL
        );
        assert_eq!(kvs_store(files, null(), null(), 0, 0), KVS_FILES_ERR_NULL);
        assert_eq!(
            kvs_store(null_mut(), f.as_ptr(), null(), 0, 0),
            KVS_FILES_ERR_NULL
        );

        let (d, e, l) = (c("d"), c("d/e"), c("l"));
        assert_eq!(kvs_files_mkdir(files, d.as_ptr(), 0o755), KVS_FILES_OK);
        assert_eq!(
            kvs_files_mkdir(files, d.as_ptr(), 0o755),
            KVS_FILES_ERR_EXISTS
        );
        assert_eq!(kvs_files_mkdir(files, e.as_ptr(), 0o755), KVS_FILES_OK);
        assert_eq!(kvs_files_rmdir(files, d.as_ptr()), KVS_FILES_ERR_NOT_EMPTY);
        assert_eq!(
            kvs_files_rmdir(files, f.as_ptr()),
            KVS_FILES_ERR_NOT_A_DIRECTORY
        );
        assert_eq!(
            kvs_files_unlink(files, d.as_ptr()),
            KVS_FILES_ERR_IS_A_DIRECTORY
        );
        assert_eq!(
            kvs_files_rename(files, d.as_ptr(), e.as_ptr(), true),
            KVS_FILES_ERR_INTO_ITSELF
        );
        assert_eq!(
            kvs_files_rename(files, f.as_ptr(), d.as_ptr(), false),
            KVS_FILES_ERR_EXISTS
        );
        assert_eq!(
            kvs_files_link(files, d.as_ptr(), l.as_ptr()),
            KVS_FILES_ERR_IS_A_DIRECTORY
        );
        assert_eq!(
            kvs_files_symlink(files, c("").as_ptr(), l.as_ptr()),
            KVS_FILES_ERR_NAME
        );
        assert_eq!(
            kvs_files_symlink(files, f.as_ptr(), l.as_ptr()),
            KVS_FILES_OK
        );
        assert_eq!(
            kvs_files_set_mtime(files, l.as_ptr(), 0, 1_000_000_000),
            KVS_FILES_ERR_ARGUMENT
        );
        assert_eq!(kvs_files_set_mode(files, e.as_ptr(), 0o700), KVS_FILES_OK);
        assert_eq!(
            kvs_files_stat(files, f.as_ptr(), null_mut()),
            KVS_FILES_ERR_NULL
        );

        let mut length = 1;
        let short = kvs_files_read_link(files, l.as_ptr(), null_mut(), &mut length);
        assert_eq!((short, length), (KVS_FILES_ERR_BUFFER, 2));
        let null_buffer = kvs_files_read_link(files, l.as_ptr(), null_mut(), &mut length);
        assert_eq!(null_buffer, KVS_FILES_ERR_NULL);
        let no_link = kvs_files_read_link(files, f.as_ptr(), null_mut(), &mut length);
        assert_eq!(no_link, KVS_FILES_ERR_NOT_A_LINK);

        let mut map = null_mut();
        assert_eq!(
            kvs_map(files, root.as_ptr(), null_mut()),
            KVS_FILES_ERR_NULL
        );
        assert_eq!(
            kvs_files_list(files, f.as_ptr(), &mut map),
            KVS_FILES_ERR_NOT_A_DIRECTORY
        );
        assert_eq!(kvs_map(files, root.as_ptr(), &mut map), KVS_FILES_OK);
        assert_eq!((kvs_map_count(map), kvs_map_count(null())), (1, 0));
        let mut buffer = [0u8; 4];
        let mut read = |index, offset, length| {
            let mut actual = 99;
            let to = buffer.as_mut_ptr().cast();
            (
                kvs_retrieve(map, index, offset, to, length, &mut actual),
                actual,
            )
        };
        assert_eq!(read(1, 0, 4).0, KVS_FILES_ERR_ARGUMENT);
        assert_eq!(read(0, 9, 4).0, KVS_FILES_ERR_ARGUMENT);
        assert_eq!(read(0, 8, 4), (KVS_FILES_OK, 0));
        assert_eq!(read(0, 6, 4), (KVS_FILES_OK, 2));
        assert_eq!(&buffer[..2], b"ts");
        assert_eq!(
            kvs_retrieve(map, 0, 0, null_mut(), 4, null_mut()),
            KVS_FILES_ERR_NULL
        );
        assert_eq!(
            kvs_retrieve(null(), 0, 0, null_mut(), 0, null_mut()),
            KVS_FILES_ERR_NULL
        );
        assert_eq!(kvs_map_entry(map, 7, null_mut()), KVS_FILES_ERR_ARGUMENT);
        assert_eq!(kvs_map_entry(map, 0, null_mut()), KVS_FILES_ERR_NULL);
        kvs_map_free(map);
        kvs_map_free(null_mut());

        let missing = c(directory.path().join("none").to_str().unwrap());
        let create = |flags| kvs_create(files, missing.as_ptr(), l.as_ptr(), flags, null_mut());
        assert_eq!(create(1), KVS_FILES_ERR_HOST);
        assert_eq!(create(4), KVS_FILES_ERR_ARGUMENT);
        assert_eq!(create(0), KVS_FILES_ERR_EXISTS);
        let there = c(directory.path().to_str().unwrap());
        assert_eq!(
            kvs_files_export(files, d.as_ptr(), there.as_ptr()),
            KVS_FILES_ERR_REFUSED
        );
        let mut problems = 9;
        assert_eq!(kvs_files_check(files, &mut problems), KVS_FILES_OK);
        assert_eq!(problems, 0);

        assert_eq!(kvs_close_device(device), KVS_SUCCESS);
        assert_eq!(store("f", b"later"), KVS_FILES_ERR_CLOSED);
        kvs_files_free(files);
        kvs_files_free(null_mut());
        let name = CStr::from_ptr(kvs_files_result_name(12));
        assert_eq!(name.to_str().unwrap(), "KVS_FILES_ERR_CHECKSUM");
        kvs_files_result_name(-1);
    }
}
