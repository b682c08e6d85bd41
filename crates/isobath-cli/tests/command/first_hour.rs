//! The command as a new user meets it: what it accepts, what it says, what it leaves behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use isobath::{Options, Store};
use support::Place;

const PROFILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/examples/profile.json"
);

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn options_may_stand_behind_what_they_belong_to() {
    let place = Place::new();
    place.write("f.csv", "k,v\na,1\n");
    place.run(&words("load csv f.csv -s s.iso --create")).ok();
    place.run(&words("load csv -s s.iso f.csv")).ok();
    let list = |line: &str| place.run(&words(line)).ok().text().to_owned();
    assert_eq!(list("trees list -s s.iso"), "main\n");
    assert_eq!(list("trees -s s.iso list"), "main\n");
    assert_eq!(list("trees list --store s.iso --pool 16MiB"), "main\n");
    // The environment counts as little as before.
    let mut command = place.command();
    command.env("ISOBATH_STORE", "none.iso");
    let listed = command.args(words("trees list -s s.iso")).output().unwrap();
    assert_eq!(listed.stdout, b"main\n");
    for line in ["trees list", "load csv f.csv"] {
        let told = place.run(&words(line)).fails(2, "--store <PATH>");
        assert!(told.err.contains("Usage: isobath"), "{told:?}");
        let mut command = place.command();
        command.env("ISOBATH_STORE", "s.iso").args(words(line));
        assert!(command.output().unwrap().status.success());
    }
}

#[test]
fn a_missing_directory_is_no_missing_file() {
    let place = Place::new();
    for line in [
        "get -s none/s.iso k",
        "put -s none/s.iso k v",
        "put -s none/s.iso --create k v",
        "check -s none/far/s.iso",
    ] {
        let told = place
            .run(&words(line))
            .fails(3, "the directory none does not exist");
        assert!(told.err.contains("make the directory first"), "{told:?}");
    }
    place
        .run(&words("get -s s.iso k"))
        .fails(3, "s.iso does not exist");
    place
        .run(&words("put -s s.iso k v"))
        .fails(3, "s.iso does not exist; check the name, or add --create");
    place.store(&[("a", "1")]);
    for line in [
        "backup -s s.iso none/b",
        "export -s s.iso none/e",
        "get -s s.iso a --output none/a",
    ] {
        place
            .run(&words(line))
            .fails(3, "there is no directory none");
    }
    place
        .run(&words("load -s s.iso lines none/l"))
        .fails(3, "there is no directory none");
    place
        .run(&words("load -s s.iso lines none"))
        .fails(3, "cannot open none: it does not exist");
    assert_eq!(place.names(), ["s.iso"]);
}

#[test]
fn a_mistyped_tree_is_not_made() {
    let place = Place::new();
    // A new store has the tree that it is made for.
    place
        .run(&words("put -s s.iso --create -t colours sky blue"))
        .ok();
    place.write("l", "a\t1\n");
    for line in [
        "put -s s.iso -t colors sky blue",
        "put -s s.iso --create -t colors sky blue",
        "load -s s.iso -t colors lines l",
    ] {
        let told = place
            .run(&words(line))
            .fails(3, "there is no tree \"colors\"");
        assert!(told.err.contains("did you mean \"colours\"?"), "{told:?}");
        assert!(
            told.err.contains("--create-tree makes a new one"),
            "{told:?}"
        );
    }
    let told = place
        .run(&words("get -s s.iso -t colurs sky"))
        .fails(3, "did you mean");
    assert!(!told.err.contains("--create-tree"), "{told:?}");
    let told = place
        .run(&words("put -s s.iso -t x y z"))
        .fails(3, "--create-tree");
    assert!(!told.err.contains("did you mean"), "{told:?}");
    assert_eq!(
        place.run(&words("trees list -s s.iso")).ok().text(),
        "colours\n"
    );
    // The tree of verbs that name none needs no leave.
    place.run(&words("put -s s.iso k v")).ok();
    place
        .run(&words("put -s s.iso -t shapes --create-tree k v"))
        .ok();
    place
        .run(&words("load -s s.iso lines l -t more --create-tree"))
        .ok();
    let listed = place.run(&words("trees list -s s.iso")).ok();
    assert_eq!(listed.text(), "colours\nmain\nmore\nshapes\n");
    // One that was made for records which are not there goes again.
    place
        .feed(
            &words("load -s s.iso lines -t bad --create-tree"),
            b"no tab\n",
        )
        .fails(3, "line 1");
    let listed = place.run(&words("trees list -s s.iso")).ok();
    assert_eq!(listed.text(), "colours\nmain\nmore\nshapes\n");
}

