//! What no advice may say: more than the drive was seen to give, latencies that do not fit rates,
//! memory that there is not.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
mod common;

use common::advice::{advisor, because, workload};
use common::virtual_drive;
use isobath_model::OperatingPoint;
use isobath_model::advise::Advice;

/// What a workload asks for beyond the profile is said, and makes the interval wider. The profile
/// goes to 128 reads in flight and to reads of 64 pages.
#[test]
fn depths_and_sizes_beyond_the_profile_are_named() {
    let asked = |clients: u32, value_bytes: f64| {
        let mut w = workload("point_reads = 1.0", "");
        (w.clients, w.value_bytes) = (clients, value_bytes);
        w.record_count = 4e9 / value_bytes;
        advisor().advise(&w).unwrap()
    };
    let below = |advice: &Advice| {
        let p = &advice.rocksdb.predicted;
        p.operations_per_s / p.operations_per_s_range.0
    };
    let inside = asked(128, 120.0);
    assert_eq!(inside.warnings, Vec::<String>::new());
    let (deep, large) = (asked(4000, 120.0), asked(128, 67_108_864.0));
    // The interval is 1.88 and 2.73 times as wide.
    for (advice, what, wider) in [
        (
            &deep,
            "a depth of 4000 is above the largest measured (128)",
            1.87,
        ),
        (
            &large,
            "pages of 16385 is above the largest measured (64)",
            2.72,
        ),
    ] {
        let said = |w: &String| w.starts_with("RocksDB") && w.contains(what);
        assert!(advice.warnings.iter().any(said), "{:?}", advice.warnings);
        assert!(below(advice) > wider * below(&inside), "{advice:?}");
        // Isobath has as many I/Os in flight as it was told to, and none above 256 KiB.
        assert_eq!(advice.isobath.predicted.extrapolated, None);
    }
    // Nothing is read if all fits into memory.
    let mut w = workload("point_reads = 1.0", "");
    (w.clients, w.memory_bytes) = (4000, 64e9);
    let rocksdb = advisor().advise(&w).unwrap().rocksdb.predicted;
    assert!(rocksdb.page_reads_per_operation < 1e-9, "{rocksdb:?}");
    assert_eq!(rocksdb.extrapolated, None);
}

/// Bytes count as I/Os do: the fastest point of the profile is the limit, whatever an engine reads
/// at once, for the upper end of the interval, too.
#[test]
fn no_more_bytes_are_predicted_than_the_drive_was_seen_to_move() {
    let fastest = |read_share: f64| {
        let points = virtual_drive("train").into_iter();
        let rates = points.filter(|(s, _)| s.point.read_share == read_share);
        rates
            .map(|(s, _)| s.throughput_pages_per_s * 4096.0)
            .fold(0.0, f64::max)
    };
    let (reads, writes) = (fastest(1.0), fastest(0.0));
    // Seconds of the fastest points that an operation takes: of the records that it reads, and of
    // those that it writes.
    for (operations, read, written) in [
        ("point_reads = 1.0", 1.0, 0.0),
        ("updates = 1.0", 0.0, 1.0),
        ("point_reads = 0.5\nupdates = 0.5", 0.5, 0.5),
        ("scans = 1.0\nscan_records = 20", 20.0, 0.0),
        ("scans = 0.5\nscan_records = 20\nupdates = 0.5", 10.0, 0.5),
    ] {
        for value_bytes in [4000.0, 65_536.0, 1_048_576.0] {
            let mut w = workload(operations, "");
            (w.record_count, w.value_bytes) = (4e9 / value_bytes, value_bytes);
            let advice = advisor().advise(&w).unwrap();
            for predicted in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
                // An eighth of the data may be in memory.
                let fastest_s = value_bytes * (0.87 * read / reads + written / writes);
                let most = predicted.operations_per_s_range.1;
                assert!(most >= predicted.operations_per_s);
                assert!(
                    most * fastest_s <= 1.001,
                    "{operations} {value_bytes}: {most:.1}/s of {:.1}/s",
                    1.0 / fastest_s
                );
            }
        }
    }
}

/// Nor more I/Os: small reads move few bytes.
#[test]
fn no_more_reads_are_predicted_than_the_drive_was_seen_to_answer() {
    let points = virtual_drive("train").into_iter();
    let rates = points.filter(|(s, _)| s.point.read_share >= 1.0);
    let fastest = rates
        .map(|(s, _)| s.throughput_pages_per_s / s.point.io_pages)
        .fold(0.0, f64::max);
    let w = workload("point_reads = 1.0", "");
    let advice = advisor().advise(&w).unwrap();
    for p in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
        let most = p.operations_per_s_range.1 * p.page_reads_per_operation;
        assert!(most <= 1.001 * fastest, "{most} of {fastest}: {p:?}");
    }
}

/// Operations in flight = rate × latency (Little), for both engines and however many clients there
/// are.
#[test]
fn latency_obeys_littles_law() {
    for clients in [1, 8, 128, 1000] {
        let mut w = workload("point_reads = 1.0", "");
        w.clients = clients;
        let advice = advisor().advise(&w).unwrap();
        for p in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
            let in_flight = p.operations_per_s * p.read_latency_us_mean.unwrap() / 1e6;
            assert!(
                (in_flight / f64::from(clients) - 1.0).abs() < 0.01,
                "{clients} clients: {in_flight} in flight, {p:?}"
            );
        }
    }
}

