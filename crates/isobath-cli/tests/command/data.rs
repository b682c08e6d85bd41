//! get, put, delete, scan, trees, stats, check through the real command.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use support::Place;

#[test]
fn put_get_and_delete() {
    let place = Place::new();
    place
        .run(&["put", "-s", "s.iso", "--create", "greeting", "hello"])
        .ok();
    assert_eq!(
        place.run(&["get", "-s", "s.iso", "greeting"]).ok().text(),
        "hello\n"
    );
    place.run(&["put", "-s", "s.iso", "greeting", "bye"]).ok();
    let json = place
        .run(&["get", "-s", "s.iso", "greeting", "--json"])
        .ok()
        .json();
    assert_eq!(json[0]["value"], "bye");
    place.run(&["delete", "-s", "s.iso", "greeting"]).ok();
    place
        .run(&["get", "-s", "s.iso", "greeting"])
        .fails(1, "there is no key `greeting`");
    place
        .run(&["delete", "-s", "s.iso", "greeting"])
        .fails(1, "there is no key `greeting`");
}

#[test]
fn the_store_can_come_from_the_environment() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let output = place
        .command()
        .env("ISOBATH_STORE", "s.iso")
        .args(["get", "a"])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"1\n");
}

#[test]
fn bytes_go_in_and_out_as_they_are() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..=255).collect();
    place
        .feed(
            &["put", "-s", "s.iso", "--create", "k", "--file", "-"],
            &bytes,
        )
        .ok();
    assert_eq!(
        place.run(&["get", "-s", "s.iso", "k", "--raw"]).ok().out,
        bytes
    );
    place
        .run(&["get", "-s", "s.iso", "k", "--output", "copy"])
        .ok();
    assert_eq!(std::fs::read(place.path("copy")).unwrap(), bytes);
    let shown = place.run(&["get", "-s", "s.iso", "k"]).ok();
    assert!(!shown.text().trim_end().chars().any(char::is_control));

    place
        .run(&["put", "-s", "s.iso", "--hex", "00ff", "dead beef"])
        .ok();
    let hex = place.run(&["get", "-s", "s.iso", "--hex", "00ff"]).ok();
    assert_eq!(hex.text(), "deadbeef\n");
    let json = place
        .run(&["get", "-s", "s.iso", "--hex", "00ff", "--json"])
        .ok()
        .json();
    assert_eq!(json[0]["key_hex"], "00ff");
    assert_eq!(json[0]["value_hex"], "deadbeef");
}

#[test]
fn large_values_are_streamed() {
    let place = Place::new();
    let mut bytes = vec![0u8; 5 << 20];
    fastrand::Rng::with_seed(5).fill(&mut bytes);
    let file = place.write("big", &bytes);
    place
        .run(&[
            "put",
            "-s",
            "s.iso",
            "--create",
            "big",
            "--file",
            file.to_str().unwrap(),
        ])
        .ok();
    assert!(place.run(&["get", "-s", "s.iso", "big", "--raw"]).ok().out == bytes);
    place.run(&["check", "-s", "s.iso"]).ok();
}

#[test]
fn the_empty_key_and_the_longest_key() {
    let place = Place::new();
    let longest = "k".repeat(isobath::MAX_KEY_BYTES);
    place
        .run(&["put", "-s", "s.iso", "--create", "", "empty"])
        .ok();
    place.run(&["put", "-s", "s.iso", &longest, ""]).ok();
    assert_eq!(
        place.run(&["get", "-s", "s.iso", ""]).ok().text(),
        "empty\n"
    );
    assert_eq!(
        place.run(&["get", "-s", "s.iso", &longest]).ok().text(),
        "\n"
    );
    place
        .run(&["put", "-s", "s.iso", &format!("{longest}k"), "x"])
        .fails(2, "1025 bytes; at most 1024");
    let fresh = Place::new();
    fresh
        .run(&[
            "put",
            "-s",
            "new.iso",
            "--create",
            &format!("{longest}k"),
            "x",
        ])
        .fails(2, "1025 bytes");
    assert_eq!(fresh.names(), [""; 0], "nothing may be made for a bad key");
}

#[test]
fn scans_have_bounds_directions_and_limits() {
    let place = Place::new();
    place.store(&[("a/1", "x"), ("a/2", "y"), ("b/1", "z"), ("c", "w")]);
    let scan = |args: &[&str]| {
        let all = [&["scan", "-s", "s.iso"][..], args].concat();
        place.run(&all).ok().text().to_owned()
    };
    assert_eq!(scan(&[]), "a/1\tx\na/2\ty\nb/1\tz\nc\tw\n");
    assert_eq!(scan(&["--prefix", "a/", "--keys-only"]), "a/1\na/2\n");
    assert_eq!(
        scan(&["--from", "a/2", "--to", "c", "--keys-only"]),
        "a/2\nb/1\n"
    );
    assert_eq!(scan(&["--reverse", "-n", "2", "--keys-only"]), "c\nb/1\n");
    assert_eq!(
        scan(&["--reverse", "--prefix", "a/", "--keys-only"]),
        "a/2\na/1\n"
    );
    assert_eq!(scan(&["--hex", "-n", "1"]), "612f31\t78\n");
    assert!(scan(&["--count"]).starts_with("4 records"));
    let json = place
        .run(&["scan", "-s", "s.iso", "--json", "--limit", "1"])
        .ok()
        .json();
    assert_eq!(json, [serde_json::json!({"key": "a/1", "value": "x"})]);
    place
        .run(&["scan", "-s", "s.iso", "--from", "z", "--to", "a"])
        .fails(2, "swap them");
    place
        .run(&["scan", "-s", "s.iso", "--from", "a", "--prefix", "a"])
        .fails(2, "cannot be used with");
}

