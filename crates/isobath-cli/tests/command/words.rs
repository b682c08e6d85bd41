//! Command lines as people write them who know other programs, and names that a terminal would act
//! on.

use super::support;

use support::Place;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn a_store_is_understood_without_its_option() {
    let place = Place::new();
    place.store(&[("a", "1"), ("b", "2")]);
    assert_eq!(place.run(&words("get s.iso a")).ok().text(), "1\n");
    assert_eq!(
        place
            .run(&words("--json get s.iso --hex 61 --tree main"))
            .ok()
            .json()[0]["value"],
        "1"
    );
    place.run(&words("set s.iso c 3")).ok();
    place.run(&words("rm s.iso b")).ok();
    assert_eq!(place.run(&words("scan s.iso")).ok().text(), "a\t1\nc\t3\n");
    assert_eq!(place.run(&words("-s s.iso get c")).ok().text(), "3\n");
    place.run(&words("-s s.iso")).fails(2, "error: ");
    assert_eq!(place.run(&words("trees s.iso list")).ok().text(), "main\n");
    place.feed(&words("load s.iso lines"), b"d\t4\n").ok();
    place.run(&words("backup s.iso b.backup")).ok();
    // The environment's store is not the one that is named.
    let mut named = place.command();
    named
        .env("ISOBATH_STORE", "other.iso")
        .args(words("get s.iso d"));
    assert_eq!(named.output().unwrap().stdout, b"4\n");
    let before = place.names();
    for (line, tip) in [
        ("get s.iso", "`isobath get -s s.iso`"),
        ("get no.iso a", "`isobath get -s no.iso a`"),
        (
            "put new.iso --create a 1",
            "`isobath put -s new.iso --create a 1`",
        ),
        ("export s.iso", "`isobath export -s s.iso`"),
        ("load new.iso lines", "`isobath load -s new.iso lines`"),
    ] {
        let told = place.run(&words(line)).fails(2, "name the store with -s: ");
        assert!(told.err.contains(tip), "{line}: {told:?}");
    }
    // With the option, or words that are not of a store, nothing is guessed.
    for line in [
        "get -s s.iso",
        "scan --limit",
        "bench s.iso",
        "restore s.iso",
    ] {
        let told = place.run(&words(line)).fails(2, "error: ");
        assert!(!told.err.contains("name the store"), "{line}: {told:?}");
    }
    assert_eq!(place.names(), before);
}

#[test]
fn verbs_of_other_programs_lead_to_ours() {
    let place = Place::new();
    for (verb, tip) in [
        ("ls", "isobath trees list"),
        ("dump", "isobath export"),
        ("count", "isobath scan --count"),
        ("vacuum", "isobath compact"),
        ("fsck", "isobath check"),
        ("create", "--create"),
    ] {
        for line in [
            verb.to_owned(),
            format!("{verb} my.iso"),
            format!("--json {verb}"),
        ] {
            place.run(&words(&line)).fails(2, tip);
        }
    }
    place.run(&["unknown"]).fails(2, "unrecognized subcommand");
    for verb in ["set", "rm", "del"] {
        let help = place.run(&[verb, "--help"]).ok();
        assert!(help.text().contains("Usage: isobath "), "{verb}");
    }
}

#[test]
fn names_do_nothing_to_a_terminal() {
    let place = Place::new();
    let name = "\u{1b}[31m\n\u{202e}.iso";
    let shown = "\\x1b[31m\\n\\xe2\\x80\\xae";
    place.write("in.csv", "id,\u{1b}[31m\n1,2\n");
    let out = format!("{name}.out");
    let lines: &[&[&str]] = &[
        &["get", "-s", name, "a"],
        &["get", name, "a"],
        &["put", "-s", name, "--create", "a", "1"],
        &["info", "-s", name],
        &["trees", "-s", name, "create", name],
        &["trees", "-s", name, "list"],
        &["get", "-s", name, "-t", name, "b"],
        &["stats", "-s", name],
        &["load", "-s", name, "lines", &out],
        &["export", "-s", name, &out],
        &["backup", "-s", name, &out],
        &["backup", "-s", name, &out, "--force"],
        &["restore", &out, name],
        &["stats", "-s", name, "--watch"],
        &["load", "-s", name, "csv", "in.csv", "--key-column", name],
        &["unknown", name],
        &[name],
        &["scan", name, name],
    ];
    let mut showed = 0;
    for line in lines {
        let told = place.run(line);
        for text in [told.text(), &told.err] {
            showed += usize::from(text.contains(shown));
            let is_acted_on = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!text.contains(is_acted_on), "{line:?}: {told:?}");
        }
    }
    assert!(showed >= 10, "{showed}");
}
