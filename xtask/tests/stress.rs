//! Some rounds of everything at once; `cargo xtask stress` runs for as long as requested.

#![allow(missing_docs)]

use std::process::Command;

#[test]
fn stores_under_everything_at_once_hold_what_their_threads_know() {
    let minutes = std::env::var("ISOBATH_STRESS_MINUTES").unwrap_or_else(|_| "0.25".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args([
            "stress",
            "--operations",
            "4000",
            "--size",
            "4M",
            "--minutes",
            &minutes,
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert!(said.contains("all as they should be"));
}
