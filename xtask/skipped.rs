//! The message of a test that this machine cannot run. Tests of any package include this file by
//! its path.

use std::io::Write as _;

/// The variable that names the file in which `.ci/run` collects skipped tests.
const LIST: &str = "ISOBATH_SKIPPED";

/// Says that the running test is skipped, or a part of it, for want of something.
#[allow(dead_code, unreachable_pub, clippy::unwrap_used)]
pub fn skipped(lacks: &str) {
    eprintln!("skipped: {lacks}");
    let Some(list) = std::env::var_os(LIST) else {
        return;
    };
    // The harness names each test's thread by the test.
    let thread = std::thread::current();
    let program = std::env::current_exe().unwrap();
    let program = program
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let program = program
        .rsplit_once('-')
        .map_or(&program[..], |(name, _)| name);
    let line = format!("{program} {}: {lacks}\n", thread.name().unwrap_or("?"));
    let list = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(list);
    list.unwrap().write_all(line.as_bytes()).unwrap();
}
