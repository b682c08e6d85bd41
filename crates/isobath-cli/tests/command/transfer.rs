//! export and import.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use support::Place;

/// A store with two trees, many small records and one large value.
fn filled() -> Place {
    let place = Place::new();
    let lines: String = (0..30_000)
        .map(|n| format!("key{n:06}\tvalue number {n}\n"))
        .collect();
    place
        .feed(
            &["load", "-s", "s.iso", "--create", "lines"],
            lines.as_bytes(),
        )
        .ok();
    let big: Vec<u8> = (0..3_500_000u32).map(|n| (n % 253) as u8).collect();
    place.write("big", &big);
    place
        .run(&["put", "-s", "s.iso", "key015000.big", "--file", "big"])
        .ok();
    place
        .run(&[
            "put",
            "-s",
            "s.iso",
            "-t",
            "other",
            "--create-tree",
            "k",
            "v",
        ])
        .ok();
    place.run(&["trees", "-s", "s.iso", "create", "empty"]).ok();
    place
}

fn dump(place: &Place, store: &str, tree: &str) -> Vec<u8> {
    place
        .run(&["scan", "-s", store, "-t", tree, "--hex"])
        .ok()
        .out
}

#[test]
fn everything_comes_back() {
    let place = filled();
    let done = &place
        .run(&["export", "-s", "s.iso", "e", "--json"])
        .ok()
        .json()[0];
    assert_eq!(
        (&done["trees"], &done["records"]),
        (&3.into(), &30_002.into())
    );
    assert_eq!(
        done["file_bytes"].as_u64().unwrap(),
        std::fs::metadata(place.path("e")).unwrap().len()
    );
    let back = &place
        .run(&["import", "-s", "t.iso", "--create", "e", "--json"])
        .ok()
        .json()[0];
    assert_eq!(back["records"], done["records"]);
    assert_eq!(back["value_bytes"], done["value_bytes"]);
    assert_eq!(back["file_bytes"], done["file_bytes"]);
    for tree in ["main", "other", "empty"] {
        assert!(
            dump(&place, "s.iso", tree) == dump(&place, "t.iso", tree),
            "{tree}"
        );
    }
    place.run(&["check", "-s", "t.iso"]).ok();
}

#[test]
fn through_pipes_and_single_trees() {
    let place = filled();
    let exported = place
        .run(&["export", "-s", "s.iso", "-t", "other", "-"])
        .ok();
    place
        .feed(&["import", "-s", "t.iso", "--create", "-"], &exported.out)
        .ok();
    assert_eq!(
        place.run(&["trees", "-s", "t.iso", "list"]).ok().text(),
        "other\n"
    );
    place
        .run(&["export", "-s", "s.iso", "-t", "nothing", "x"])
        .fails(3, "there is no tree");
    assert!(!place.names().contains(&"x".to_owned()));
}

#[test]
fn an_existing_tree_is_merged_only_when_asked_for() {
    let place = filled();
    place
        .run(&["export", "-s", "s.iso", "-t", "main", "e"])
        .ok();
    place
        .feed(
            &["load", "-s", "t.iso", "--create", "lines"],
            b"key000001\told\nzzz\tstays\n",
        )
        .ok();
    place
        .run(&["import", "-s", "t.iso", "e"])
        .fails(2, "add --merge");
    place.run(&["import", "-s", "t.iso", "e", "--merge"]).ok();
    let get = |key| {
        place
            .run(&["get", "-s", "t.iso", key])
            .ok()
            .text()
            .to_owned()
    };
    assert_eq!(get("key000001"), "value number 1\n");
    assert_eq!(get("zzz"), "stays\n");
    assert!(get("key015000.big").len() > 3_000_000);
}

#[test]
fn a_file_is_not_overwritten_by_accident() {
    let place = filled();
    place.write("precious", "text");
    place
        .run(&["export", "-s", "s.iso", "precious"])
        .fails(3, "exists already");
    assert_eq!(std::fs::read(place.path("precious")).unwrap(), b"text");
    place
        .run(&["export", "-s", "s.iso", "precious", "--force"])
        .ok();
    place
        .run(&["import", "-s", "t.iso", "--create", "precious"])
        .ok();
    place
        .run(&["export", "-s", "s.iso", "."])
        .fails(3, "is a directory");
}

