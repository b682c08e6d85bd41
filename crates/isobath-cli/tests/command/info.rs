//! info, and stats of a store that no process has open.

use super::support;

use isobath::{Options, Store};
use support::Place;

fn options() -> Options {
    Options::new().pool_bytes(16 << 20).workers(1)
}

#[test]
fn info_says_what_is_in_a_store() {
    let place = Place::new();
    let create = [
        "put",
        "-s",
        "s.iso",
        "--create",
        "--limit",
        "64MiB",
        "--log-path",
        "s.log",
    ];
    place.run(&[&create[..], &["a", "1"]].concat()).ok();
    let more = [
        "put",
        "-s",
        "s.iso",
        "-t",
        "colours",
        "--create-tree",
        "sky",
        "blue",
    ];
    place.run(&more).ok();
    let lines = |columns| {
        place
            .run_in_columns(columns, &["info", "s.iso"])
            .ok()
            .text()
            .to_owned()
    };
    let told = lines("80");
    for part in [
        "s.iso: ",
        "closed",
        "64.0 MiB",
        "s.log",
        "2 in 2 trees",
        "colours",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for columns in ["40", "80"] {
        let width = columns.parse().unwrap();
        let told = lines(columns);
        assert!(
            told.lines().all(|line| line.chars().count() <= width),
            "{told}"
        );
    }
    let json = || {
        place
            .run(&["info", "-s", "s.iso", "--json"])
            .ok()
            .json()
            .remove(0)
    };
    let told = json();
    assert_eq!(told["state"], "closed");
    assert_eq!(
        (&told["records"], &told["trees"][0]["name"]),
        (&2.into(), &"colours".into())
    );
    assert_eq!(told["limit_bytes"], 64 << 20);
    assert!(told["files"][0]["allocated_bytes"].as_u64() > Some(0));

    let store = Store::open(place.path("s.iso"), &options()).unwrap();
    let told = json();
    assert_eq!(
        (&told["state"], &told["pid"]),
        (&"in use".into(), &std::process::id().into())
    );
    let process = format!("open for writing by process {}", std::process::id());
    assert!(lines("80").contains(&process));
    // The files of a killed process.
    store.tree("main").unwrap().insert("b", "2").unwrap();
    std::fs::create_dir(place.path("killed")).unwrap();
    for file in ["s.iso", "s.log"] {
        let copy = place.path("killed").join(file);
        std::fs::copy(place.path(file), copy).unwrap();
    }
    store.close().unwrap();
    let told = place.run(&["info", "killed/s.iso"]).ok();
    assert!(
        told.text().contains("not closed: `isobath recover`"),
        "{told:?}"
    );
    assert!(told.text().contains("3 in 2 trees"), "{told:?}");
}

#[test]
fn an_empty_store_has_nothing_in_it() {
    let place = Place::new();
    Store::create(place.path("s.iso"), &options())
        .unwrap()
        .close()
        .unwrap();
    let told = place.run(&["info", "s.iso"]).ok();
    assert!(told.text().contains("0 in 0 trees"), "{told:?}");
    place
        .run(&["info", "no.iso"])
        .fails(2, "name the store with -s");
    place
        .run(&["info", "-s", "no.iso"])
        .fails(3, "does not exist");
}

#[test]
fn stats_of_a_store_that_no_process_has_open_are_no_zeros() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let told = place.run(&["stats", "-s", "s.iso"]).ok();
    let is_zero = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() != Some("segment_emptiness") && words.next() == Some("0")
    };
    assert!(!told.text().lines().any(is_zero), "{}", told.text());
    assert!(told.text().contains("isobath info"), "{}", told.text());
    // Programs find every number in JSON, whatever it is.
    let json = place
        .run(&["stats", "-s", "s.iso", "--json"])
        .ok()
        .json()
        .remove(0);
    assert_eq!(json["commits"], 0);
    let store = Store::open(place.path("s.iso"), &options()).unwrap();
    store.tree("main").unwrap().insert("b", "2").unwrap();
    while !place
        .run(&["stats", "-s", "s.iso"])
        .ok()
        .text()
        .contains("conflicts")
    {}
    store.close().unwrap();
}

#[test]
fn recover_says_whether_a_store_was_closed_also_where_its_log_has_nothing() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let store = Store::open(place.path("s.iso"), &options()).unwrap();
    std::fs::copy(place.path("s.iso"), place.path("killed.iso")).unwrap();
    store.close().unwrap();
    let state = || {
        let told = place.run(&["info", "killed.iso", "--json"]).ok().json();
        told[0]["state"].clone()
    };
    assert_eq!(state(), "not closed");
    let told = place.run(&["recover", "-s", "killed.iso"]).ok();
    assert!(
        told.text().starts_with("the store was not closed"),
        "{told:?}"
    );
    assert_eq!(state(), "closed");
    let told = place.run(&["recover", "-s", "killed.iso", "--json"]).ok();
    assert_eq!(told.json()[0]["was_closed"], true);
}
