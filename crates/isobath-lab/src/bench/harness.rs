//! The benchmark's own cost: the same workload with no engine and one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::keys::Records;
use super::plan::Plan;
use super::run::run;
use super::workload::{Mix, Operation};
use crate::engine::{self, EngineKind, Key};
use crate::{LabError, Monitor, Unseen};

/// How long it is measured.
const TIME: Duration = Duration::from_millis(200);
/// How long making answers up is measured.
const ANSWERS_TIME: Duration = Duration::from_millis(20);
/// Answers between two looks at the clock, and their bytes: fewer of them where values are large.
const ANSWERS: u64 = 4096;
const ANSWERS_BYTES: u64 = 16 << 20;

/// Nanoseconds per operation that the benchmark takes: to draw a record, make its key, compare the
/// answer, look at the clock and count. If there is no engine answers are made up, which is not
/// counted: an engine finds and copies them in its own time.
pub(super) fn ns_per_operation(plan: &Plan, monitor: &dyn Monitor) -> Option<f64> {
    // Transactions need an engine that keeps what it is given.
    if plan.engine.kind.is_baseline() || plan.workload.tpcc.is_some() {
        return None;
    }
    let mut alone = plan.clone();
    alone.engine.kind = EngineKind::Null;
    // Reading the clock is part of what a row costs.
    alone.latency_every = Some(plan.timed_one_in());
    (alone.engine.path, alone.engine.simulated) = (None, None);
    (alone.virtual_ssd, alone.region_bytes) = (None, None);
    alone.engine.threads = 1;
    (alone.rate_per_s, alone.drive_depth) = (None, None);
    (alone.until_steady, alone.keep, alone.components) = (false, false, false);
    (alone.warm_up, alone.duration) = (Duration::ZERO, TIME);
    alone.sample_every = TIME;
    alone.workload.fill = false;
    let record = run(&alone, &Unseen(monitor)).ok()?.record?;
    let rate = record.series.rate_from(0);
    if rate <= 0.0 {
        return None;
    }
    // On a busy machine the time is more than what the benchmark takes.
    let all = (record.cpu_us_per_operation * 1e3).min(1e9 / rate);
    let answers = ns_per_answer(&alone).ok()? * gets_per_operation(&alone.workload.mix);
    Some((all - answers).max(0.0))
}

/// Single records that an operation of the mix reads.
fn gets_per_operation(mix: &Mix) -> f64 {
    mix.share_of(Operation::Get) + mix.share_of(Operation::ReadModifyWrite)
}

/// Nanoseconds for which an answer is made up and copied to the client.
fn ns_per_answer(plan: &Plan) -> Result<f64, LabError> {
    let workload = &plan.workload;
    let records = Arc::new(Records::new(
        plan.records,
        workload.value_bytes,
        workload.key_format,
        workload.key_order,
    ));
    let engine = engine::open(&plan.engine, true)?;
    engine.begin(&records);
    let answers = (ANSWERS_BYTES / (workload.value_bytes as u64).max(1)).clamp(1, ANSWERS);
    let keys: Vec<Key> = (0..answers)
        .map(|at| records.key(at * (plan.records / answers).max(1) % plan.records))
        .collect();
    let least = Arc::new(AtomicU64::new(u64::MAX));
    let found = Arc::clone(&least);
    engine.run(Arc::new(move |_, session| {
        let mut value = Vec::new();
        let until = Instant::now() + ANSWERS_TIME;
        // The least of many: an interruption is no part of it.
        while Instant::now() < until {
            let began = Instant::now();
            for key in &keys {
                session.get(0, key, &mut value)?;
                std::hint::black_box(&value);
            }
            let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            found.fetch_min(ns, Ordering::Relaxed);
        }
        Ok(())
    }))?;
    engine.close()?;
    Ok(least.load(Ordering::Relaxed) as f64 / answers as f64)
}
