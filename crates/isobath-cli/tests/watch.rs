//! stats of a store that is in use, and stats --watch.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

mod support;

use isobath::{Options, Store};
use support::Place;

#[test]
fn a_store_in_use_is_shown_and_followed_until_it_is_closed() {
    let place = Place::new();
    let options = Options::new().pool_bytes(8 << 20).workers(1).log_bytes(0);
    let store = Store::create(&[place.path("s.iso")], &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..20_000u32 {
        tree.insert(&n.to_le_bytes(), &[7; 100]).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(600));
    let shown = place.run(&["stats", "-s", "s.iso", "--json"]).ok().json();
    assert!(
        shown[0]["user_bytes_written"].as_u64().unwrap() > 1_000_000,
        "{shown:?}"
    );
    assert!(shown[0]["trees"].is_null(), "no other process may open it");
    let text = place.run(&["stats", "-s", "s.iso"]).ok();
    for word in [
        "WA-A",
        "cleaning",
        "longest stall",
        "segment_emptiness",
        "fill",
    ] {
        assert!(text.text().contains(word), "{word}: {}", text.text());
    }
    for (columns, header) in [("80", "WA-A most by"), ("140", "WA-A = pages")] {
        let watch = [
            "stats", "-s", "s.iso", "--watch", "--every", "50ms", "--count", "3",
        ];
        let lines = place.run_in_columns(columns, &watch).ok();
        assert_eq!(lines.text().lines().count(), 4, "{}", lines.text());
        assert!(lines.text().contains(header), "{}", lines.text());
    }
    // A watcher that is there when the store is closed sees its end.
    let path = place.path("s.iso");
    let watcher = std::thread::spawn({
        let mut command = place.command();
        move || {
            command
                .args(["stats", "--watch", "--every", "50ms", "-s"])
                .arg(path)
                .output()
                .unwrap()
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    store.close().unwrap();
    let ended = watcher.join().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{ended:?}");
    assert!(text.contains("no longer in use"), "{text}");
    // Closed, it is opened and read as before.
    let shown = place.run(&["stats", "-s", "s.iso", "--json"]).ok().json();
    assert_eq!(shown[0]["trees"], 1);
}

#[test]
fn what_cannot_be_watched_is_refused_with_a_reason() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    place
        .run(&["stats", "-s", "s.iso", "--watch"])
        .fails(3, "no process of yours has it open for writing");
    place
        .run(&["stats", "-s", "none.iso", "--watch"])
        .fails(3, "there is no such file");
    place
        .run(&["stats", "-s", "s.iso", "--watch", "--every", "0s"])
        .fails(2, "--every must be above 0");
    place
        .run(&["stats", "-s", "s.iso", "--every", "1s"])
        .fails(2, "--watch");
}
