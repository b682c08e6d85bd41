//! follow: a copy beside the process that writes the source.

use super::support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isobath::{Options, Store, Transaction, TransactionOptions};
use support::Place;

type Trees = BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>>;

/// In which a follower catches up, and ends once it was asked to.
const SOON: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options::new().pool_bytes(16 << 20).workers(1)
}

/// What a store has, but for the note of a copy.
fn all_of(path: &Path) -> Trees {
    let store = Store::open(path, &options().read_only(true)).unwrap();
    let names = store.trees().unwrap().into_iter().map(|tree| tree.name);
    let records = |name: &str| {
        let tree = store.tree(name).unwrap();
        tree.iter().collect::<Result<Vec<_>, _>>().unwrap()
    };
    let all = names
        .filter(|name| name != ".isobath-follow")
        .map(|name| (name.clone(), records(&name)))
        .collect();
    store.close().unwrap();
    all
}

fn start(place: &Place) -> Child {
    start_from(place, "source.iso", "copy.iso")
}

fn start_from(place: &Place, source: &str, copy: &str) -> Child {
    let mut command = place.command();
    command.args(["follow", source, copy]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// A little of everything.
fn work(store: &Store, round: u64) {
    let tree = store.open_or_create_tree("main").unwrap();
    for n in 0..40 {
        let key = (round * 17 + n) % 500;
        let write = |transaction: &mut Transaction| {
            transaction.insert(&tree, key.to_le_bytes(), round.to_string())?;
            transaction.insert(
                &tree,
                [&b"twin"[..], &key.to_le_bytes()].concat(),
                round.to_string(),
            )
        };
        store.transact(TransactionOptions::new(), write).unwrap();
    }
    tree.insert("large", vec![round as u8; 30_000]).unwrap();
    tree.remove(((round * 31) % 500).to_le_bytes()).unwrap();
    if round.is_multiple_of(5) {
        let name = format!("t{}", round % 3);
        match store.tree(&name) {
            Ok(_) => store.drop_tree(&name).unwrap(),
            Err(_) => {
                let loaded = store.create_tree(&name).unwrap();
                let records = (0..300u64).map(|n| (format!("{n:03}"), round.to_string()));
                loaded.bulk_load(records).unwrap();
            }
        }
    }
}

/// A follower that is killed again and again ends up with what the source has, and on the way its
/// copy always has whole transactions.
#[test]
fn a_follower_that_is_killed_at_any_moment_goes_on() {
    let place = Place::new();
    let source = place.path("source.iso");
    let store = Store::create(&source, &options()).unwrap();
    for round in 0..24 {
        let mut follower = start(&place);
        for step in 0..4 {
            work(&store, round * 4 + step);
        }
        std::thread::sleep(Duration::from_millis(round * 17 % 190));
        follower.kill().unwrap();
        follower.wait().unwrap();
        if round % 6 == 5 && place.path("copy.iso").exists() {
            let Ok(copy) = Store::open(place.path("copy.iso"), &options()) else {
                continue;
            };
            if let Ok(tree) = copy.tree("main") {
                for n in 0..500u64 {
                    let twin = [&b"twin"[..], &n.to_le_bytes()].concat();
                    let (one, other) = (tree.get(n.to_le_bytes()), tree.get(twin));
                    let (one, other) = (one.unwrap(), other.unwrap());
                    assert!(one.is_none() || one == other, "{n}: {one:?} and {other:?}");
                }
            }
            copy.close().unwrap();
        }
    }
    let caught_up = place.run(&["follow", "source.iso", "copy.iso", "--once", "--json"]);
    let told = &caught_up.ok().json()[0];
    assert_eq!(told["source_closed"], false);
    assert_eq!(all_of(&place.path("copy.iso")), all_of(&source));
    place.run(&["check", "copy.iso"]).ok();
    // The end of the source is the follower's.
    let follower = start(&place);
    work(&store, 1000);
    store.close().unwrap();
    let ended = follower.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("the source was closed"));
    assert_eq!(all_of(&place.path("copy.iso")), all_of(&source));
}

/// The copy gets its name once it notes what it follows: what a kill leaves before is in no run's
/// way.
#[test]
fn a_follower_that_is_killed_while_it_makes_the_copy_makes_it_again() {
    let place = Place::new();
    let store = Store::create(place.path("source.iso"), &options()).unwrap();
    work(&store, 1);
    let (copy, partial) = (place.path("copy.iso"), place.path("copy.iso.partial"));
    let follow = ["follow", "source.iso", "copy.iso", "--once"];
    for round in 0..12 {
        let mut follower = start(&place);
        // When there is something of it, or later.
        let began = Instant::now();
        while !partial.exists() && !copy.exists() && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(round * 400));
        follower.kill().unwrap();
        follower.wait().unwrap();
        if round % 2 == 0 {
            place.run(&follow).ok();
            assert!(!partial.exists());
            assert_eq!(all_of(&copy), all_of(&place.path("source.iso")));
            std::fs::remove_file(&copy).unwrap();
        } else if copy.exists() {
            std::fs::remove_file(&copy).unwrap();
        }
    }
    // Another process makes it.
    let other = Store::create(&partial, &options()).unwrap();
    place.run(&follow).fails(3, "copy.iso.partial");
    assert!(!copy.exists());
    other.close().unwrap();
    place.run(&follow).ok();
    // A store that has trees of its own is left alone, as is a source of that name.
    std::fs::remove_file(&copy).unwrap();
    let other = Store::create(&partial, &options()).unwrap();
    work(&other, 1);
    other.close().unwrap();
    place.run(&follow).fails(2, "is a store of its own");
    let own = ["follow", "copy.iso.partial", "copy.iso", "--once"];
    place.run(&own).fails(2, "is the source itself");
    assert!(partial.exists() && !copy.exists());
    store.close().unwrap();
}

