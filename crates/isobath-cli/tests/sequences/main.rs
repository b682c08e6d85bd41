//! Random sequences of everything that the command offers, and of the same by the API, each step in
//! a store opened again, against a model. `xtask` has the API's calls one beside another.
//!
//! `ISOBATH_SEQUENCES_SEED` is the first seed, `ISOBATH_SEQUENCES_MINUTES` how long new ones are
//! tried (0: that seed alone); `cargo xtask sequences` sets both. A sequence that fails is printed
//! as short as it becomes by leaving steps out. The steps follow from the seed; when processes
//! are killed depends on the machine, too.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

mod data;
mod model;
mod plan;
mod steps;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use plan::{By, Plan, Step};
use world::World;

/// Longest time between two steps: longer than a command may take.
const LONGEST_STEP: Duration = Duration::from_secs(240);
/// Longest time for making a sequence shorter.
const SHRINKING: Duration = Duration::from_secs(240);
/// Sequences side by side, each in a directory of its own; a sequence waits for processes and
/// drives most of the time.
const THREADS: usize = 2;
/// Times that a sequence is tried in which processes are killed: it does not fail each time.
const TRIES: usize = 4;

#[derive(Debug)]
struct Failure {
    /// The step that failed; steps before the first one are number 0.
    step: usize,
    wrong: String,
}

/// Takes all steps; how many processes were killed.
fn run(plan: &Plan) -> Result<u64, Failure> {
    let (sender, receiver) = channel();
    let owned = plan.clone();
    let work = move || {
        // Without a receiver the message is not needed any more.
        let say = |message| drop(sender.send(message));
        let mut world = match World::new(owned.clone()) {
            Ok(world) => world,
            Err(wrong) => return say(Err(wrong)),
        };
        for step in &owned.steps {
            say(Ok(None));
            if let Err(wrong) = world.step(step) {
                return say(Err(wrong));
            }
        }
        say(Ok(Some(world.killed)));
    };
    let thread = std::thread::spawn(work);
    let mut step = 0;
    loop {
        let wrong = match receiver.recv_timeout(LONGEST_STEP) {
            Ok(Ok(None)) => {
                step += 1;
                continue;
            }
            Ok(Ok(Some(killed))) => return Ok(killed),
            Ok(Err(wrong)) => wrong,
            Err(RecvTimeoutError::Timeout) => "it does not end".to_owned(),
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(()) => "the sequence ended early".to_owned(),
                Err(_) => "a panic; its message is above".to_owned(),
            },
        };
        return Err(Failure { step, wrong });
    }
}

/// The same, several times where it may end differently each time.
fn fails(plan: &Plan) -> Option<Failure> {
    let killed = plan
        .steps
        .iter()
        .any(|step| format!("{step:?}").contains("Killed"));
    (0..if killed { TRIES } else { 1 }).find_map(|_| run(plan).err())
}

/// Leaves out steps while the sequence still fails, larger parts first.
fn shrink(mut plan: Plan, mut failure: Failure) -> (Plan, Failure) {
    let began = Instant::now();
    plan.steps.truncate(failure.step.max(1));
    let mut part = plan.steps.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < plan.steps.len() {
            if began.elapsed() > SHRINKING || failure.wrong.contains("does not end") {
                return (plan, failure);
            }
            let mut shorter = plan.clone();
            shorter.steps.drain(at..(at + part).min(plan.steps.len()));
            match fails(&shorter) {
                Some(found) => {
                    shorter.steps.truncate(found.step.max(1));
                    (plan, failure) = (shorter, found);
                }
                None => at += part,
            }
        }
        part /= 2;
    }
    (plan, failure)
}

fn describe(seed: u64, plan: &Plan, failure: &Failure) -> String {
    let steps: Vec<String> = (1..)
        .zip(&plan.steps)
        .map(|(number, step)| {
            let mark = if number == failure.step { ">" } else { " " };
            format!("{mark} {number:2} {step:?}")
        })
        .collect();
    format!(
        "seed {seed} fails at step {}: {}\n{:?}, log {} bytes, apart: {}\n{}",
        failure.step,
        failure.wrong,
        plan.layout,
        plan.log_bytes,
        plan.separate_log,
        steps.join("\n")
    )
}

fn setting(name: &str) -> Option<f64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn sequences_leave_what_the_model_says() {
    let first = setting("ISOBATH_SEQUENCES_SEED");
    let minutes = setting("ISOBATH_SEQUENCES_MINUTES");
    let minutes = minutes.unwrap_or(if first.is_some() { 0.0 } else { 0.2 });
    let limit = Duration::from_secs_f64(minutes * 60.0);
    let began = Instant::now();
    let first = first.map_or(1, |seed| seed as u64);
    // A seed alone, or each thread its next one.
    let threads = if minutes == 0.0 { 1 } else { THREADS };
    let seeds = AtomicU64::new(first);
    let (steps, killed) = (AtomicUsize::new(0), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    let one_after_another = || {
        loop {
            let seed = seeds.fetch_add(1, Relaxed);
            let plan = Plan::draw(seed);
            match run(&plan) {
                Ok(of_these) => {
                    steps.fetch_add(plan.steps.len(), Relaxed);
                    killed.fetch_add(of_these, Relaxed);
                }
                Err(failure) => {
                    let (plan, failure) = shrink(plan, failure);
                    println!("{}\n", describe(seed, &plan, &failure));
                    failed.lock().unwrap().push(seed);
                }
            }
            if began.elapsed() >= limit || failed.lock().unwrap().len() >= 5 {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(one_after_another)));
    });
    println!(
        "seeds {first} to {}: {} steps, {} processes killed, {:.0} s",
        seeds.into_inner() - 1,
        steps.into_inner(),
        killed.into_inner(),
        began.elapsed().as_secs_f64()
    );
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
}

/// What the sequences can find.
#[test]
fn a_store_that_lost_a_record_is_noticed() {
    let plan = Plan::draw(1);
    let mut world = World::new(plan).unwrap();
    let (key, value) = (data::Key::Text(1), {
        let mut rng = fastrand::Rng::with_seed(1);
        data::Value::draw(world.plan.layout, &mut rng)
    });
    world.step(&Step::Put(By::Api, 0, key, value)).unwrap();
    world.model.apply(&[model::Effect::Put(
        "main".to_owned(),
        b"lost".to_vec(),
        b"1".to_vec(),
    )]);
    let wrong = world.step(&Step::Check).unwrap_err();
    assert!(
        wrong.contains("lost (4 bytes): 1 bytes, but it is absent"),
        "{wrong}"
    );
}
