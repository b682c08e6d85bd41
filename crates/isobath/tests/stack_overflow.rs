//! A task that overflows its stack is named before the process ends, and a larger stack helps.

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use isobath::{Options, Store};

const CHILD: &str = "ISOBATH_OVERFLOW_CHILD";

fn options() -> Options {
    Options::new().pool_bytes(8 << 20).workers(1)
}

/// Takes about 4 KiB of stack for each level.
fn descend(levels: u32) -> u64 {
    let frame = [levels as u8; 4096];
    let frame = std::hint::black_box(&frame);
    let below = if levels == 0 { 0 } else { descend(levels - 1) };
    below + u64::from(frame[levels as usize % 4096])
}

fn run(stack_bytes: usize, levels: u32) {
    let store = Store::in_memory(&options().task_stack_bytes(stack_bytes)).unwrap();
    store.spawn(move || descend(levels)).join().unwrap();
    store.close().unwrap();
}

#[test]
fn an_overflow_is_named() {
    if std::env::var_os(CHILD).is_some() {
        run(256 << 10, 1_000);
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_overflow_is_named", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(
        said.contains("stack overflow in an Isobath task")
            && said.contains("Options::task_stack_bytes"),
        "{said}"
    );
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
}

#[test]
fn a_larger_stack_holds_more() {
    run(16 << 20, 1_000);
}

#[test]
fn other_faults_are_not_taken_for_overflows() {
    if std::env::var_os(CHILD).is_some() {
        let store = Store::in_memory(&options()).unwrap();
        let joined = store.spawn(|| {
            // SAFETY: there is none: the process is to end by this.
            unsafe { std::ptr::null_mut::<u8>().write_volatile(1) }
        });
        let _ = joined.join();
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "other_faults_are_not_taken_for_overflows",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(
        !said.contains("stack overflow in an Isobath task"),
        "{said}"
    );
    assert!(child.status.signal().is_some(), "{child:?}");
}

#[test]
fn sizes_are_checked() {
    for bytes in [0, 100 << 10, 2 << 30] {
        let refused = Store::in_memory(&options().task_stack_bytes(bytes));
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("task_stack_bytes")
        );
    }
}
