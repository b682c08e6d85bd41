use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Silent, Stage, drive_model};

fn dir() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// A plan that takes a second or two.
fn tiny(dir: &tempfile::TempDir, points: usize) -> ProbePlan {
    ProbePlan {
        bytes: 128 << 20,
        slice: Duration::from_millis(15),
        repeats_min: 1,
        repeats_max: 1,
        reruns_max: 0,
        group: 1,
        ..ProbePlan::new(dir.path(), &dir.path().join("p.json"), Grid::Seeded(points))
    }
}

/// Stops once so many points were measured.
struct StopAfter(AtomicU64, u64);

impl Monitor for StopAfter {
    fn begin(&self, stage: Stage) {
        if stage.name == "measuring points" {
            self.0.store(1, Ordering::Relaxed);
        }
    }
    fn advance(&self, amount: u64) {
        if self.0.load(Ordering::Relaxed) > 0 {
            self.0.fetch_add(amount, Ordering::Relaxed);
        }
    }
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) > self.1
    }
}

fn names(dir: &tempfile::TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(dir.path()).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_probe_measures_its_whole_plan_and_leaves_only_the_profile() {
    let dir = dir();
    let plan = tiny(&dir, 6);
    let wanted = plan.points();
    let profile = prepare(plan).unwrap().run(&Silent).unwrap();
    assert!(profile.complete && profile.system.direct_io);
    for point in &wanted {
        assert!(
            profile.points.iter().any(|p| p.sample().point == *point),
            "{point:?}"
        );
    }
    assert!(profile.sentinels.len() > wanted.len());
    assert!(profile.host_cache.repeat_reads_per_s.is_some());
    assert!(profile.flush_us.is_some_and(|us| us > 0.0));
    assert_eq!(names(&dir), ["p.json"]);
    let read = drive_model::read_profile(&dir.path().join("p.json")).unwrap();
    assert!(read.complete);
    assert_eq!(read.points.len(), profile.points.len());
    assert_eq!(read.plan, profile.plan);
}

#[test]
fn one_test_file_serves_several_probes() {
    let dir = dir();
    let plan = tiny(&dir, 3);
    let output = dir.path().join("q.json");
    let other = prepare(ProbePlan {
        seed: 2,
        output,
        ..plan.clone()
    });
    let first = prepare(plan).unwrap();
    let opened = first.open().unwrap();
    for probe in [first, other.unwrap()] {
        let profile = probe.run_on(&opened, &Silent).unwrap();
        assert!(profile.complete && profile.points.len() >= 3);
    }
    let mut left = names(&dir);
    left.sort();
    assert_eq!(left, ["p.json", "q.json"]);
}

#[test]
fn an_interrupted_probe_goes_on_where_it_stopped() {
    let dir = dir();
    let plan = tiny(&dir, 8);
    let stop = StopAfter(AtomicU64::new(0), 3);
    let error = prepare(plan.clone()).unwrap().run(&stop).unwrap_err();
    assert!(matches!(error, LabError::Interrupted), "{error}");
    assert_eq!(names(&dir), ["p.json"]);
    let partial = drive_model::read_profile(&plan.output).unwrap();
    assert!(!partial.complete);
    let steady = |p: &DeviceProfile| {
        p.points
            .iter()
            .filter(|q| p.regimes[q.regime].name != regimes::DRIFTING)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert!(
        (1..8).contains(&partial.points.len()),
        "{}",
        partial.points.len()
    );

    let again = prepare(plan.clone()).err().unwrap().to_string();
    assert!(again.contains("--resume"), "{again}");
    let other = ProbePlan {
        resume: true,
        seed: 2,
        ..plan.clone()
    };
    let other = prepare(other).err().unwrap().to_string();
    assert!(other.contains("another plan"), "{other}");

    let plan = ProbePlan {
        resume: true,
        ..plan
    };
    let elsewhere = ProbePlan {
        path: dir.path().join("other"),
        ..plan.clone()
    };
    let elsewhere = prepare(elsewhere).err().unwrap().to_string();
    assert!(elsewhere.contains("with the path"), "{elsewhere}");
    let larger = ProbePlan {
        bytes: 2 * plan.bytes,
        ..plan.clone()
    };
    let larger = prepare(larger).unwrap().run(&Silent).unwrap_err();
    assert!(larger.to_string().contains("--size"), "{larger}");
    // A session that never came to measure leaves what the last one found.
    let stop = StopAfter(AtomicU64::new(1), 0);
    prepare(plan.clone()).unwrap().run(&stop).unwrap_err();
    let kept = drive_model::read_profile(&plan.output).unwrap();
    assert_eq!(kept, partial);

    let prepared = prepare(plan.clone()).unwrap();
    let left = prepared.estimate().points;
    let kept = steady(&partial);
    assert_eq!(left, 8 - kept.len());
    let whole = prepared.run(&Silent).unwrap();
    assert!(whole.complete);
    for point in &kept {
        let found = whole.points.iter().any(|p| {
            p.began_s == point.began_s && p.throughput_pages_per_s == point.throughput_pages_per_s
        });
        assert!(found, "a point was measured twice or lost: {point:?}");
    }
    for point in plan.points() {
        assert!(whole.points.iter().any(|p| p.sample().point == point));
    }
}

#[test]
fn a_probe_that_is_stopped_before_its_first_point_leaves_nothing() {
    let dir = dir();
    let stop = StopAfter(AtomicU64::new(1), 0);
    let error = prepare(tiny(&dir, 3)).unwrap().run(&stop).unwrap_err();
    assert!(matches!(error, LabError::Interrupted));
    assert_eq!(names(&dir), [""; 0]);
}

/// Where the profile cannot be written, nothing is measured for it.
#[test]
fn an_output_that_cannot_be_made_is_refused_first() {
    let dir = dir();
    for output in ["no/such/p.json", "."] {
        let plan = ProbePlan {
            output: dir.path().join(output),
            resume: output == ".",
            ..tiny(&dir, 3)
        };
        let begun = AtomicU64::new(0);
        let outcome = prepare(plan).and_then(|prepared| prepared.run(&Begun(&begun)));
        assert!(outcome.is_err());
        assert_eq!(begun.into_inner(), 0, "{output}");
    }
    assert_eq!(names(&dir), [""; 0]);
}

/// Counts the stages that begin.
struct Begun<'a>(&'a AtomicU64);

impl Monitor for Begun<'_> {
    fn begin(&self, _: Stage) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn cancelled(&self) -> bool {
        false
    }
}

