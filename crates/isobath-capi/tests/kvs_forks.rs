//! A device and its process's children: what a fork leaves without threads answers, and the parent
//! goes on.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod support;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;
use support::*;

/// Seconds after which a child that waits for what never comes is ended.
const LIMIT: u32 = 20;

/// Runs `child` in a forked child; its answer, or `None` if a signal ended it.
fn forked(child: impl FnOnce() -> u8) -> Option<i32> {
    // SAFETY: the child calls the library as a C program would, and ends without unwinding.
    unsafe {
        let process = libc::fork();
        assert!(process >= 0);
        if process == 0 {
            libc::alarm(LIMIT);
            libc::_exit(i32::from(child()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &mut status, 0), process);
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }
}

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(_: *mut kvs_postprocess_context) {
    CALLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_child_has_none_of_its_parent_s_devices() {
    for more in [
        "",
        "&channel=serial",
        "&completion=polling",
        "&completion=polling&channel=serial",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let device = device(directory.path(), more);
        let space = space(device, "space");
        assert_eq!(store(space, b"pair", b"parent"), KVS_SUCCESS);
        let (mut key, mut value) = (key_of(b"pair"), value_of(b"later"));
        let mut submit = || unsafe {
            let no = null_mut();
            kvs_store_kvp_async(space, &mut key, &mut value, null_mut(), no, no, Some(count))
        };
        CALLED.store(0, Ordering::Relaxed);
        assert_eq!(submit(), KVS_SUCCESS);
        let answer = forked(|| {
            let mut wrong = 0;
            let mut note = |bit: u8, right: bool| wrong |= u8::from(!right) << bit;
            let (code, ..) = retrieve(space, b"pair", 6, 0, false);
            note(
                0,
                code == KVS_ERR_DEV_NOT_OPENED && said().contains("forked"),
            );
            note(1, store(space, b"pair", b"child") == KVS_ERR_DEV_NOT_OPENED);
            note(2, submit() == KVS_ERR_DEV_NOT_OPENED);
            note(3, kvs_get_ioevents(space, 1) == -1);
            note(4, kvs_close_key_space(space) == KVS_ERR_DEV_NOT_OPENED);
            note(5, create(device, "other", 0, 0) == KVS_ERR_DEV_NOT_EXIST);
            note(
                6,
                kvs_close_device(device) == KVS_ERR_DEV_NOT_EXIST && said().contains("forked"),
            );
            wrong
        });
        assert_eq!(answer, Some(0), "{more}");
        assert_eq!(store(space, b"more", b"parent"), KVS_SUCCESS);
        assert_eq!(kvs_close_device(device), KVS_SUCCESS);
        assert_eq!(CALLED.load(Ordering::Relaxed), 1, "{more}");
    }
}

#[test]
fn a_child_frees_its_parent_s_queues() {
    use isobath_c::abi::{queue::*, status::isobath_status::*, store::*, tree::*};
    unsafe extern "C" fn ignore(_: *const isobath_completion) {}
    for has_thread in [false, true] {
        let (mut store, mut tree, mut queue) = (null_mut(), null_mut(), null_mut());
        let mut request = isobath_request {
            operation: isobath_operation::ISOBATH_OP_PUT as i32,
            tree: null_mut(),
            transaction: null_mut(),
            key: c"key".as_ptr().cast(),
            key_length: 3,
            value: null_mut(),
            value_length: 0,
            user_data: null_mut(),
            callback: has_thread.then_some(ignore as _),
        };
        unsafe {
            assert_eq!(isobath_store_in_memory(null_mut(), &mut store), ISOBATH_OK);
            assert_eq!(
                isobath_tree_create(store, c"tree".as_ptr(), &mut tree),
                ISOBATH_OK
            );
            assert_eq!(
                isobath_queue_new(store, 4, 4, has_thread, &mut queue),
                ISOBATH_OK
            );
            request.tree = tree;
            assert_eq!(isobath_queue_submit(queue, &request), ISOBATH_OK);
            let answer = forked(|| {
                let mut count = 0;
                let mut completion = std::mem::MaybeUninit::uninit();
                let at = completion.as_mut_ptr();
                let submitted = isobath_queue_submit(queue, &request) == ISOBATH_CLOSED;
                let polled = isobath_queue_poll(queue, at, 1, -1, &mut count) == ISOBATH_CLOSED;
                isobath_queue_free(queue);
                u8::from(!submitted) | u8::from(!polled) << 1
            });
            assert_eq!(answer, Some(0), "{has_thread}");
            isobath_queue_free(queue);
            isobath_tree_free(tree);
            assert_eq!(isobath_store_close(store), ISOBATH_OK);
            isobath_store_free(store);
        }
    }
}