/// Keys and counts need no large value: they come from a store in which one cannot be read any
/// more.
#[test]
fn keys_and_counts_read_no_large_values() {
    let place = Place::new();
    place.store(&[("a", "x")]);
    let value = [0xab; 300_000];
    let put = ["put", "-q", "-s", "s.iso", "large", "--file", "-"];
    place.feed(&put, &value).ok();
    let path = place.path("s.iso");
    let mut bytes = std::fs::read(&path).unwrap();
    for block in bytes.chunks_exact_mut(4096) {
        if block[1000..3000] == value[..2000] {
            block[2000] = 0;
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    place
        .run(&["scan", "-s", "s.iso"])
        .fails(3, "is corrupt: its checksum");
    let scan = |more: &str| {
        let answer = place.run(&["scan", "-s", "s.iso", more]).ok();
        answer.text().to_owned()
    };
    assert_eq!(scan("--keys-only"), "a\nlarge\n");
    assert!(scan("--count").starts_with("2 records"));
    let json = ["scan", "-s", "s.iso", "--keys-only", "--reverse", "--json"];
    assert_eq!(
        place.run(&json).ok().json()[0],
        serde_json::json!({"key": "large", "value_bytes": 300_000})
    );
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let place = Place::new();
    let lines: String = (0..50_000).map(|n| format!("key{n:08}\tvalue\n")).collect();
    place
        .feed(
            &["load", "-s", "s.iso", "--create", "lines"],
            lines.as_bytes(),
        )
        .ok();
    let mut child = place
        .command()
        .args(["scan", "-s", "s.iso"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn trees_are_made_listed_and_dropped() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    place.run(&["trees", "-s", "s.iso", "create", "more"]).ok();
    place
        .run(&["trees", "-s", "s.iso", "create", "more"])
        .fails(3, "exists already");
    assert_eq!(
        place.run(&["trees", "-s", "s.iso", "list"]).ok().text(),
        "main\nmore\n"
    );
    place
        .run(&["put", "-s", "s.iso", "-t", "more", "k", "v"])
        .ok();
    place
        .run(&["get", "-s", "s.iso", "k"])
        .fails(1, "there is no key");
    place.run(&["trees", "-s", "s.iso", "drop", "more"]).ok();
    place
        .run(&["get", "-s", "s.iso", "-t", "more", "k"])
        .fails(3, "isobath trees list");
    let json = place
        .run(&["trees", "-s", "s.iso", "list", "--json"])
        .ok()
        .json();
    assert_eq!(json[0]["name"], "main");
}

#[test]
fn stats_have_numbers() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let json = &place.run(&["stats", "-s", "s.iso", "--json"]).ok().json()[0];
    assert!(json["volume_bytes"].as_u64().unwrap() > 0);
    assert_eq!(json["trees"], 1);
    assert!(
        place
            .run(&["stats", "-s", "s.iso"])
            .ok()
            .text()
            .contains("volume_bytes")
    );
}

#[test]
fn statistics_have_the_same_names_in_every_form() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    // The table of a store that no process has open leaves counters out.
    let options = isobath::Options::new().pool_bytes(16 << 20).workers(1);
    let store = isobath::Store::open(place.path("s.iso"), &options).unwrap();
    store.tree("main").unwrap().insert("b", "2").unwrap();
    let table = loop {
        let table = place.run(&["stats", "-s", "s.iso"]).ok();
        if table.text().contains("longest stall") {
            break table;
        }
    };
    let json = &place.run(&["stats", "-s", "s.iso", "--json"]).ok().json()[0];
    let format = ["stats", "-s", "s.iso", "--format", "openmetrics"];
    let page = place.run(&format).ok();
    for number in isobath::Stats::default().numbers() {
        let name = number.name;
        assert!(json[name].is_u64(), "{name}: {json}");
        assert!(table.text().contains(name), "{name}");
        let sample = format!("\nisobath_{name}{{store=\"s.iso\"}} ");
        let counter = format!("\nisobath_{name}_total{{store=\"s.iso\"}} ");
        let samples = page.text();
        assert!(
            samples.contains(&sample) != samples.contains(&counter),
            "{name}"
        );
    }
    assert!(page.text().ends_with("# EOF\n"));
    place
        .run(&[&format[..], &["-o", "numbers.prom"]].concat())
        .ok();
    let file = std::fs::read_to_string(place.path("numbers.prom")).unwrap();
    assert!(file.ends_with("# EOF\n") && file.lines().count() == page.text().lines().count());
    store.close().unwrap();
}

#[test]
fn trees_are_listed_with_what_they_hold() {
    let place = Place::new();
    place.store(&[("a", "1"), ("b", "22")]);
    let list = ["trees", "-s", "s.iso", "--stats", "list"];
    let text = place.run(&list).ok();
    assert!(text.text().contains("main") && text.text().contains("records"));
    let json = &place.run(&[&list[..], &["--json"]].concat()).ok().json()[0];
    assert_eq!(
        (&json["records"], &json["value_bytes"]),
        (&2.into(), &3.into())
    );
    assert_eq!(json["is_exact"], true);
}

#[test]
fn compacting_gives_the_space_of_removed_records_back() {
    let place = Place::new();
    let lines: String = (0..150_000)
        .map(|n| format!("key{n:08}\t{n:0400}\n"))
        .collect();
    place
        .feed(
            &["load", "-s", "s.iso", "--create", "lines"],
            lines.as_bytes(),
        )
        .ok();
    // A load into a new store leaves it compact.
    let loaded = &place.run(&["compact", "-s", "s.iso", "--json"]).ok().json()[0];
    assert_eq!(loaded["bytes_before"], loaded["bytes_after"], "{loaded}");
    place
        .run(&[
            "put",
            "-s",
            "s.iso",
            "--create-tree",
            "-t",
            "other",
            "k",
            "v",
        ])
        .ok();
    let length = || std::fs::metadata(place.path("s.iso")).unwrap().len();
    place.run(&["trees", "-s", "s.iso", "drop", "main"]).ok();
    let before = length();
    let gained = &place.run(&["compact", "-s", "s.iso", "--json"]).ok().json()[0];
    let after = length();
    assert_eq!(
        gained["bytes_before"].as_u64().unwrap() - gained["bytes_after"].as_u64().unwrap(),
        before - after
    );
    assert!(after < before * 3 / 4, "{before} {after}");
    let again = &place.run(&["compact", "-s", "s.iso", "--json"]).ok().json()[0];
    assert_eq!(again["bytes_before"], again["bytes_after"], "{again}");
    place.run(&["check", "-s", "s.iso"]).ok();
    let found = place.run(&["get", "-s", "s.iso", "-t", "other", "k"]).ok();
    assert_eq!(found.text(), "v\n");
}

#[test]
fn check_passes_a_sound_store_and_names_a_corrupt_page() {
    let place = Place::new();
    let lines: String = (0..20_000)
        .map(|n| format!("key{n:08}\tvalue {n}\n"))
        .collect();
    place
        .feed(
            &["load", "-s", "s.iso", "--create", "lines"],
            lines.as_bytes(),
        )
        .ok();
    let sound = &place.run(&["check", "-s", "s.iso", "--json"]).ok().json()[0];
    // The catalog's record of the tree counts too.
    assert!(sound["records"].as_u64().unwrap() >= 20_000);

    // Flip one byte wherever a leaf with our records lies.
    let path = place.path("s.iso");
    let mut bytes = std::fs::read(&path).unwrap();
    let needle = b"value 12345";
    let at = bytes
        .windows(needle.len())
        .rposition(|w| w == needle)
        .expect("the record is on disk");
    bytes[at] ^= 0x40;
    std::fs::write(&path, &bytes).unwrap();
    let answer = place.run(&["check", "-s", "s.iso"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.text().contains("problem: "), "{answer:?}");
    assert!(answer.text().contains("checksum"), "{answer:?}");
    let json = place.run(&["check", "-s", "s.iso", "--json"]);
    assert_eq!(json.code, 1);
    assert!(!json.json()[0]["problems"].as_array().unwrap().is_empty());
    place
        .run(&["get", "-s", "s.iso", "key00012345"])
        .fails(3, "corrupt");
}

#[test]
fn reading_verbs_change_nothing() {
    let place = Place::new();
    place.store(&[("a", "1"), ("b", "2")]);
    let before = std::fs::read(place.path("s.iso")).unwrap();
    for args in [
        &["get", "-s", "s.iso", "a"][..],
        &["scan", "-s", "s.iso"],
        &["stats", "-s", "s.iso"],
        &["check", "-s", "s.iso"],
        &["trees", "-s", "s.iso", "list"],
        &["export", "-s", "s.iso", "out"],
    ] {
        place.run(args).ok();
    }
    assert!(std::fs::read(place.path("s.iso")).unwrap() == before);
}

#[test]
fn keys_in_messages_are_escaped_once() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    for verb in ["get", "delete"] {
        place
            .run(&[verb, "-s", "s.iso", "--hex", "00ff5c"])
            .fails(1, r"there is no key `\x00\xff\\`");
    }
    let told = place.run(&["get", "-s", "\u{1b}[31m\n.iso", "k"]);
    assert!(!told.err.contains('\u{1b}'), "{}", told.err);
    assert_eq!(told.err.lines().count(), 1, "{}", told.err);
}
