//! Simulations that interrupt workers between two accesses to what they share.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Random, assert_sound, key, tiny, value};
use isobath::{Canary, Error, How, Simulation, Stuck, Switch, Switches, Volume, Who};
use isobath_io::{FaultDevice, FaultPlan};

/// What each of the clients does.
fn client(tree: &isobath::Tree, number: u64, seed: u64) -> Result<(), Error> {
    let mut random = Random::new(seed ^ number << 32);
    for _ in 0..60 {
        let at = key(random.below(40));
        match random.below(4) {
            0 => drop(tree.get(&at)?),
            1 => drop(tree.remove(&at)?),
            _ => tree.insert(&at, &value(random.bits(), random.below(2000) as usize + 1))?,
        }
    }
    Ok(())
}

/// Runs some clients; what it did, and the switches that were taken.
fn run(seed: u64, switches: Option<&Switches>) -> (u64, Vec<Switch>) {
    let switches = switches.cloned();
    let inside = switches.clone();
    let work = move || {
        if let Some(switches) = inside {
            switches.switch_on();
        }
        let plan = FaultPlan::new(seed).latency_us(0..=40);
        let volume = Volume::from_device(FaultDevice::new(0, plan));
        let options = tiny(3, 4).log_bytes(common::LOG);
        let simulation = Simulation::new(volume, &options, seed).unwrap();
        let tree = simulation.store().create_tree("t").unwrap();
        let clients: Vec<_> = (0..6)
            .map(|number| {
                let tree = tree.clone();
                simulation.spawn(number as usize, move || client(&tree, number, seed))
            })
            .collect();
        for client in clients {
            client.join().unwrap().unwrap();
        }
        client(&tree, 7, seed).unwrap();
        assert_sound(simulation.store(), None);
        let hash = simulation.trace_hash();
        simulation.close().unwrap();
        hash
    };
    let hash = std::thread::spawn(work).join().unwrap();
    (hash, switches.map_or_else(Vec::new, |s| s.taken()))
}

fn every_place(rate: f64) -> Switches {
    let max_steps = 30;
    Switches::new(How::EveryPlace { rate, max_steps })
}

#[test]
fn switches_repeat_by_seed_and_can_be_given() {
    let (hash, taken) = run(1, Some(&every_place(0.1)));
    assert!(taken.len() > 50, "only {} switches", taken.len());
    let workers = |w: &Switch| matches!(w.who, Who::Worker(_, Some(_)));
    assert!(taken.iter().any(workers), "no task was interrupted");
    let between = |w: &Switch| matches!(w.who, Who::Worker(_, None));
    assert!(taken.iter().any(between), "no worker was, between tasks");
    let outside = |w: &Switch| w.who == Who::Application;
    assert!(taken.iter().any(outside), "no caller outside tasks was");

    assert_eq!((hash, taken.clone()), run(1, Some(&every_place(0.1))));
    assert_ne!(hash, run(2, Some(&every_place(0.1))).0);
    assert_ne!(hash, run(1, None).0);
    let given = Switches::new(How::Given(taken.clone()));
    assert_eq!((hash, taken), run(1, Some(&given)));
}

#[test]
fn stores_pass_with_switches_of_every_kind() {
    for seed in 0..12 {
        let max_steps = [2, 30, 1000][seed as usize % 3];
        let how = match seed % 4 {
            0 => How::EveryPass { gap: 50, max_steps },
            1 => How::FewPlaces {
                one_in: 20,
                max_steps,
            },
            _ => How::EveryPlace {
                rate: 0.05,
                max_steps,
            },
        };
        let (_, taken) = run(seed, Some(&Switches::new(how)));
        assert!(!taken.is_empty(), "seed {seed} has no switches");
    }
}

/// Sends tasks to workers that send more; whether all of them ran.
fn messages(seed: u64, how: Option<How>, canary: Option<Canary>) -> Result<u64, Stuck> {
    let work = move || {
        if let Some(canary) = canary {
            canary.switch_on();
        }
        if let Some(how) = how {
            Switches::new(how).switch_on();
        }
        let options = tiny(3, 4).log_bytes(0);
        let volume = Volume::in_memory(0, None);
        let mut simulation = Simulation::new(volume, &options, seed).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for number in 0..60usize {
            let (ran, store) = (Arc::clone(&ran), simulation.store().clone());
            let _detached = simulation.spawn(number % 3, move || {
                let inner = Arc::clone(&ran);
                let _detached = store.spawn_on(number + 1, move || {
                    inner.fetch_add(1, Ordering::Relaxed);
                });
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }
        let steps = simulation.run_until(|| ran.load(Ordering::Relaxed) == 120, 20_000);
        if steps.is_err() {
            // Closing a store that lost a task would never end.
            std::mem::forget(simulation);
        }
        steps
    };
    std::thread::spawn(work).join().unwrap()
}

const OFTEN: How = How::EveryPlace {
    rate: 0.2,
    max_steps: 8,
};

#[test]
fn every_task_runs_however_workers_are_interrupted() {
    assert!((0..40).all(|seed| messages(seed, Some(OFTEN), None).is_ok()));
}

#[test]
fn a_lost_wakeup_is_found_by_switches_alone() {
    let late = Some(Canary::ClearInboxFlagLate);
    assert!((0..40).all(|seed| messages(seed, None, late).is_ok()));
    assert!((0..40).any(|seed| messages(seed, Some(OFTEN), late).is_err()));
}