/// Starts the command with a standard input that stays open, and waits until it has made `file`.
fn waiting_for_input(place: &Place, line: &str, file: &str) -> Child {
    let child = place
        .command()
        .args(words(line))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !place.path(file).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Ends the command as Ctrl-C does; its exit code and what it says.
fn interrupt(mut child: Child) -> (Option<i32>, String) {
    let stdin = child.stdin.take();
    // Once more after a while: what a shell has started in the background ignores the signal until
    // it handles it.
    'ends: loop {
        let killed = std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(killed.unwrap().success());
        for _ in 0..500 {
            std::thread::sleep(Duration::from_millis(10));
            if child.try_wait().unwrap().is_some() {
                break 'ends;
            }
        }
    }
    let ended = child.wait_with_output().unwrap();
    drop(stdin);
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.code(), text)
}

#[test]
fn an_interrupt_is_heeded_while_nothing_comes_through_a_pipe() {
    for line in [
        "load -s s.iso --create lines",
        "load -s s.iso --create ndjson --key-field id -",
        "put -s s.iso --create k --file -",
    ] {
        let place = Place::new();
        let mut child = waiting_for_input(&place, line, "s.iso");
        child.stdin.as_mut().unwrap().write_all(b"a\t1\n").unwrap();
        let (code, told) = interrupt(child);
        assert_eq!(code, Some(130), "{line}: {told}");
        assert!(told.contains("interrupted"), "{line}: {told}");
        assert_eq!(place.names(), [""; 0], "{line}");
    }
    // A FIFO that has no writer.
    let place = Place::new();
    place.store(&[("a", "1")]);
    let fifo = std::process::Command::new("mkfifo")
        .arg(place.path("fifo"))
        .status();
    assert!(fifo.unwrap().success());
    let child = waiting_for_input(&place, "load -s t.iso --create lines fifo", "t.iso");
    assert_eq!(interrupt(child).0, Some(130));
    assert_eq!(place.names(), ["fifo", "s.iso"]);
}

#[test]
fn a_store_that_was_made_for_nothing_goes() {
    let place = Place::new();
    place.write("bad", "a\t1\nno tab\n");
    place.write("big", vec![7; 4 << 20]);
    place.write("no.export", "what is this");
    place.store(&[("a", "1")]);
    place.run(&words("export -s s.iso cut.export")).ok();
    let export = std::fs::read(place.path("cut.export")).unwrap();
    place.write("cut.export", &export[..export.len() / 2]);
    let before = place.names();
    for (line, code) in [
        ("load -s n.iso --create lines bad", 3),
        ("load -s n.iso --create csv bad --value-column 2", 3),
        ("put -s n.iso --create --limit 6MiB k --file big", 3),
        ("put -s n.iso --create --limit 1MiB k v", 2),
        (
            "put -s n.iso --create --log-path n.log --limit 6MiB k --file big",
            3,
        ),
        ("trees create --create -s n.iso ", 3),
        ("import -s n.iso --create no.export", 3),
        ("import -s n.iso --create cut.export", 3),
    ] {
        let told = place.run(&words(line));
        assert_eq!(told.code, code, "{line}: {told:?}");
        assert_eq!(place.names(), before, "{line}: {told:?}");
    }
    // Existing files stay, also empty ones.
    place.run(&words("trees create --create -s n.iso t")).ok();
    place
        .run(&words("load -s n.iso lines bad"))
        .fails(3, "line 2");
    assert_eq!(place.run(&words("trees list -s n.iso")).ok().text(), "t\n");
}

