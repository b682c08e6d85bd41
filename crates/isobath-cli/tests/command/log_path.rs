//! `--log-path`: the log of a store in a file of its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use support::{Answer, Place};

/// Makes `store` with its log in `log`, and one record.
fn create(place: &Place, store: &str, log: &str) -> Answer {
    let arguments = format!("put -s {store} --create --log-path {log} k v");
    place.run(&arguments.split(' ').collect::<Vec<_>>())
}

/// A directory with the store `s.iso` and its log `s.log`.
fn place_with_log() -> Place {
    let place = Place::new();
    create(&place, "s.iso", "s.log").ok();
    place
}

#[test]
fn a_store_is_made_with_its_log_elsewhere_and_needs_no_reminder() {
    let place = place_with_log();
    assert_eq!(place.names(), ["s.iso", "s.log"]);
    assert_eq!(place.run(&["get", "-s", "s.iso", "k"]).ok().text(), "v\n");
    place.run(&["check", "-s", "s.iso"]).ok();
    place.run(&["stats", "-s", "s.iso"]).ok();
    place
        .feed(&["load", "-s", "s.iso", "lines"], b"a\t1\n")
        .ok();
    assert_eq!(place.run(&["get", "-s", "s.iso", "a"]).ok().text(), "1\n");
}

#[test]
fn a_moved_log_is_named_once() {
    let place = place_with_log();
    std::fs::rename(place.path("s.log"), place.path("moved.log")).unwrap();
    for verb in [&["get", "-s", "s.iso", "k"][..], &["check", "-s", "s.iso"]] {
        place.run(verb).fails(3, "--log-path");
    }
    let named = ["put", "-s", "s.iso", "--log-path", "moved.log", "k", "w"];
    place.run(&named).ok();
    assert_eq!(place.run(&["get", "-s", "s.iso", "k"]).ok().text(), "w\n");
}

#[test]
fn a_wrong_log_is_refused() {
    let place = place_with_log();
    place.write("noise", [7; 100_000]);
    std::fs::create_dir(place.path("dir")).unwrap();
    place
        .run(&["put", "-s", "t.iso", "--create", "k", "v"])
        .ok();
    let with = |log, words: &str| {
        let get = ["get", "-s", "s.iso", "--log-path", log, "k"];
        place.run(&get).fails(3, words);
    };
    with("noise", "not the log");
    with("t.iso", "not the log");
    with("s.iso", "same file");
    with("dir", "is a directory");
    with("none", "does not exist");
    let get = ["get", "-s", "t.iso", "--log-path", "s.log", "k"];
    place.run(&get).fails(3, "no log outside");
    create(&place, "u.iso", "noise").fails(3, "exists already");
    assert_eq!(std::fs::read(place.path("noise")).unwrap(), [7; 100_000]);
    assert!(!place.path("u.iso").exists());
    assert_eq!(place.run(&["get", "-s", "s.iso", "k"]).ok().text(), "v\n");
}

#[test]
fn a_benchmark_removes_the_log_that_it_made_and_no_other_file() {
    let place = Place::new();
    let bench = |log| {
        let args = [
            "bench",
            "run",
            "--path",
            "b.iso",
            "--log-path",
            log,
            "--bytes",
            "1MiB",
            "--pool",
            "8MiB",
            "--duration",
            "100ms",
            "--warm-up",
            "10ms",
            "--op",
            "update",
            "--no-drive",
        ];
        place.run(&args)
    };
    bench("b.log").ok();
    assert_eq!(place.names(), [""; 0]);
    place.write("mine", b"precious");
    bench("mine").fails(3, "exists already");
    assert_eq!(place.names(), ["mine"]);
    assert_eq!(std::fs::read(place.path("mine")).unwrap(), b"precious");
}
