//! Designs against a map of newest versions, against each other, and against a model of overlays.

use super::*;
use crate::policy::PolicyKind;

const DESIGNS: [&str; 8] = [
    "in-place",
    "overlays:0.25",
    "overlays:0.3:1",
    "overlays:0.3:3",
    "whole-laps:0.2",
    "cumulative:0.25",
    "chained:4",
    "lsm:4",
];

fn simulate(params: &OverlayParams) -> Result<OverlayReport, OverlayError> {
    simulate_overlay(params, &mut |_| true)
}

fn params(design: &str, law: &str, records: u32) -> OverlayParams {
    OverlayParams {
        design: design.parse().unwrap(),
        law: law.parse().unwrap(),
        records,
        space: 2.0,
        ..OverlayParams::default()
    }
}

#[test]
fn every_lookup_finds_the_newest_version() {
    for design in DESIGNS {
        for law in ["uniform", "zipf:0.99", "sequential:1:1", "order-mix"] {
            let params = params(design, law, 3000);
            let mut run = Run::new(&params, params.check().unwrap()).unwrap();
            run.advance(30_000);
            assert!(run.done.lookups > 7000, "{design} {law}");
            assert_eq!((run.done.stale, run.verify()), (0, 0), "{design} {law}");
        }
    }
}

/// A tree that forgets what it took is noticed.
#[test]
fn a_lost_version_is_counted() {
    let params = params("overlays:0.25", "uniform", 3000);
    let mut run = Run::new(&params, params.check().unwrap()).unwrap();
    run.advance(10_000);
    assert_eq!(run.verify(), 0);
    run.newest[17] += 1;
    assert_eq!(run.verify(), 1);
}

#[test]
fn pages_of_runs_are_freed_once_merges_passed_them() {
    for design in ["overlays:0.25", "overlays:0.3:1", "whole-laps:0.2"] {
        let params = params(design, "uniform", 5000);
        let shape = params.check().unwrap();
        let mut io = Io::new(&params, 10);
        let mut model = runs::Overlays::new(&params, shape, &mut io);
        let mut rng = Rng::new(3);
        for version in 1..40_000 {
            model.update(rng.below(5000), version, false, &mut io);
            assert_eq!(io.live(), shape.leaves + model.run_pages(), "{design}");
        }
        let mean = f64::from(model.run_pages()) / f64::from(shape.leaves);
        assert!((0.1..0.4).contains(&mean), "{design}: {mean}");
    }
}

#[test]
fn a_seed_gives_one_report() {
    for design in DESIGNS {
        let params = OverlayParams {
            updates_per_record: 1.0,
            ..params(design, "zipf:0.99", 20_000)
        };
        let report = simulate(&params).unwrap();
        assert_eq!(simulate(&params).unwrap(), report);
        let other = OverlayParams { seed: 2, ..params };
        assert_ne!(simulate(&other).unwrap(), report);
    }
}

/// In a lap that takes only runs sealed before it, all of a share s of runs is merged per lap: a
/// byte is written once with its run, and 1/s times with leaves. A merge that takes every run at
/// its position meets twice the density, and the leaves are half of that.
#[test]
fn merges_cost_what_their_density_says() {
    let written = |design: &str, law: &str| {
        let params = OverlayParams {
            lookups_per_update: 0.0,
            updates_per_record: 4.0,
            ..params(design, law, 60_000)
        };
        simulate(&params).unwrap().written
    };
    let near = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 0.06, "{found} {expected}");
    };
    // 28 records of 144 bytes in 4096.
    let page = 4096.0 / (28.0 * 144.0);
    for share in [0.15, 0.25, 0.4] {
        let whole = written(&format!("whole-laps:{share}"), "uniform");
        near(whole, (1.0 + 1.0 / share) * page);
        let circular = written(&format!("overlays:{share}:64"), "uniform");
        near(circular, (1.0 + 0.5 / share) * page);
    }
    // Numbers of an independent model.
    near(written("whole-laps:0.25", "zipf:0.8"), 3.7);
}

#[test]
fn overlays_write_less_than_leaves_and_levels_more_than_tiers() {
    let written = |design| simulate(&params(design, "uniform", 20_000)).unwrap();
    let (today, tiers) = (written("in-place"), written("overlays:0.25"));
    assert!(tiers.written < today.written / 6.0 && tiers.reads_per_update == 0.0);
    let level = written("overlays:0.25:1");
    assert!(level.written > 1.5 * tiers.written && level.reads_per_scan < tiers.reads_per_scan);
    let chained = written("chained:4");
    assert!(chained.reads_per_lookup > 2.0 && tiers.reads_per_lookup < 1.1);
}

#[test]
fn keys_in_order_are_written_once_in_place() {
    let report = simulate(&params("in-place", "sequential:1:1", 20_000)).unwrap();
    assert!((report.written - 1.016).abs() < 0.01, "{report:?}");
    assert!(report.reads_per_update < 0.05, "{report:?}");
}

#[test]
fn an_observer_ends_a_run() {
    let mut told = Vec::new();
    let stopped = simulate_overlay(&params("in-place", "uniform", 20_000), &mut |done| {
        told.push(done);
        done < 0.9
    });
    assert_eq!(stopped, Err(SimError::Stopped.into()));
    assert!(told.is_sorted() && told.len() > 100, "{told:?}");
}

/// Keys that are known to be new go to their leaves, beside overlays, too, and are written once.
#[test]
fn new_keys_pass_the_overlay() {
    let params = params("overlays:0.25", "uniform", 10_000);
    let shape = params.check().unwrap();
    let written = |is_new: bool| {
        let mut io = Io::new(&params, 10);
        let mut model = runs::Overlays::new(&params, shape, &mut io);
        let loaded = io.written;
        for key in 0..10_000 {
            model.update(key, key + 1, is_new, &mut io);
        }
        assert!((0..10_000).all(|key| model.lookup(key, &mut io) == key + 1));
        (io.written - loaded) as f64 / f64::from(shape.leaves)
    };
    assert!((0.9..1.1).contains(&written(true)), "{}", written(true));
    assert!(written(false) > 1.5, "{}", written(false));
}

#[test]
fn designs_parse_back_and_wrong_parameters_are_named() {
    for design in DESIGNS {
        assert_eq!(design.parse::<Design>().unwrap().to_string(), design);
    }
    for wrong in [
        "",
        "overlays",
        "overlays:0",
        "overlays:2",
        "overlays:0.2:0",
        "lsm:1",
        "x:1",
    ] {
        let error = wrong.parse::<Design>().unwrap_err().to_string();
        assert!(error.contains("in-place, overlays:SHARE"), "{error}");
    }
    let error = |change: &dyn Fn(&mut OverlayParams)| {
        let mut params = params("overlays:0.4", "uniform", 3000);
        change(&mut params);
        simulate(&params).unwrap_err().to_string()
    };
    assert!(error(&|p| p.record_bytes = 5000).contains("page"));
    assert!(error(&|p| p.records = 10).contains("records"));
    assert!(error(&|p| p.overlay = 0.2).contains("overlay"));
    assert!(error(&|p| p.overlay = 0.08).contains("69% full"));
    assert!(error(&|p| p.space = 0.9).contains("volume"));
    assert!(error(&|p| p.updates_per_record = -1.0).contains("upserts"));
    assert!(error(&|p| p.filter_bits = 0.0).contains("filter"));
    assert!(error(&|p| p.policy = PolicyKind::MdcOpt).contains("policy"));
    let text = error(&|p| p.space = 1.3);
    assert!(text.contains("a volume of 1.3 cannot hold"), "{text}");
}
