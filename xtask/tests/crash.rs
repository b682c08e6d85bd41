//! Writers that are killed, a few of them; `cargo xtask crash` kills more.

#![allow(missing_docs)]

use std::process::Command;

#[test]
fn killed_writers_leave_what_was_acknowledged() {
    let rounds = std::env::var("ISOBATH_CRASH_ROUNDS").unwrap_or_else(|_| "3".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["crash", "--rounds", &rounds])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert!(said.contains("writers killed"), "no backend works here");
}