#[test]
fn foreign_empty_and_newer_files_are_refused_and_make_no_store() {
    let place = Place::new();
    place.write("foreign", "id,name\n");
    place.write("empty", "");
    place.write("short", "ISB");
    place.store(&[("a", "1")]);
    place.run(&["export", "-s", "s.iso", "e"]).ok();
    let mut newer = std::fs::read(place.path("e")).unwrap();
    newer[24] = 9;
    reseal(&mut newer);
    place.write("newer", &newer);
    let import = |name| place.run(&["import", "-s", "t.iso", "--create", name]);
    import("foreign").fails(3, "no Isobath export file");
    import("empty").fails(3, "the file is empty");
    import("short").fails(3, "in the middle of a block");
    import("s.iso").fails(3, "no Isobath export file");
    import("newer").fails(3, "export format 9");
    import("nowhere").fails(3, "cannot open nowhere");
    assert!(!place.path("t.iso").exists());
}

/// Corrects the checksum of the first block.
fn reseal(file: &mut [u8]) {
    let length = u32::from_le_bytes(file[16..20].try_into().unwrap()) as usize;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&file[..20]), &file[24..24 + length]);
    file[20..24].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn every_kind_of_corruption_is_found() {
    let place = Place::new();
    place.store(&[("a", "1"), ("b", "2"), ("c", "3")]);
    place.run(&["export", "-s", "s.iso", "e"]).ok();
    let good = std::fs::read(place.path("e")).unwrap();
    let import = |bytes: &[u8], message: &str| {
        place.write("corrupt", bytes);
        let _ = std::fs::remove_file(place.path("t.iso"));
        place
            .run(&["import", "-s", "t.iso", "--create", "corrupt"])
            .fails(3, message);
    };
    // Every truncation, and every flipped bit, of the whole small file.
    for length in 1..good.len() {
        if length % 17 == 0 || length < 26 {
            import(&good[..length], "corrupt: at byte");
        }
    }
    for at in (0..good.len()).step_by(11) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        import(&bytes, "corrupt: at byte");
    }
    let mut longer = good.clone();
    longer.push(0);
    import(&longer, "bytes follow the end block");
    // A block that is missing, and one that comes twice, have good checksums.
    let starts: Vec<usize> = good
        .windows(4)
        .enumerate()
        .filter(|(_, w)| w == b"ISBX")
        .map(|(at, _)| at)
        .collect();
    let (second, third) = (starts[1], starts[2]);
    import(
        &[&good[..second], &good[third..]].concat(),
        "missing or in another order",
    );
    import(
        &[&good[..third], &good[second..]].concat(),
        "missing or in another order",
    );
}

#[test]
fn an_import_that_ends_early_says_what_is_in_and_can_be_completed() {
    let place = filled();
    place.run(&["export", "-s", "s.iso", "e"]).ok();
    let whole = std::fs::read(place.path("e")).unwrap();
    let import = |length: usize, more: &[&str]| {
        let args = ["import", "-s", "t.iso", "--create", "-"];
        place.feed(&[&args[..], more].concat(), &whole[..length])
    };
    let count = || place.run(&["scan", "-s", "t.iso", "--json", "--count"]);
    let early = import(whole.len() / 2, &[]).fails(3, "that came before are in");
    let records = count().ok().json()[0]["records"].as_u64().unwrap();
    assert!(records > 1000, "{records}");
    assert!(
        early
            .err
            .contains(&format!("{records} records that came before")),
        "{}",
        early.err
    );
    // Also next to existing records.
    import(whole.len() / 2, &["--merge"]).fails(3, "records that came before are in");
    import(whole.len(), &["--merge"]).ok();
    assert!(dump(&place, "s.iso", "main") == dump(&place, "t.iso", "main"));

    // The tree of an import that stored nothing does not hinder the next one.
    place.run(&["trees", "-s", "t.iso", "drop", "main"]).ok();
    place
        .run(&["export", "-s", "s.iso", "-t", "main", "m"])
        .ok();
    let main = std::fs::read(place.path("m")).unwrap();
    let header = main.windows(4).skip(1).position(|w| w == b"ISBX").unwrap() + 1;
    let begin = main[header + 1..].windows(4).position(|w| w == b"ISBX");
    let cut = &main[..header + 1 + begin.unwrap() + 10];
    let stopped = place.feed(&["import", "-s", "t.iso", "-"], cut);
    let stopped = stopped.fails(3, "in the middle of a block");
    assert!(!stopped.err.contains("are in"), "{}", stopped.err);
    place.run(&["import", "-s", "t.iso", "m"]).ok();
}