/// No more reads are in flight than clients wait for: the drive gives them what it gives at that
/// depth, whichever engine asks.
#[test]
fn few_clients_get_what_the_drive_gives_to_few_reads() {
    for clients in [1, 2, 4, 8, 16, 32] {
        let mut w = workload("point_reads = 1.0", "");
        w.clients = clients;
        let advice = advisor().advise(&w).unwrap();
        let point = OperatingPoint::random_reads(f64::from(clients), 1.0);
        let most = advisor().predictor().predict(&point).unwrap();
        for p in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
            let reads = p.operations_per_s * p.page_reads_per_operation;
            assert!(
                reads < 1.001 * most.throughput_pages_per_s,
                "{clients} clients: {reads} of {most:?}, {p:?}"
            );
        }
    }
}

/// Where every read finds its record in memory, all wait for the cores alike; if few do not, those
/// wait for the drive besides.
#[test]
fn a_percentile_of_reads_knows_what_they_wait_for() {
    let mut w = workload("point_reads = 1.0", "");
    w.record_count = 1e6;
    let advice = advisor().advise(&w).unwrap();
    for p in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
        assert_eq!(p.limited_by, "CPU", "{p:?}");
        assert!(p.read_latency_us_p99 >= p.read_latency_us_mean, "{p:?}");
    }
}

/// Where the cores are what all wait for, a read that misses waits for them as others do, and for
/// the drive as one that is alone.
#[test]
fn a_slow_read_waits_for_the_drive_once() {
    let mut w = workload("point_reads = 1.0", "");
    (w.clients, w.record_count, w.core_count) = (1000, 3.6e6, 1);
    let p = advisor().advise(&w).unwrap().isobath.predicted;
    assert_eq!(p.limited_by, "CPU", "{p:?}");
    let misses = p.page_reads_per_operation;
    assert!((0.01..0.5).contains(&misses), "{p:?}");
    // The slowest p99 of a read by itself in this profile is below 5 ms.
    let p99 = p.read_latency_us_p99.unwrap();
    let mean = p.read_latency_us_mean.unwrap();
    assert!(p99 >= mean && p99 < mean + 5000.0, "{p:?}");
}

/// Commits that wait for each other in the log hold up those that commit; reads of what is in
/// memory go on, and no percentile is below their mean. A latency is said of no operation that the
/// workload does not have.
#[test]
fn reads_do_not_wait_for_the_log_and_what_is_not_read_has_no_latency() {
    let operations = "point_reads = 0.9\nscans = 0.05\nupdates = 0.05";
    let mut w = workload(operations, "[durability]\ncommits = \"synced\"");
    (w.record_count, w.clients) = (1e6, 32);
    for record_count in [1e6, 4e6, 64e6, 512e6] {
        w.record_count = record_count;
        let advice = advisor().advise(&w).unwrap();
        for p in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
            assert!(p.read_latency_us_p99 >= p.read_latency_us_mean, "{p:?}");
            if p.limited_by.starts_with("log") && record_count == 1e6 {
                assert!(p.read_latency_us_mean < Some(20.0), "{p:?}");
            }
        }
    }
    for operations in ["scans = 1.0", "updates = 0.5\ninserts = 0.5"] {
        let mut w = workload(operations, "");
        w.target_read_p99_us = Some(1.0);
        let advice = advisor().advise(&w).unwrap();
        for p in [&advice.isobath.predicted, &advice.rocksdb.predicted] {
            let latencies = (p.read_latency_us_mean, p.read_latency_us_p99);
            assert_eq!(latencies, (None, None), "{p:?}");
        }
        assert!(!advice.warnings.iter().any(|said| said.contains("p99")));
    }
}

/// The mapping table of a terabyte takes more than 128 MiB, and so do RocksDB's index and filter
/// blocks.
#[test]
fn a_store_that_takes_more_memory_than_there_is_is_named() {
    let warned = |memory_bytes: f64, record_count: f64| {
        let mut w = workload("point_reads = 1.0", "");
        (w.memory_bytes, w.record_count) = (memory_bytes, record_count);
        let advice = advisor().advise(&w).unwrap();
        let said = |what: &str| advice.warnings.iter().any(|w| w.contains(what));
        assert_eq!(said("mapping table"), said("index and filter blocks"));
        (
            said("mapping table"),
            because(&advice.isobath.reasons, "pool_bytes").contains("a quarter"),
        )
    };
    assert_eq!(warned(134_217_728.0, 33e6), (false, false));
    assert_eq!(warned(134_217_728.0, 8e9), (true, true));
    assert_eq!(warned(64e9, 8e9), (false, false));
}

/// Shares that add up to 1 but for rounding leave no lookups over, for which RocksDB would need
/// filters.
#[test]
fn rounded_shares_ask_for_no_filter() {
    // 0.6 + 0.3 is less than 1 - 0.1 in binary.
    for operations in [
        "updates = 0.6\ninserts = 0.3\nscans = 0.1",
        "updates = 0.9\nscans = 0.1",
    ] {
        let advice = advisor().advise(&workload(operations, "")).unwrap();
        assert_eq!(
            advice.rocksdb.settings.filter_bits_per_key, 0,
            "{operations}"
        );
    }
    let with = advisor().advise(&workload("point_reads = 0.1\nupdates = 0.9", ""));
    assert_eq!(with.unwrap().rocksdb.settings.filter_bits_per_key, 10);
}
