//! load, from every source.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use std::os::unix::fs::symlink;

use support::Place;

#[test]
fn a_directory_becomes_path_and_content() {
    let place = Place::new();
    place.write("dir/a.txt", "alpha");
    place.write("dir/sub/b.bin", [0, 1, 2, 255]);
    place.write("dir/empty", "");
    let big: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    place.write("dir/sub/big", &big);
    symlink("a.txt", place.path("dir/link")).unwrap();
    let json = &place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "--create",
            "--json",
            "directory",
            "dir",
        ])
        .ok()
        .json()[0];
    assert_eq!(json["records"], 4);
    assert_eq!(json["value_bytes"], 3_000_009);
    assert_eq!(json["skipped"]["links"], 1);
    assert_eq!(
        place
            .run(&["scan", "-s", "s.iso", "--keys-only"])
            .ok()
            .text(),
        "a.txt\nempty\nsub/b.bin\nsub/big\n"
    );
    assert!(
        place
            .run(&["get", "-s", "s.iso", "sub/big", "--raw"])
            .ok()
            .out
            == big
    );
    assert_eq!(
        place
            .run(&["get", "-s", "s.iso", "empty", "--raw"])
            .ok()
            .out,
        b""
    );
}

#[test]
fn a_store_inside_the_directory_does_not_swallow_itself() {
    let place = Place::new();
    place.write("a", "1");
    place
        .run(&["load", "-s", "s.iso", "--create", "directory", "."])
        .ok();
    assert_eq!(place.run(&["scan", "-s", "s.iso"]).ok().text(), "a\t1\n");
}

#[test]
fn csv_with_header_and_quotes() {
    let place = Place::new();
    place.write(
        "p.csv",
        "id,name,note\n7,Ada,\"a, b\"\n8,Bob,\"two\nlines\"\n7,Ida,later wins\n",
    );
    place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "--create",
            "csv",
            "p.csv",
            "--key-column",
            "id",
        ])
        .ok();
    assert_eq!(
        place.run(&["get", "-s", "s.iso", "7"]).ok().text(),
        "{\"id\":\"7\",\"name\":\"Ida\",\"note\":\"later wins\"}\n"
    );
    let value = ["--key-column", "name", "--value-column", "note"];
    let args = [
        &[
            "load",
            "-s",
            "s.iso",
            "-t",
            "notes",
            "--create-tree",
            "csv",
            "p.csv",
        ][..],
        &value,
    ]
    .concat();
    place.run(&args).ok();
    assert_eq!(
        place
            .run(&["get", "-s", "s.iso", "-t", "notes", "Bob"])
            .ok()
            .text(),
        "two\\nlines\n"
    );
}

#[test]
fn tsv_without_header_from_standard_input() {
    let place = Place::new();
    let args = [
        "load",
        "-s",
        "s.iso",
        "--create",
        "tsv",
        "-",
        "--no-header",
        "--value-column",
        "2",
    ];
    place.feed(&args, b"k1\tv1\nk2\tv2\n").ok();
    assert_eq!(
        place.run(&["scan", "-s", "s.iso"]).ok().text(),
        "k1\tv1\nk2\tv2\n"
    );
}

#[test]
fn ndjson_by_field_and_pointer() {
    let place = Place::new();
    let lines = "{\"id\":1,\"u\":{\"n\":\"x\"}}\n\n{\"id\":2,\"u\":{\"n\":\"y\"}}\n";
    place.write("e.ndjson", lines);
    place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "--create",
            "ndjson",
            "e.ndjson",
            "--key-field",
            "/u/n",
        ])
        .ok();
    assert_eq!(
        place.run(&["get", "-s", "s.iso", "y"]).ok().text(),
        "{\"id\":2,\"u\":{\"n\":\"y\"}}\n"
    );
}

#[test]
fn the_last_of_equal_keys_wins_however_many_are_in_flight() {
    let place = Place::new();
    let lines: String = (0..30_000)
        .map(|n| format!("key{}\t{n}\n", n % 7))
        .collect();
    place
        .feed(
            &["load", "-s", "s.iso", "--create", "lines"],
            lines.as_bytes(),
        )
        .ok();
    let expected: String = (0..7)
        .map(|k| {
            format!(
                "key{k}\t{}\n",
                (0..30_000).rev().find(|n| n % 7 == k).unwrap()
            )
        })
        .collect();
    assert_eq!(place.run(&["scan", "-s", "s.iso"]).ok().text(), expected);
}

