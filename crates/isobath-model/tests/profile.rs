//! Device profiles: round trip, foreign files, other versions, impossible values.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
use isobath_model::profile::{DeviceProfile, ProfileError};

/// The example of the module's documentation is the format's specification: it must be readable.
fn documented_example() -> String {
    let source = include_str!("../src/profile/mod.rs");
    let lines = source.lines().skip_while(|l| *l != "//! ```json").skip(1);
    let body: Vec<&str> = lines
        .take_while(|l| *l != "//! ```")
        .map(|l| l.trim_start_matches("//!"))
        .collect();
    body.join("\n")
}

#[test]
fn the_documented_example_is_readable_and_survives_a_round_trip() {
    let profile = DeviceProfile::from_json(&documented_example()).unwrap();
    assert_eq!(profile.points[0].concurrency(), 32.0);
    assert_eq!(profile.samples().len(), 1);
    let again = DeviceProfile::from_json(&profile.to_json().unwrap()).unwrap();
    assert_eq!(again, profile);
}

/// Where the points of one level do not determine the queue form, those of all levels are fitted;
/// if they do, or none do, no fit mixes levels.
#[test]
fn levels_are_mixed_only_where_one_is_not_enough() {
    let example = DeviceProfile::from_json(&documented_example()).unwrap();
    let of = |points: u32, steady: u32| {
        let mut profile = example.clone();
        let mut other = profile.regimes[0].clone();
        other.usable = false;
        profile.regimes.push(other);
        let at = |i: u32| {
            let mut point = profile.points[0].clone();
            (point.queue_depth, point.io_pages) = (1 << (i % 4), f64::from(1 + i / 4));
            point.regime = if i < steady {
                0
            } else {
                profile.regimes.len() - 1
            };
            point
        };
        profile.points = (0..points).map(at).collect();
        (
            profile.fitted_samples().len(),
            profile.is_fitted_across_levels(),
        )
    };
    assert_eq!(of(10, 10), (10, false));
    assert_eq!(of(10, 6), (6, false));
    assert_eq!(of(10, 5), (10, true), "six are needed");
    assert_eq!(of(5, 3), (3, false), "all are too few");
}

#[test]
fn other_files_and_versions_are_named() {
    let example = documented_example();
    let newer = example.replace("\"version\": 1", "\"version\": 2");
    let error = DeviceProfile::from_json(&newer).unwrap_err();
    assert!(
        matches!(error, ProfileError::Version { found: 2 }),
        "{error}"
    );
    let foreign = example.replace("isobath-device-profile", "fio-result");
    let error = DeviceProfile::from_json(&foreign).unwrap_err();
    assert!(
        matches!(&error, ProfileError::Foreign { found } if found == "fio-result"),
        "{error}"
    );
    assert!(matches!(
        DeviceProfile::from_json("{").unwrap_err(),
        ProfileError::Syntax(_)
    ));
    assert!(matches!(
        DeviceProfile::from_json(&example[..example.len() / 2]).unwrap_err(),
        ProfileError::Syntax(_)
    ));
}

#[test]
fn impossible_values_name_point_and_field() {
    let example = documented_example();
    for (from, to, field) in [
        (
            "\"throughput_pages_per_s\": 88000.0",
            "\"throughput_pages_per_s\": 0.0",
            "throughput_pages_per_s",
        ),
        ("\"io_pages\": 1,", "\"io_pages\": -1,", "io_pages"),
        (
            "\"random_share\": 1.0",
            "\"random_share\": 100.0",
            "random_share",
        ),
        ("\"queue_depth\": 32", "\"queue_depth\": 0", "queue_depth"),
        // Fits and advice go through every depth up to the deepest.
        (
            "\"queue_depth\": 32",
            "\"queue_depth\": 4294967295",
            "threads × queue_depth",
        ),
        ("\"mean\": 363.0", "\"mean\": 0.0", "latency_us.mean"),
        ("\"p99\": 1100.0", "\"p99\": -1.0", "latency_us.p99"),
        (
            "\"cpu_us_per_io\": 2.9",
            "\"cpu_us_per_io\": -2.9",
            "cpu_us_per_io",
        ),
    ] {
        assert!(example.contains(from), "{from}");
        match DeviceProfile::from_json(&example.replace(from, to)).unwrap_err() {
            ProfileError::BadPoint {
                index: 0,
                field: found,
                ..
            } => assert_eq!(found, field),
            other => panic!("{field}: {other}"),
        }
    }
    let lost = example.replace("\"regime\": 0", "\"regime\": 3");
    assert!(matches!(
        DeviceProfile::from_json(&lost).unwrap_err(),
        ProfileError::UnknownRegime { regime: 3, .. }
    ));
}

#[test]
fn points_of_an_unusable_regime_are_not_fitted() {
    let example = documented_example().replace("\"usable\": true", "\"usable\": false");
    assert!(
        DeviceProfile::from_json(&example)
            .unwrap()
            .samples()
            .is_empty()
    );
}