#[test]
fn a_store_in_use_is_waited_for_as_long_as_it_is_said() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let options = Options::new().pool_bytes(16 << 20).workers(1);
    let held = Store::open(place.path("s.iso"), &options).unwrap();
    let told = place
        .run(&words("put -s s.iso k v"))
        .fails(3, "in use by process");
    assert!(told.err.contains("--wait 10s waits for it"), "{told:?}");
    place
        .run(&words("put -s s.iso k v --wait 50ms"))
        .fails(3, "in use by process");
    let waits = [
        "put -s s.iso k v --wait 10min",
        "load -s s.iso --wait 10min lines",
        "delete -s s.iso a --wait 10min",
    ];
    let mut waiting: Vec<_> = waits
        .iter()
        .map(|line| {
            let mut command = place.command();
            command
                .args(words(line))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    held.close().unwrap();
    for child in &mut waiting {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(place.run(&words("scan -s s.iso")).ok().text(), "k\tv\n");
    // The wait itself is interrupted.
    let held = Store::open(place.path("s.iso"), &options).unwrap();
    let child = waiting_for_input(&place, "put -s s.iso k w --wait 10min", "s.iso");
    let (code, _) = interrupt(child);
    assert!(matches!(code, Some(130) | None), "{code:?}");
    held.close().unwrap();
}

#[test]
fn sizes_are_read_and_printed_as_people_write_them() {
    let place = Place::new();
    place
        .run(&words("put -s s.iso --create --limit 10GB k v"))
        .ok();
    place
        .run(&words("put -s s.iso --limit 10000000001 k v"))
        .ok();
    let small = place
        .run(&words("put -s t.iso --create --limit 1MiB k v"))
        .fails(
            2,
            "--limit: a store with these options needs at least 5.5 MiB",
        );
    assert!(!small.err.contains("volume_limit_bytes"), "{small:?}");
    place
        .run(&words("put -s t.iso --create --limit 5632KiB k v"))
        .ok();
    let pool = place
        .run(&words("get -s t.iso k --pool 1MiB --workers 2"))
        .fails(
            2,
            "--pool: 1.0 MiB is too small a pool: with 2 workers it needs at least 1.2 MiB",
        );
    assert!(!pool.err.contains("pool_bytes"), "{pool:?}");
    place
        .run(&words("get -s t.iso k --pool 1.2MiB --workers 2"))
        .ok();
    place.write("big", vec![7; 4 << 20]);
    let full = place.run(&words("put -s t.iso big --file big")).fails(
        3,
        "may not grow beyond 5.5 MiB: raise --limit, or delete something",
    );
    assert!(!full.err.contains(" bytes"), "{full:?}");
    place
        .run(&words("put -s t.iso big --file big --limit 100MB"))
        .ok();
}

#[test]
fn salvage_and_get_agree_about_a_truncated_store() {
    let place = Place::new();
    place.store(&[("a", "1"), ("b", "2")]);
    let length = std::fs::metadata(place.path("s.iso")).unwrap().len();
    let store = std::fs::File::options()
        .write(true)
        .open(place.path("s.iso"));
    // Behind all that is stored.
    let cut = length - 5_000;
    store.unwrap().set_len(cut).unwrap();
    let told = place
        .run(&words("get -s s.iso a"))
        .fails(3, "s.iso is truncated: it has ");
    let found = told
        .err
        .split(": it has ")
        .nth(1)
        .unwrap()
        .split(':')
        .next()
        .unwrap();
    let salvaged = place.run(&words("salvage -s s.iso t.iso"));
    assert_eq!(salvaged.code, 1, "{salvaged:?}");
    let says = format!("lost: s.iso is truncated: it has {found}; what lay beyond is missing\n");
    assert!(salvaged.text().contains(&says), "{says}: {salvaged:?}");
    // Both superblocks are there, and so nothing else is said to be lost.
    assert_eq!(salvaged.text().matches("lost: ").count(), 1, "{salvaged:?}");
    assert!(
        salvaged.text().contains("salvaged 2 records of 1 tree"),
        "{salvaged:?}"
    );
    assert_eq!(
        place.run(&words("scan -s t.iso")).ok().text(),
        "a\t1\nb\t2\n"
    );
}

#[test]
fn loads_say_what_was_replaced_and_what_was_left_out() {
    let place = Place::new();
    let lines = b"a\t1\nno tab\na\t2\nb\t3\na\t4\n";
    let said = place
        .feed(&words("load -s s.iso --create --skip-bad lines"), lines)
        .ok();
    for line in [
        "loaded 2 records",
        "2 more records had the key of a later one, which is the one that is kept:",
        "  line 1, replaced by line 5",
        "  line 3, replaced by line 5",
        "left out 1 record that could not be stored:",
        "  line 2: there is no tab between key and value",
    ] {
        assert!(said.text().contains(line), "{line}: {said:?}");
    }
    let many: String = (0..100).map(|n| format!("{},{n}\n", n % 3)).collect();
    let said = place
        .feed(&words("load -s s.iso csv - --no-header"), many.as_bytes())
        .ok();
    assert!(
        said.text().contains("  line 1, replaced by line 100"),
        "{said:?}"
    );
    assert!(said.text().contains("  and 92 more"), "{said:?}");
    let json = &place
        .feed(&words("load -s s.iso --json --skip-bad lines"), lines)
        .ok()
        .json()[0];
    assert_eq!(json["replaced_lines"][0]["by_line"], 5);
    assert_eq!(json["bad_lines"][0]["line"], 2);
}

#[test]
fn a_load_that_fails_says_what_is_in_and_is_completed_by_the_same() {
    let place = Place::new();
    for n in 0..40u8 {
        place.write(&format!("dir/{n:02}"), vec![n; 100_000]);
    }
    let load = "load -s s.iso --create directory dir --limit";
    let failed = place
        .run(&words(&format!("{load} 7MiB")))
        .fails(3, "raise --limit");
    let stored = failed.err.split("; ").last().unwrap();
    assert!(
        stored.ends_with("of 40 are in: the same load completes it\n"),
        "{failed:?}"
    );
    let said: u64 = stored.split(' ').next().unwrap().parse().unwrap();
    let count = |store: &str| {
        let json = &place
            .run(&words(&format!("scan -s {store} --count --json")))
            .ok()
            .json()[0];
        json["records"].as_u64().unwrap()
    };
    assert_eq!(count("s.iso"), said);
    assert!(said > 0 && said < 40);
    place.run(&words(&format!("{load} 100MiB"))).ok();
    assert_eq!(count("s.iso"), 40);

    // Sorted records that go between others come in commit by commit.
    place
        .run(&words("put -s t.iso --create --limit 7MiB 999999 last"))
        .ok();
    let value = "v".repeat(900);
    let lines: String = (0..9000).map(|n| format!("{n:06}\t{value}\n")).collect();
    let load = |more: &str| {
        let line = format!("load -s t.iso lines{more}");
        place.feed(&words(&line), lines.as_bytes())
    };
    let failed = load("").fails(3, "raise --limit");
    let stored = failed.err.split("; ").last().unwrap();
    assert!(
        stored.contains("records of 9000 are in, the lowest keys first"),
        "{failed:?}"
    );
    let said = stored.strip_prefix("at least ").unwrap();
    let said: u64 = said.split(' ').next().unwrap().parse().unwrap();
    let there = count("t.iso") - 1;
    assert!(said <= there && there < 9000, "{said} {there}");
    load(" --limit 100MiB").ok();
    assert_eq!(count("t.iso"), 9001);
    // In an empty tree it is all or nothing.
    let failed = place
        .feed(
            &words("load -s u.iso --create --limit 7MiB lines"),
            lines.as_bytes(),
        )
        .fails(
            3,
            "nothing was loaded: records are sorted first and stored together",
        );
    assert!(!place.path("u.iso").exists(), "{failed:?}");
}

#[test]
fn tables_fit_the_terminal() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let model = format!("model {PROFILE}");
    let lines = [
        "stats -s s.iso",
        "raw --memory --bytes 4MiB --duration 10ms --warm-up 1ms --depth 1,8 --page 4KiB,8KiB --read 50,100",
        "bench run --memory-device --bytes 4MiB --in-pool --duration 20ms --warm-up 5ms --no-drive",
        "sim analysis",
        "sim analysis --workload zipf:0.99,hot-cold:0.8 --pages 4096",
        "sim clean --device 64MiB --segment 64KiB --writes 2 --policy greedy,mdc --reserve 8",
        "sim overlay --records 20000 --updates 1 --space 2",
        &model,
    ];
    for line in lines {
        for (columns, most) in [("80", 80), ("60", 60), ("200", 200)] {
            let shown = place.run_in_columns(columns, &words(line)).ok();
            // Tables: the lines between the first rule and the last one.
            let lines: Vec<&str> = shown.text().lines().collect();
            let rule = |line: &&str| line.starts_with('─');
            let first = lines.iter().position(rule).unwrap();
            let last = lines.iter().rposition(rule).unwrap();
            let is_row = |line: &&&str| line.starts_with(['─', ' ']);
            for table in lines[first..=last].iter().filter(is_row) {
                let width = table.chars().count();
                assert!(width <= most, "{line} in {columns} columns: {table}");
            }
            let mut shown = shown.text().split([' ', '\n']);
            assert!(shown.all(|word| word != "us"), "{line}: {lines:?}");
        }
    }
}