#[test]
fn bad_records_stop_the_load_with_their_line_or_are_counted() {
    let place = Place::new();
    let long = "k".repeat(2000);
    let input = format!("a\t1\nno tab here\n{long}\tx\nb\t2\n");
    place.write("bad", &input);
    place
        .run(&["load", "-s", "s.iso", "--create", "lines", "bad"])
        .fails(3, "bad: line 2: there is no tab between key and value");
    let json = &place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "--create",
            "--skip-bad",
            "--json",
            "lines",
            "bad",
        ])
        .ok()
        .json()[0];
    assert_eq!(
        (&json["records"], &json["bad_records"]),
        (&2.into(), &2.into())
    );

    place.write("bad.csv", "id,v\n1,x\n2\n");
    place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "csv",
            "bad.csv",
            "--value-column",
            "v",
        ])
        .fails(3, "line 3: it has 1 field, no field 2");
    place.write("bad.ndjson", "{\"id\":1}\n{\"no\":1}\n");
    place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "ndjson",
            "bad.ndjson",
            "--key-field",
            "id",
        ])
        .fails(3, "line 2: it has no field `id`");
}

#[test]
fn a_wrong_source_leaves_no_new_store_behind() {
    let place = Place::new();
    place.write("p.csv", "id,name\n1,x\n");
    let load =
        |rest: &[&str]| place.run(&[&["load", "-s", "new.iso", "--create"][..], rest].concat());
    load(&["directory", "none"]).fails(3, "cannot open none");
    load(&["directory", "p.csv"]).fails(3, "p.csv: is a file; name a directory");
    load(&["csv", "none.csv"]).fails(3, "cannot open none.csv");
    load(&["lines", "."]).fails(3, ".: is a directory; name a file");
    load(&["csv", "p.csv", "--key-column", "nam"]).fails(3, "its columns are: id, name");
    load(&["csv", "p.csv", "--key-column", "0"]).fails(2, "counted from 1");
    load(&["ndjson", "p.csv"]).fails(2, "--key-field");
    assert_eq!(place.names(), ["p.csv"]);
}

