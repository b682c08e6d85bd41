//! Writers whose system calls fail, a few of them; `cargo xtask syscalls` starts more.

#![allow(missing_docs)]

use std::process::Command;

#[test]
fn faults_below_the_system_calls_lose_nothing_that_was_acknowledged() {
    let rounds = std::env::var("ISOBATH_SYSCALL_ROUNDS").unwrap_or_else(|_| "6".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["syscalls", "--rounds", &rounds])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert!(said.contains("operations acknowledged") || said.contains("skipped"));
}