#[test]
fn an_existing_file_is_read_and_never_written() {
    let dir = dir();
    let path = dir.path().join("data");
    let mut bytes = vec![0u8; 64 << 20];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let plan = ProbePlan {
        path: path.clone(),
        bytes: 64 << 20,
        ..tiny(&dir, 6)
    };
    let plan = ProbePlan {
        concurrency_max: 32,
        ..plan
    };
    let reads = plan.points().iter().filter(|p| p.read_share >= 1.0).count();
    let prepared = prepare(plan).unwrap();
    assert_eq!(prepared.estimate().prepare_writes_bytes, 0);
    let profile = prepared.run(&Silent).unwrap();
    assert_eq!(profile.points.len(), reads);
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[test]
fn plans_that_contradict_themselves() {
    let dir = dir();
    let good = tiny(&dir, 3);
    type Change = fn(&mut ProbePlan);
    let cases: [(&str, Change); 6] = [
        ("--size", |plan| plan.bytes = 1 << 20),
        ("--max-depth", |plan| plan.concurrency_max = 3),
        ("--confidence", |plan| plan.confidence = 0.0),
        ("--seeded", |plan| plan.grid = Grid::Seeded(0)),
        ("--seeded", |plan| plan.grid = Grid::Seeded(usize::MAX)),
        ("--slice", |plan| plan.slice = Duration::from_micros(999)),
    ];
    for (word, change) in cases {
        let mut plan = good.clone();
        change(&mut plan);
        let error = prepare(plan).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn the_estimate_counts_points_bytes_and_writes() {
    let dir = dir();
    let quick = ProbePlan::new(dir.path(), &dir.path().join("p.json"), Grid::Quick);
    let estimate = prepare(quick.clone()).unwrap().estimate();
    assert_eq!((estimate.points, estimate.bytes), (20, 1 << 30));
    assert!(
        estimate.seconds_min < estimate.seconds_max && estimate.seconds_max < 60.0,
        "{estimate:?}"
    );
    assert!(estimate.action.contains("test file"));
    let more = ProbePlan {
        precondition: true,
        ..quick
    };
    assert_eq!(
        prepare(more).unwrap().estimate().prepare_writes_bytes,
        3 << 30
    );
}