#[test]
fn a_missing_store_is_only_made_when_asked_for() {
    let place = Place::new();
    place
        .feed(&["load", "-s", "new.iso", "lines"], b"a\t1\n")
        .fails(3, "add --create");
    place
        .run(&["put", "-s", "new.iso", "a", "1"])
        .fails(3, "add --create");
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn lines_in_hexadecimal_carry_any_bytes() {
    let place = Place::new();
    place.write("l.txt", "00ff\tdeadbeef\n\n090a\t\n6b\t0D0a\n");
    place
        .run(&["load", "-s", "s.iso", "--create", "lines", "--hex", "l.txt"])
        .ok();
    let scanned = place.run(&["scan", "-s", "s.iso", "--hex"]).ok();
    assert_eq!(scanned.text(), "00ff\tdeadbeef\n090a\t\n6b\t0d0a\n");
    // The output of scan can be loaded.
    place.write("again.txt", &scanned.out);
    place
        .run(&[
            "load",
            "-s",
            "t.iso",
            "--create",
            "lines",
            "--hex",
            "again.txt",
        ])
        .ok();
    let again = place.run(&["scan", "-s", "t.iso", "--hex"]).ok();
    assert_eq!(again.text(), scanned.text());

    place.write("bad.txt", "00\t01\n0g\t01\n");
    place
        .run(&["load", "-s", "t.iso", "lines", "--hex", "bad.txt"])
        .fails(3, "line 2: `g` at position 2 is no hexadecimal digit");
    place.write("odd.txt", "00\t012\n");
    place
        .run(&["load", "-s", "t.iso", "lines", "--hex", "odd.txt"])
        .fails(3, "line 1: the number of hexadecimal digits is odd");
    let loaded = &place
        .run(&[
            "--json",
            "load",
            "-s",
            "t.iso",
            "--skip-bad",
            "lines",
            "--hex",
            "bad.txt",
        ])
        .ok()
        .json()[0];
    assert_eq!(
        (&loaded["records"], &loaded["bad_records"]),
        (&1.into(), &1.into())
    );
}

#[test]
fn a_quote_that_is_never_closed_is_an_error_of_its_line() {
    let place = Place::new();
    let load = |input: &str, more: &[&str]| {
        let _ = std::fs::remove_file(place.path("s.iso"));
        let args = ["load", "-s", "s.iso", "--create"];
        let from = ["csv", "-", "--key-column", "1", "--value-column", "2"];
        place.feed(&[&args[..], more, &from].concat(), input.as_bytes())
    };
    let scanned = || place.run(&["scan", "-s", "s.iso"]).ok().text().to_owned();
    for open in [
        "id,name\n1,a\n2,\"b\n3,c\n",
        "id,name\r\n1,a\r\n2,\"b\r\n3,c",
        "id,name\n1,a\n2,\"",
        "id,name\n1,a\n\"2,b\n",
        "\u{feff}id,name\n1,a\n2,\"b\"\"\n",
    ] {
        load(open, &[]).fails(3, "line 3: a quote");
        assert!(!place.path("s.iso").exists());
        let told = load(open, &["--skip-bad"]).ok();
        assert!(told.text().contains("line 3: a quote"), "{}", told.text());
        assert_eq!(scanned(), "1\ta\n", "{open:?}");
    }
    load("id,\"name\n1,a\n", &[]).fails(3, "the header: a quote");
    for closed in [
        "id,name\n1,a\n2,\"b\n.\"\n",
        "id,name\n1,a\n2,\"b\n.\"",
        "id,name\r\n1,a\r\n2,\"b\n.\"\r\n\r\n",
        "\u{feff}id,name\n1,a\n2,\"b\n.\"\n\n\n",
    ] {
        load(closed, &[]).ok();
        assert_eq!(scanned(), "1\ta\n2\tb\\n.\n", "{closed:?}");
    }
    load("id,name\n.,\n.,x\n", &[]).ok();
    assert_eq!(scanned(), ".\tx\n");
    for nothing in ["", "\n", "id,name", "id,name\n\n"] {
        load(nothing, &[]).ok();
        assert_eq!(scanned(), "", "{nothing:?}");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_json() {
    let place = Place::new();
    place.write("e", "\u{feff}{\"id\":\"a\"}\n{\"id\":\"b\"}\n");
    place
        .run(&[
            "load",
            "-s",
            "s.iso",
            "--create",
            "ndjson",
            "e",
            "--key-field",
            "id",
        ])
        .ok();
    assert_eq!(
        place.run(&["scan", "-s", "s.iso"]).ok().text(),
        "a\t{\"id\":\"a\"}\nb\t{\"id\":\"b\"}\n"
    );
    place.write("bad", "{\"id\":\"a\"}\nnonsense\n");
    place
        .run(&["load", "-s", "s.iso", "ndjson", "bad", "--key-field", "id"])
        .fails(3, "line 2: it is no JSON (expected ident at column 2)");
}

#[test]
fn lines_of_csv_are_counted_as_an_editor_counts_them() {
    let place = Place::new();
    let rows = |end: &str, between: &str| {
        let many = format!("1,a{end}").repeat(5000);
        format!("id,name{end}{between}1,a{end}{between}2,\"b{end}c\"{end}{many}bad{end}")
    };
    for (end, between, line) in [
        ("\n", "", 5005),
        ("\r\n", "", 5005),
        ("\n", "\n\n", 5009),
        ("\r\n", "\r\n", 5007),
    ] {
        place.write("p.csv", rows(end, between));
        let args = ["load", "-s", "s.iso", "--create", "csv", "p.csv"];
        let columns = ["--key-column", "id", "--value-column", "name"];
        place
            .run(&[&args[..], &columns].concat())
            .fails(3, &format!("line {line}: it has 1 field"));
    }
}

/// Free segments are given back.
#[test]
fn a_large_file_is_loaded_into_little_more_space_than_it_needs() {
    let place = Place::new();
    let count = 300_000;
    let lines: String = (0..count)
        .map(|n| format!("key{n:08}\t{n:0310}\n"))
        .collect();
    place.write("lines", &lines);
    let load = ["load", "-s", "s.iso", "--create", "lines", "lines"];
    place.run(&load).ok();
    let length = std::fs::metadata(place.path("s.iso")).unwrap().len();
    // Leaves hold 11 of these records. Beside them: summaries, the log, checkpoints, and what
    // cleaning needs.
    let leaves: u64 = count / 11 * 4096;
    assert!(length < leaves * 104 / 100 + (16 << 20), "{length}");
    place.run(&["check", "-s", "s.iso"]).ok();
}

#[test]
fn no_value_of_a_row_is_lost_to_another_of_the_same_name() {
    let place = Place::new();
    let load = |input: &str, more: &[&str]| {
        let load = ["load", "-s", "s.iso", "--create", "csv", "-"];
        place.feed(&[&load[..], more].concat(), input.as_bytes())
    };
    load("id,v,v\n1,a,b\n", &[]).fails(3, "names columns 2 and 3 `v`");
    load("v,v\n1,a\n", &["--key-column", "v"]).fails(3, "names columns 1 and 2 `v`");
    assert_eq!(place.names(), [""; 0]);
    // By number each is itself, and a column without a name has that of its number.
    load("id,v,v\n1,a,b\n", &["--value-column", "3"]).ok();
    assert_eq!(place.run(&["get", "s.iso", "1"]).ok().text(), "b\n");
    load("id,,\n1,a,b\n", &[]).ok();
    let row = "{\"column 2\":\"a\",\"column 3\":\"b\",\"id\":\"1\"}\n";
    assert_eq!(place.run(&["get", "s.iso", "1"]).ok().text(), row);
    load("id,column 3\n1,a,b\n", &[]).fails(3, "field 3 has no name");
}

#[test]
fn columns_may_have_any_delimiter() {
    let place = Place::new();
    let load = |input: &str, delimiter: &[&str]| {
        let load = ["load", "-s", "s.iso", "--create", "csv", "-"];
        place.feed(&[&load[..], delimiter].concat(), input.as_bytes())
    };
    for (input, delimiter) in [
        ("id;v\n1;a,b\n", ";"),
        ("id|v\n1|a,b\n", "|"),
        ("id\tv\n1\ta,b\n", "tab"),
    ] {
        load(input, &["--delimiter", delimiter, "--value-column", "v"]).ok();
        assert_eq!(place.run(&["get", "s.iso", "1"]).ok().text(), "a,b\n");
    }
    let told = load("id;v\n1;a\n", &[]).ok();
    assert!(told.err.contains("add --delimiter ';'"), "{told:?}");
    for wrong in ["", ";;", "\"", "\u{fc}"] {
        load("", &["--delimiter", wrong]).fails(2, "--delimiter");
    }
}

#[test]
fn what_scan_prints_is_loaded_again_byte_by_byte() {
    let place = Place::new();
    let records: [(&str, &str); 6] = [
        ("", ""),
        ("0a0d09", "5c6e5c"),
        ("efbbbf61", "00ff"),
        ("61", "0d"),
        ("e280ae", "c3bc"),
        ("20", "2020"),
    ];
    let lines: String = records.iter().map(|(k, v)| format!("{k}\t{v}\n")).collect();
    let load = ["load", "-s", "a.iso", "--create", "lines", "--hex"];
    place.feed(&load, lines.as_bytes()).ok();
    // Also where the first key begins with what would be a byte order mark.
    for range in [&["--prefix", "\u{feff}"][..], &[]] {
        let printed = place.run(&[&["scan", "-s", "a.iso"], range].concat()).ok();
        let load = ["load", "-s", "b.iso", "--create", "lines", "--escaped"];
        place.feed(&load, &printed.out).ok();
    }
    let hex = |store| place.run(&["scan", "-s", store, "--hex"]).ok().out;
    assert_eq!(hex("a.iso"), hex("b.iso"));
    let load = ["load", "-s", "b.iso", "lines", "--escaped"];
    place
        .feed(&load, b"a\\q\tb\n")
        .fails(3, "line 1: the backslash at byte 2");
}

#[test]
fn a_byte_order_mark_is_part_of_no_key() {
    let place = Place::new();
    for (line, input) in [
        ("lines", "\u{feff}a\t1\n"),
        ("csv - --value-column 2", "\u{feff}id,v\na,1\n"),
        ("csv - --no-header --value-column 2", "\u{feff}a,1\n"),
        (
            "tsv - --value-column v --key-column id",
            "\u{feff}id\tv\na\t1\n",
        ),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let load = ["load", "-s", "s.iso", "--create"];
        place
            .feed(&[&load[..], &words].concat(), input.as_bytes())
            .ok();
        assert_eq!(
            place.run(&["scan", "s.iso"]).ok().text(),
            "a\t1\n",
            "{line}"
        );
    }
    place
        .feed(
            &["load", "s.iso", "ndjson", "--key-field", "id"],
            "\u{feff}{\"id\":\"a\"}".as_bytes(),
        )
        .ok();
    assert_eq!(
        place.run(&["get", "s.iso", "a"]).ok().text(),
        "{\"id\":\"a\"}\n"
    );
}
