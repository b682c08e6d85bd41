//! Names which tasks wait for which, in debug builds and in simulations, when nothing has moved for
//! a while.

use std::time::{Duration, Instant};

use super::{Engine, WorkerState};
use crate::runtime::clock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::trace;

/// Time in which nothing has moved, although something waits, after which that is told.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How often a worker looks.
const PERIOD: Duration = Duration::from_secs(1);

/// So many wait for this.
type Wait = (usize, &'static str);

/// Watches an engine whose workers have threads.
#[derive(Default)]
pub(crate) struct Watchdog {
    seen: Mutex<Option<Seen>>,
    /// How often nothing moved.
    standstills: AtomicU64,
}

struct Seen {
    next_look: Instant,
    moved: [u64; 15],
    since: Instant,
    was_told: bool,
}

/// All that anything in the engine waits for.
fn waits(engine: &Engine) -> impl Iterator<Item = Wait> {
    let workers = &engine.workers;
    let live = workers.admission.live.load(Ordering::Relaxed);
    let closing = match workers.admission.is_closing() {
        true => live,
        false => 0,
    };
    let own = [
        (closing, "accepted work that closing waits for"),
        (usize::from(workers.is_stopping()), "the workers' end"),
        (
            usize::from(engine.shared.is_recovering()),
            "the recovery's end",
        ),
    ];
    let waits = own.into_iter().chain(engine.pagestore.waits());
    let waits = waits.chain(engine.log_tasks.waits());
    let waits = waits.chain(engine.buffer.waits());
    waits.filter(|(count, _)| *count > 0)
}

/// Describes which tasks wait for which.
pub(crate) fn what_waits(engine: &Engine) -> String {
    let waits = waits(engine).map(|(count, what)| format!("{count} for {what}"));
    let waits: Vec<String> = waits.collect();
    let log = &engine.log;
    format!(
        "what waits: {}; {} tasks for keys; log from {} to {}, durable to {}; {} frees pending; {} unwritten pages",
        waits.join(", "),
        engine.transactions.locks.waiters(),
        log.start().0,
        log.next().0,
        log.durable().0,
        engine.pagestore.pending_frees(),
        engine.buffer.pool.dirty.unwritten(),
    )
}

/// Numbers of which one changes while the engine gets anywhere.
fn moved(engine: &Engine) -> [u64; 15] {
    let counters = &engine.shared.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let transactions = &engine.transactions.counters;
    let log = &engine.log;
    [
        read(&counters.page_reads),
        read(&counters.page_writes),
        read(&counters.bytes_read),
        read(&counters.bytes_written),
        read(&counters.user_bytes),
        read(&counters.evictions),
        read(&counters.segments_cleaned),
        read(&counters.checkpoints),
        read(&transactions.commits),
        read(&transactions.conflicts),
        log.start().0,
        log.next().0,
        log.durable().0,
        engine.pagestore.pending_frees() as u64,
        engine.workers.admission.live.load(Ordering::Relaxed) as u64,
    ]
}

impl Watchdog {
    /// Looks, if it is time to; for how long nothing has moved, if that is to be told now.
    fn look(&self, engine: &Engine, now: Instant) -> Option<Duration> {
        let mut seen = self.seen.try_lock()?;
        if seen.as_ref().is_some_and(|seen| now < seen.next_look) {
            return None;
        }
        let moved = moved(engine);
        let before = seen.take();
        let before = before.filter(|seen| seen.moved == moved && waits(engine).next().is_some());
        let (since, was_told) = before.map_or((now, false), |seen| (seen.since, seen.was_told));
        let is_told = !was_told && now - since >= STANDSTILL;
        *seen = Some(Seen {
            next_look: now + PERIOD,
            moved,
            since,
            was_told: was_told || is_told,
        });
        is_told.then(|| now - since)
    }
}

impl WorkerState {
    /// Part of a worker's step. In a simulation the driver asks when it finds the worker stuck.
    pub(super) fn watch(&self) {
        if clock::is_simulated() {
            return;
        }
        let watchdog = &self.engine.watchdog;
        if let Some(time) = watchdog.look(&self.engine, clock::wall()) {
            let (seconds, waits) = (time.as_secs(), what_waits(&self.engine));
            trace::tell!(warn, "nothing moves", seconds = seconds);
            eprintln!("isobath: nothing has moved for {seconds} s; {waits}");
            watchdog.standstills.fetch_add(1, Ordering::Relaxed);
            // The others say what their tasks wait for, too.
            self.engine.workers.notify_all();
        }
        let standstills = watchdog.standstills.load(Ordering::Relaxed);
        if self.standstills.replace(standstills) != standstills {
            #[cfg(any(test, feature = "simulation"))]
            eprintln!("isobath: {}", self.describe());
        }
    }

    /// How long the worker may sleep before it looks again.
    pub(super) fn until_watch(&self) -> Option<Duration> {
        waits(&self.engine).next().map(|_| PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Urgency;
    use crate::{Options, Store};

    #[test]
    fn a_standstill_is_told_once_and_what_waits_then() {
        let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1)).unwrap();
        let runtime = store.runtime();
        let engine = runtime.engine().unwrap();
        let admitted = runtime.admit(Urgency::Ordinary).unwrap();
        let watchdog = Watchdog::default();
        let begin = Instant::now();
        let looks = |from: u64| {
            let looks = (from..from + 20).map(|seconds| begin + Duration::from_secs(seconds));
            looks
                .filter_map(|now| watchdog.look(engine, now))
                .collect::<Vec<_>>()
        };
        assert!(looks(0).is_empty(), "nothing waits");
        let closing = &engine.workers.admission.closing;
        closing.store(true, Ordering::SeqCst);
        assert_eq!(looks(20).len(), 1);
        assert!(looks(40).is_empty(), "it was told");
        let said = what_waits(engine);
        assert!(
            said.contains("accepted work that closing waits for"),
            "{said}"
        );
        closing.store(false, Ordering::SeqCst);
        drop(admitted);
        store.create_tree("t").unwrap();
        // The task has answered before it counts as ended.
        while engine.workers.admission.live.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        closing.store(true, Ordering::SeqCst);
        assert!(looks(60).is_empty(), "nothing waits any more");
        closing.store(false, Ordering::SeqCst);
        store.close().unwrap();
    }
}
