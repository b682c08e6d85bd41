//! backup, restore and salvage.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use support::Place;

fn lines(from: u32, to: u32) -> Vec<u8> {
    let lines: String = (from..to)
        .map(|n| format!("key{n:06}\tvalue number {n}\n"))
        .collect();
    lines.into_bytes()
}

/// A store `s.iso` of this many records.
fn filled(records: u32) -> Place {
    let place = Place::new();
    let load = ["load", "-s", "s.iso", "--create", "lines"];
    place.feed(&load, &lines(0, records)).ok();
    place
}

fn dump(place: &Place, store: &str) -> Vec<u8> {
    place.run(&["scan", "-s", store, "--hex"]).ok().out
}

#[test]
fn a_chain_comes_back() {
    let place = filled(30_000);
    let full = &place
        .run(&["backup", "-s", "s.iso", "full", "--json"])
        .ok()
        .json()[0];
    assert_eq!(full["pages"], full["store_pages"]);
    assert_eq!(full["verified"], true);
    let length = std::fs::metadata(place.path("full")).unwrap().len();
    assert_eq!(full["file_bytes"].as_u64().unwrap(), length);
    place
        .feed(&["load", "-s", "s.iso", "lines"], &lines(30_000, 30_100))
        .ok();
    let more = place.run(&["backup", "-s", "s.iso", "more", "--since", "full"]);
    assert!(more.ok().text().contains("verified"));
    let more = std::fs::metadata(place.path("more")).unwrap().len();
    assert!(more * 4 < length, "{more} of {length}");

    let back = &place
        .run(&["restore", "full", "more", "r.iso", "--check", "--json"])
        .ok()
        .json()[0];
    assert_eq!(back["problems"], serde_json::json!([]));
    assert!(dump(&place, "s.iso") == dump(&place, "r.iso"));
    // Several files.
    place
        .run(&["restore", "full", "a.iso", "--also", "b.iso"])
        .ok();
    place.run(&["check", "-s", "a.iso", "-s", "b.iso"]).ok();
    assert!(!place.names().iter().any(|name| name.contains("partial")));
}

#[test]
fn what_cannot_be_done_leaves_nothing() {
    let place = filled(100);
    place.run(&["backup", "-s", "s.iso", "full"]).ok();
    place
        .run(&["backup", "-s", "s.iso", "full"])
        .fails(3, "exists already");
    place
        .run(&["backup", "-s", "s.iso", "full", "--force"])
        .ok();
    place
        .run(&["backup", "-s", "s.iso", "more", "--since", "s.iso"])
        .fails(3, "no backup file");
    place
        .run(&["backup", "-s", "s.iso", "more", "--since", "full"])
        .ok();
    place
        .run(&["restore", "more", "r.iso"])
        .fails(3, "has to come first");
    place.run(&["restore", "full"]).fails(2, "");
    place.run(&["restore", "full", "s.iso"]).fails(3, "s.iso");
    let whole = std::fs::read(place.path("full")).unwrap();
    place.write("full", &whole[..whole.len() / 2]);
    place
        .run(&["restore", "full", "r.iso"])
        .fails(3, "truncated");
    assert_eq!(place.names(), ["full", "more", "s.iso"]);
}

#[test]
fn what_is_left_of_a_corrupt_store() {
    let place = filled(30_000);
    let whole = &place
        .run(&["salvage", "-s", "s.iso", "whole.iso", "--json"])
        .ok()
        .json()[0];
    assert_eq!(whole["problems"], serde_json::json!([]));
    assert_eq!(whole["records"], 30_000);
    assert!(dump(&place, "s.iso") == dump(&place, "whole.iso"));

    // Both superblocks, and a leaf.
    let mut bytes = std::fs::read(place.path("s.iso")).unwrap();
    let data = 64 << 10;
    bytes[data + 100] ^= 1;
    bytes[data + 32768 + 100] ^= 1;
    let leaf = bytes
        .windows(12)
        .rposition(|window| window == b"value number")
        .unwrap();
    bytes[leaf] ^= 1;
    place.write("s.iso", &bytes);
    place.run(&["check", "-s", "s.iso"]).fails(3, "superblock");
    let run = place.run(&["salvage", "-s", "s.iso", "saved.iso"]);
    assert_eq!(run.code, 1);
    assert!(
        run.text().contains("both superblocks are lost"),
        "{}",
        run.text()
    );
    assert!(run.text().contains("cannot be read"), "{}", run.text());
    place.run(&["check", "-s", "saved.iso"]).ok();
    let saved = dump(&place, "saved.iso");
    let count = saved.iter().filter(|byte| **byte == b'\n').count();
    assert!((29_000..30_000).contains(&count), "{count}");
    // A file that exists is not replaced.
    place
        .run(&["salvage", "-s", "s.iso", "saved.iso"])
        .fails(3, "saved.iso");
    assert!(dump(&place, "saved.iso") == saved);
}

#[test]
fn what_is_left_of_a_truncated_store_and_of_none() {
    let place = filled(30_000);
    let whole = std::fs::read(place.path("s.iso")).unwrap();
    let last = whole.iter().rposition(|byte| *byte != 0).unwrap();
    place.write("x.iso", &whole[..last - last % 4096]);
    place.run(&["check", "-s", "x.iso"]).fails(3, "x.iso");
    let run = place.run(&["salvage", "-s", "x.iso", "saved.iso", "--json"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.json()[0]["records"].as_u64().unwrap() > 29_000,
        "{run:?}"
    );
    // Without its labels it is nothing that we know, but its pages are there.
    let mut unlabelled = whole.clone();
    unlabelled[..8192].fill(0);
    place.write("x.iso", &unlabelled);
    place
        .run(&["salvage", "-s", "x.iso", "more.iso"])
        .fails(3, "not an Isobath store");
    let run = place.run(&["salvage", "-s", "x.iso", "more.iso", "--search", "--json"]);
    assert_eq!(run.json()[0]["records"], 30_000);
    let names = place.names();
    for (length, fill) in [(0, 0), (100, 0), (4096, 7), (3 << 20, 0), (3 << 20, 0xa5)] {
        place.write("x.iso", vec![fill; length]);
        for search in [&[][..], &["--search"]] {
            let run = place.run(&[&["salvage", "-s", "x.iso", "none.iso"], search].concat());
            run.fails(3, "x.iso");
            assert_eq!(place.names(), names);
        }
    }
    place.write("x.iso", &whole[..4096]);
    place.run(&["salvage", "-s", "x.iso", "none.iso"]).fails(
        3,
        "x.iso holds no Isobath store: nothing was ever completed in it",
    );
    place
        .run(&["salvage", "-s", "absent.iso", "none.iso"])
        .fails(3, "absent.iso");
    assert_eq!(place.names(), names);
}