/// The source that a process of this test writes.
const WRITTEN: &str = "ISOBATH_TEST_WRITTEN";

/// What that process does. Alone it does nothing.
#[test]
fn write_until_killed() {
    let Some(source) = std::env::var_os(WRITTEN) else {
        return;
    };
    let options = options().log_bytes(4 << 20);
    let store = Store::open_or_create(Path::new(&source), &options).unwrap();
    (0..1_000_000).for_each(|round| work(&store, round));
}

/// One follower outlives writers that are killed in the middle of their work, and their recoveries.
#[test]
fn a_writer_that_is_killed_and_opened_again_is_followed_on() {
    let place = Place::new();
    let source = place.path("source.iso");
    let write = || {
        let mut writer = Command::new(std::env::current_exe().unwrap());
        writer.args(["--exact", "follow::write_until_killed"]);
        let writer = writer.env(WRITTEN, &source).stdout(Stdio::null());
        writer.spawn().unwrap()
    };
    Store::create(&source, &options()).unwrap().close().unwrap();
    let mut follower: Option<Child> = None;
    for round in 0..8 {
        let mut writer = write();
        std::thread::sleep(Duration::from_millis(300 + round * 57 % 200));
        follower.get_or_insert_with(|| start(&place));
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    let mut follower = follower.unwrap();
    let ended = follower.try_wait().unwrap();
    if ended.is_some() {
        panic!("{:?}", follower.wait_with_output());
    }
    let store = Store::open(&source, &options()).unwrap();
    work(&store, 1000);
    let caught_up = Instant::now();
    while all_of(&place.path("copy.iso")) != all_of(&source) {
        assert!(caught_up.elapsed() < SOON, "the copy stays behind");
        std::thread::sleep(Duration::from_millis(50));
    }
    store.close().unwrap();
    let ended = follower.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(all_of(&place.path("copy.iso")), all_of(&source));
}

/// Two followers of one source, and one of a copy, all of which are killed.
#[test]
fn a_source_has_several_followers_and_a_copy_may_have_one() {
    let place = Place::new();
    let source = place.path("source.iso");
    let store = Store::create(&source, &options()).unwrap();
    let pairs = [
        ("source.iso", "one.iso"),
        ("source.iso", "two.iso"),
        ("one.iso", "third.iso"),
    ];
    work(&store, 0);
    for (from, to) in pairs {
        place.run(&["follow", from, to, "--once"]).ok();
    }
    for round in 1..10 {
        let mut followers = pairs.map(|(from, to)| start_from(&place, from, to));
        (0..5).for_each(|step| work(&store, round * 5 + step));
        std::thread::sleep(Duration::from_millis(round * 37 % 190));
        for follower in &mut followers {
            follower.kill().unwrap();
            follower.wait().unwrap();
        }
    }
    let there = all_of(&source);
    for (from, to) in pairs {
        place.run(&["follow", from, to, "--once"]).ok();
        assert_eq!(all_of(&place.path(to)), there, "{to}");
    }
    store.close().unwrap();
}

#[test]
fn a_follower_ends_in_order_when_it_is_interrupted() {
    let place = Place::new();
    let store = Store::create(place.path("source.iso"), &options()).unwrap();
    work(&store, 1);
    let mut follower = start(&place);
    let began = Instant::now();
    while !place.path("copy.iso").exists() && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(800));
    let id = follower.id().to_string();
    Command::new("kill").args(["-INT", &id]).status().unwrap();
    let began = Instant::now();
    let ended = loop {
        if let Some(ended) = follower.try_wait().unwrap() {
            break ended;
        }
        assert!(began.elapsed() < SOON, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.code(), Some(130));
    // It was closed.
    place.run(&["recover", "copy.iso"]).ok();
    assert_eq!(
        all_of(&place.path("copy.iso")),
        all_of(&place.path("source.iso"))
    );
    store.close().unwrap();
}

#[test]
fn a_restored_backup_follows_from_its_position() {
    let place = Place::new();
    let source = place.path("source.iso");
    let store = Store::create(&source, &options()).unwrap();
    work(&store, 1);
    let backup = place
        .run(&["backup", "source.iso", "b", "--json"])
        .ok()
        .json();
    let position = backup[0]["position"].as_str().unwrap();
    work(&store, 2);
    place.run(&["restore", "b", "copy.iso"]).ok();
    place
        .run(&["follow", "source.iso", "copy.iso", "--once"])
        .fails(2, "--from");
    let follow = [
        "follow",
        "source.iso",
        "copy.iso",
        "--once",
        "--from",
        position,
    ];
    let told = place.run(&follow).ok();
    assert!(told.text().contains("none of it copied anew"), "{told:?}");
    assert_eq!(all_of(&place.path("copy.iso")), all_of(&source));
    // What it has noted itself counts from then on.
    work(&store, 3);
    place.run(&follow).ok();
    assert_eq!(all_of(&place.path("copy.iso")), all_of(&source));
    place
        .run(&[
            "follow",
            "source.iso",
            "new.iso",
            "--once",
            "--from",
            position,
        ])
        .fails(2, "does not exist");
    place
        .run(&["follow", "source.iso", "copy.iso", "--from", "12"])
        .fails(2, "no position");
    // Another store in the place of the first one.
    store.close().unwrap();
    std::fs::remove_file(&source).unwrap();
    Store::create(&source, &options()).unwrap().close().unwrap();
    place
        .run(&["follow", "source.iso", "copy.iso"])
        .fails(3, "replaced by another one");
    place.run(&["restore", "b", "again.iso"]).ok();
    place
        .run(&["follow", "source.iso", "again.iso", "--from", position])
        .fails(3, "replaced by another one");
}

#[test]
fn a_follower_that_has_fallen_behind_compares_everything() {
    let place = Place::new();
    let source = place.path("source.iso");
    let store = Store::create(&source, &options().log_bytes(4 << 20)).unwrap();
    work(&store, 1);
    let follow = ["follow", "source.iso", "copy.iso", "--once", "--json"];
    place.run(&follow).ok();
    let backup = place
        .run(&["backup", "source.iso", "b", "--json"])
        .ok()
        .json();
    let position = backup[0]["position"].as_str().unwrap();
    place.run(&["restore", "b", "restored.iso"]).ok();
    let restored = all_of(&place.path("restored.iso"));
    let tree = store.tree("main").unwrap();
    for n in 0..8_000u64 {
        tree.insert((n % 700).to_le_bytes(), vec![n as u8; 1000])
            .unwrap();
    }
    store.open_or_create_tree("new").unwrap();
    if store.tree("t0").is_ok() {
        store.drop_tree("t0").unwrap();
    }
    let told = place.run(&follow).ok();
    assert_eq!(told.json()[0]["copied_anew"], 1, "{told:?}");
    assert!(told.err.contains("moved on"), "{told:?}");
    assert_eq!(all_of(&place.path("copy.iso")), all_of(&source));
    let told = place.run(&follow).ok();
    assert_eq!(told.json()[0]["transactions"], 0, "{told:?}");
    // Nothing says that this is a copy, so it is not compared.
    place
        .run(&["follow", "source.iso", "restored.iso", "--from", position])
        .fails(2, "moved on");
    assert_eq!(all_of(&place.path("restored.iso")), restored);
    drop(tree);
    store.close().unwrap();
}

#[test]
fn a_store_that_is_no_copy_is_left_as_it_is() {
    let place = Place::new();
    let source = Store::create(place.path("source.iso"), &options()).unwrap();
    work(&source, 1);
    let other = Store::create(place.path("other.iso"), &options()).unwrap();
    let elsewhere = other.log_position().unwrap().to_string();
    let users = Store::create(place.path("users.iso"), &options()).unwrap();
    users
        .create_tree("theirs")
        .unwrap()
        .insert("a", "1")
        .unwrap();
    users.close().unwrap();
    let before = all_of(&place.path("users.iso"));
    let follow = ["follow", "source.iso", "users.iso", "--once"];
    // A run that fails leaves nothing that the next one takes for a copy's note.
    place
        .run(&[&follow[..], &["--from", &elsewhere]].concat())
        .fails(3, "replaced by another one");
    place.run(&follow).fails(2, "is no copy");
    let users = Store::open(place.path("users.iso"), &options()).unwrap();
    assert!(users.tree(".isobath-follow").is_err());
    users.create_tree(".isobath-follow").unwrap();
    users.close().unwrap();
    place.run(&follow).fails(2, "is no copy");
    assert_eq!(all_of(&place.path("users.iso")), before);
    place
        .run(&["follow", "source.iso", "source.iso"])
        .fails(2, "is the source itself");
    place
        .run(&["follow", "-s", "missing.iso", "new.iso"])
        .fails(3, "missing.iso");
    assert!(!place.path("new.iso").exists());
    // A store that is there is not taken for the source in the place of one that is not.
    for line in [
        &["follow", "missing.iso", "other.iso", "--once"][..],
        &["follow", "--once", "missing.iso", "other.iso"],
        &["follow", "--pool", "8MiB", "missing.iso", "other.iso"],
        &["salvage", "missing.iso", "other.iso"],
    ] {
        place.run(line).fails(2, "--store <PATH>");
        assert!(!place.path("missing.iso").exists());
    }
    let pool = [
        "follow",
        "--pool",
        "8MiB",
        "--once",
        "source.iso",
        "new.iso",
    ];
    place.run(&pool).ok();
    source.close().unwrap();
    other.close().unwrap();
}

/// A copy that has not got everything yet knows whose copy it is.
#[test]
fn a_copy_that_was_begun_takes_no_other_store() {
    let place = Place::new();
    let source = Store::create(place.path("source.iso"), &options()).unwrap();
    let other = Store::create(place.path("other.iso"), &options()).unwrap();
    work(&other, 1);
    let copy = Store::create(place.path("copy.iso"), &options()).unwrap();
    let note = copy.create_tree(".isobath-follow").unwrap();
    let begun = source.log_position().unwrap().to_string();
    note.insert("source", begun).unwrap();
    drop(note);
    copy.close().unwrap();
    place
        .run(&["follow", "other.iso", "copy.iso", "--once"])
        .fails(3, "replaced by another one");
    place
        .run(&["follow", "source.iso", "copy.iso", "--once"])
        .ok();
    source.close().unwrap();
    other.close().unwrap();
}
