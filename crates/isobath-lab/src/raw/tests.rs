use super::*;
use crate::Silent;
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Trigger};

/// A short run on small files.
fn small(target: RawTarget) -> RawPlan {
    RawPlan {
        target,
        bytes: Some(8 << 20),
        depth: 8,
        warmup_ms: 20,
        duration_ms: 200,
        ..RawPlan::default()
    }
}

fn scratch(dir: &tempfile::TempDir, n: usize) -> RawTarget {
    RawTarget::Scratch((0..n).map(|i| dir.path().join(format!("f{i}"))).collect())
}

fn dir() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

#[test]
fn a_plan_needs_no_fields_and_survives_json() {
    let plan: RawPlan = serde_json::from_str("{}").unwrap();
    assert_eq!(
        (plan.depth, plan.read_percent, plan.page_bytes),
        (128, 100, 4096)
    );
    let text = r#"{"target": {"files": ["/x"]}, "model": {"dedicated_threads": {"io_threads": 2}}, "backend": "io_uring_sqpoll"}"#;
    let plan: RawPlan = serde_json::from_str(text).unwrap();
    assert_eq!(plan.model, IoModel::DedicatedThreads { io_threads: 2 });
    let again: RawPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(again.backend, RawBackend::IoUringSqpoll);
}

#[test]
fn every_model_and_mix_runs_and_cleans_up() {
    for (model, threads) in [
        (IoModel::AllToAll, 2),
        (IoModel::Assigned, 2),
        (IoModel::DedicatedThreads { io_threads: 1 }, 2),
        (IoModel::DedicatedThreads { io_threads: 2 }, 1),
    ] {
        for (read_percent, random_percent) in [(100, 100), (50, 100), (0, 0)] {
            let dir = dir();
            let plan = RawPlan {
                model,
                threads,
                read_percent,
                random_percent,
                stripe_unit_bytes: 65536,
                ..small(scratch(&dir, 2))
            };
            let result = run(&plan, &Silent).unwrap();
            assert!(result.ios > 100, "{plan:?}: {result:?}");
            assert_eq!(result.ios, result.reads + result.writes);
            let share = result.reads as f64 / result.ios as f64 * 100.0;
            assert!(
                (share - f64::from(read_percent)).abs() < 8.0,
                "{share}% reads"
            );
            assert!(result.ios_per_s > 0.0 && result.cpu_us_per_io > 0.0);
            // Each place in the queue is taken for the window at most, and for what an I/O that was
            // in flight at its beginning took before.
            let longest_us = result.read_latency.max_us.max(result.write_latency.max_us);
            let places = f64::from(plan.threads * plan.depth);
            let most = places * (1.0 + longest_us / 1e6 / result.window_s);
            assert!(result.in_flight_mean <= most, "{result:?}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn every_backend_runs() {
    for backend in [
        RawBackend::Auto,
        RawBackend::IoUringIopoll,
        RawBackend::IoUringSqpoll,
        RawBackend::Libaio,
        RawBackend::Pread,
    ] {
        let dir = dir();
        let plan = RawPlan {
            backend,
            ..small(scratch(&dir, 1))
        };
        match run(&plan, &Silent) {
            Ok(result) => assert!(result.ios > 50, "{result:?}"),
            // Containers forbid io_uring.
            Err(RawError::Volume(VolumeError::BackendRefused { .. })) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn memory_and_volumes_of_the_caller() {
    let result = run(&small(RawTarget::Memory), &Silent).unwrap();
    assert_eq!(result.backend, "memory");
    assert!(result.ios > 1000);
    let volume = Volume::in_memory(1 << 20, None);
    let plan = RawPlan {
        page_bytes: 16384,
        ..small(RawTarget::Volume(volume))
    };
    let result = run(&plan, &Silent).unwrap();
    let mb = result.ios_per_s * 16384.0 * 1e-6;
    assert!((result.mb_per_s - mb).abs() < 1e-6 * mb);
}

#[test]
fn more_memory_than_depth_is_gone_round_in() {
    for model in [
        IoModel::AllToAll,
        IoModel::DedicatedThreads { io_threads: 1 },
    ] {
        let plan = RawPlan {
            model,
            buffer_bytes: 8 << 20,
            depth: 4,
            ..small(RawTarget::Memory)
        };
        let result = run(&plan, &Silent).unwrap();
        assert!(result.ios > 1000);
        assert!(result.in_flight_mean <= f64::from(4 * plan.threads));
    }
}

#[test]
fn bad_plans_are_refused() {
    let dir = dir();
    let good = small(scratch(&dir, 2));
    type Change = fn(&mut RawPlan);
    let cases: [(&str, Change); 10] = [
        ("read_percent", |p| p.read_percent = 101),
        ("random_percent", |p| p.random_percent = 101),
        ("threads", |p| p.threads = 0),
        ("depth", |p| p.depth = 0),
        ("wait_min", |p| p.wait_min = 0),
        ("duration_ms", |p| p.duration_ms = 0),
        ("buffer_bytes", |p| p.buffer_bytes = 1 << 50),
        ("page_bytes", |p| p.page_bytes = 1000),
        ("io_threads", |p| {
            p.model = IoModel::DedicatedThreads { io_threads: 0 }
        }),
        ("threads", |p| p.model = IoModel::Assigned),
    ];
    for (name, change) in cases {
        let mut plan = good.clone();
        change(&mut plan);
        let error = run(&plan, &Silent).unwrap_err();
        let named = matches!(&error, RawError::BadPlan { field, .. } if *field == name);
        assert!(named, "{name}: {error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn the_first_failed_io_ends_the_run() {
    for (model, threads) in [
        (IoModel::AllToAll, 2),
        (IoModel::DedicatedThreads { io_threads: 1 }, 2),
    ] {
        let fault = Fault::Error(IoErrorKind::Media);
        let rule = FaultRule::new(fault, Trigger::At(500)).ops(&[Op::Read]);
        let device = FaultDevice::new(1 << 20, FaultPlan::new(1).rule(rule));
        let plan = RawPlan {
            model,
            threads,
            prepare: false,
            duration_ms: 60_000,
            ..small(RawTarget::Volume(Volume::from_device(device)))
        };
        let error = run(&plan, &Silent).unwrap_err();
        assert!(
            matches!(&error, RawError::Io(e) if e.kind() == IoErrorKind::Media),
            "{error}"
        );
    }
}

/// Asks to stop at once.
struct Stop;

impl Monitor for Stop {
    fn cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_cancelled_run_stops_and_cleans_up() {
    let dir = dir();
    for prepare in [true, false] {
        let plan = RawPlan {
            prepare,
            duration_ms: 60_000,
            ..small(scratch(&dir, 1))
        };
        assert!(matches!(run(&plan, &Stop), Err(RawError::Interrupted)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
