//! The controllers on simulated machines: no clock, no threads.

use super::controller::{Bounds, Controller, Kind, Sample};
use super::queueing::{Saturation, erlang_c, response_seconds};

const PROCESSORS: u32 = 4;
const PDA_MAX: u32 = 64;
const SAMPLES: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    /// Every access reaches the device; computing is cheap.
    Cold,
    /// Computing takes longer than the device.
    Compute,
    /// Memory holds few objects; more of them make the machine thrash.
    Memory,
}

/// A machine: a device whose throughput has its peak at a number of parallel accesses, and a load.
#[derive(Debug, Clone, Copy)]
struct Machine {
    device: Saturation,
    load: Load,
}

impl Machine {
    /// A device that is best at `pda` accesses of each of [`PROCESSORS`] threads.
    fn new(pda: u32, load: Load) -> Machine {
        let peak = f64::from(pda * PROCESSORS);
        let sigma = 0.02;
        let device = Saturation {
            lambda: 2000.0,
            sigma,
            kappa: (1.0 - sigma) / (peak * peak),
        };
        Machine { device, load }
    }

    /// Pages per second and used memory.
    fn run(&self, pc: u32, pda: u32) -> (f64, f64) {
        let accesses = f64::from(pc * pda);
        let data = self.device.at(accesses);
        match self.load {
            Load::Cold => (data.min(f64::from(pc) * self.compute_rate()), 0.3),
            Load::Compute => (data.min(f64::from(pc) * self.compute_rate()), 0.3),
            Load::Memory => {
                let memory = 0.4 + 0.02 * accesses;
                let rate = if memory > 0.88 { data * 0.05 } else { data };
                (
                    rate.min(f64::from(pc) * self.compute_rate()),
                    memory.min(1.0),
                )
            }
        }
    }

    /// Pages per second that one compute thread works on.
    fn compute_rate(&self) -> f64 {
        let peak = ((1.0 - self.device.sigma) / self.device.kappa).sqrt();
        let share = if self.load == Load::Compute { 0.3 } else { 4.0 };
        self.device.at(peak) * share / f64::from(PROCESSORS)
    }

    fn sample(&self, pc: u32, pda: u32, noise: f64) -> Sample {
        let (rate, memory) = self.run(pc, pda);
        let rate = rate * noise;
        let seconds = 0.05;
        let requests = (rate * seconds / 8.0).round().max(1.0) as u64;
        let cpu_seconds = rate * seconds / self.compute_rate();
        Sample {
            seconds,
            pc,
            pda,
            requests,
            bytes: requests * 7 * 4096,
            items: 0,
            cpu_seconds,
            cpu: (cpu_seconds / seconds / f64::from(PROCESSORS)).min(1.0),
            memory,
        }
    }

    /// The most that constants reach which keep to the memory limit.
    fn best_within_limit(&self) -> f64 {
        constants()
            .map(|(pc, pda)| self.run(pc, pda))
            .filter(|(_, memory)| *memory <= bounds().memory_limit)
            .fold(0.0, |best, (rate, _)| f64::max(best, rate))
    }

    /// The most that constants reach.
    fn best(&self) -> f64 {
        constants()
            .map(|(pc, pda)| self.run(pc, pda).0)
            .fold(0.0, f64::max)
    }
}

fn constants() -> impl Iterator<Item = (u32, u32)> {
    (1..=PROCESSORS).flat_map(|pc| (1..=PDA_MAX).map(move |pda| (pc, pda)))
}

fn bounds() -> Bounds {
    Bounds {
        pc_max: PROCESSORS,
        pda_max: PDA_MAX,
        processors: PROCESSORS,
        cpu_limit: 0.85,
        memory_limit: 0.85,
        pc: None,
        pda: None,
    }
}

fn machines() -> Vec<Machine> {
    let mut machines = Vec::new();
    for pda in [2, 5, 32] {
        for load in [Load::Cold, Load::Compute, Load::Memory] {
            machines.push(Machine::new(pda, load));
        }
    }
    machines
}

/// Noise of ±4%, the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        0.96 + 0.08 * ((self.0 >> 33) as f64 / f64::from(1u32 << 31))
    }
}

/// Runs a controller; its share of the best constants' throughput, over all samples and over the
/// last quarter.
fn run(controller: &mut Controller, machine: &Machine, noise: &mut Noise) -> (f64, f64) {
    let mut rates = Vec::new();
    for _ in 0..SAMPLES {
        let decision = controller.enter();
        rates.push(machine.run(decision.pc, decision.pda).0 / machine.best());
        let sample = machine.sample(decision.pc, decision.pda, noise.next());
        let decision = controller.step(&sample);
        assert!((1..=PROCESSORS).contains(&decision.pc), "{decision:?}");
        assert!((1..=PDA_MAX).contains(&decision.pda), "{decision:?}");
    }
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    (mean(&rates), mean(&rates[SAMPLES * 3 / 4..]))
}

/// The best that the worst case of any pair of constants is.
fn best_constant() -> f64 {
    let machines = machines();
    let worst = |(pc, pda)| {
        machines
            .iter()
            .map(|machine| machine.run(pc, pda).0 / machine.best())
            .fold(1.0, f64::min)
    };
    constants().map(worst).fold(0.0, f64::max)
}

#[test]
fn simulated_devices_are_best_where_they_are_said_to_be() {
    for pda in [2, 5, 32] {
        let machine = Machine::new(pda, Load::Cold);
        let best = (1..=PDA_MAX).max_by(|a, b| {
            let rate = |pda| machine.run(PROCESSORS, pda).0;
            rate(*a).total_cmp(&rate(*b))
        });
        assert_eq!(best, Some(pda));
    }
}

#[test]
fn controllers_beat_every_constants_worst_case() {
    let constant = best_constant();
    for kind in [Kind::Ins, Kind::Mod] {
        for machine in machines() {
            for seed in 1..=5 {
                let mut controller = Controller::new(kind, bounds());
                let (all, end) = run(&mut controller, &machine, &mut Noise(seed));
                let what = format!("{kind:?} {machine:?} seed {seed}: {all:.3} {end:.3}");
                assert!(all > constant, "{what}, constants {constant:.3}");
                let possible = machine.best_within_limit() / machine.best();
                assert!(end > 0.9 * possible, "{what}, possible {possible:.3}");
            }
        }
    }
}

/// Programs that run for two seconds: what the search leaves them of the best constant's
/// throughput.
#[test]
fn a_search_costs_little() {
    for (kind, load, least) in [
        (Kind::Ins, Load::Cold, 0.9),
        (Kind::Ins, Load::Compute, 0.8),
        (Kind::Mod, Load::Cold, 0.88),
        (Kind::Mod, Load::Compute, 0.95),
    ] {
        for pda in [2, 5, 32] {
            let machine = Machine::new(pda, load);
            for seed in 1..=20 {
                let mut controller = Controller::new(kind, bounds());
                let mut noise = Noise(seed);
                let mut sum = 0.0;
                for _ in 0..40 {
                    let decision = controller.enter();
                    sum += machine.run(decision.pc, decision.pda).0 / machine.best();
                    controller.step(&machine.sample(decision.pc, decision.pda, noise.next()));
                }
                let share = sum / 40.0;
                let what = format!("{kind:?} {load:?} best PDA {pda} seed {seed}: {share:.3}");
                assert!(share > least, "{what}");
            }
        }
    }
}

#[test]
fn controllers_follow_a_load_that_changes() {
    for kind in [Kind::Ins, Kind::Mod] {
        let mut controller = Controller::new(kind, bounds());
        let mut noise = Noise(9);
        for (pda, load) in [
            (32, Load::Cold),
            (2, Load::Cold),
            (5, Load::Compute),
            (32, Load::Memory),
            (5, Load::Cold),
        ] {
            let machine = Machine::new(pda, load);
            for _ in 0..3 {
                run(&mut controller, &machine, &mut noise);
            }
            let last = controller.enter();
            let share = machine.run(last.pc, last.pda).0 / machine.best();
            assert!(share > 0.85, "{kind:?} {machine:?} {last:?} {share}");
        }
    }
}

/// Threads that wait for one access after another: more of them give more although the processors
/// and the device have time.
#[test]
fn the_model_tries_more_threads_than_it_wants_and_keeps_them_where_they_gain() {
    for (gain, kept) in [(1.35, true), (1.0, false)] {
        let bounds = Bounds {
            pc_max: 4,
            processors: 2,
            ..bounds()
        };
        let mut controller = Controller::new(Kind::Mod, bounds);
        let mut noise = Noise(5);
        let (mut pda_held, mut reasons) = (0, Vec::new());
        for _ in 0..50 {
            let decision = controller.enter();
            let most = if decision.pc == 4 { gain } else { 1.0 };
            let accesses = f64::from(decision.pc * decision.pda);
            let rate = 28_000.0 * most * (accesses / 16.0).min(1.0) * noise.next();
            let sample = Sample {
                seconds: 0.05,
                pc: decision.pc,
                pda: decision.pda,
                requests: (rate * 0.05) as u64,
                bytes: (rate * 0.05) as u64 * 4096,
                items: 0,
                cpu_seconds: 0.06,
                cpu: 0.6,
                memory: 0.1,
            };
            let decision = controller.step(&sample);
            reasons.push(decision.reason);
            pda_held = decision.pda;
        }
        let end = controller.enter();
        assert_eq!(end.pc, if kept { 4 } else { 2 }, "{reasons:?}");
        assert!(pda_held * end.pc >= 12, "{end:?}");
        if !kept {
            // The held search goes on: nothing is measured again.
            let back = "as many compute threads as before were better";
            let at = reasons.iter().position(|reason| *reason == back).unwrap();
            assert_eq!(reasons[at + 1], "holds", "{reasons:?}");
            assert!(!reasons[at + 1..].contains(&"processors have time for more compute threads"));
        }
    }
}

#[test]
fn the_model_as_printed_has_no_interior_optimum() {
    let mut controller = Controller::new(Kind::ModPrinted, bounds());
    let machine = Machine::new(2, Load::Cold);
    let decision = controller.step(&machine.sample(PROCESSORS, 1, 1.0));
    // Each access more makes waiting less likely and costs nothing, until the sum does not change
    // any more.
    assert!(decision.pda >= 8 * 2, "{decision:?}");
}

#[test]
fn fixed_numbers_stay() {
    let mut fixed = bounds();
    (fixed.pc, fixed.pda) = (Some(3), Some(7));
    for kind in [Kind::Ins, Kind::Mod, Kind::ModPrinted] {
        let mut controller = Controller::new(kind, fixed);
        for machine in machines() {
            let decision = controller.step(&machine.sample(3, 7, 1.0));
            assert_eq!((decision.pc, decision.pda), (3, 7));
        }
    }
}

/// A region that only computes: as many threads as there are processors, and no data accesses to
/// think of.
#[test]
fn computing_alone_gets_all_processors() {
    let mut controller = Controller::new(Kind::Ins, bounds());
    assert_eq!(controller.enter().pc, 2);
    for _ in 0..20 {
        let pc = controller.enter().pc;
        controller.step(&Sample {
            seconds: 0.1,
            pc,
            pda: 1,
            items: u64::from(pc) * 10,
            cpu: f64::from(pc) / f64::from(PROCESSORS),
            ..Sample::default()
        });
    }
    assert_eq!(controller.enter().pc, PROCESSORS);
}

/// More compute threads that make things slower are taken back.
#[test]
fn compute_threads_that_slow_the_rest_down_are_taken_back() {
    let mut controller = Controller::new(Kind::Ins, bounds());
    for _ in 0..20 {
        let pc = controller.enter().pc;
        controller.step(&Sample {
            seconds: 0.1,
            pc,
            pda: 1,
            items: if pc > 2 { 10 } else { 20 },
            cpu: 0.5,
            ..Sample::default()
        });
    }
    assert_eq!(controller.enter().pc, 2);
}

/// More compute threads that were taken back are tried again, for what they were slower by may have
/// ended unnoticed.
#[test]
fn compute_threads_that_were_taken_back_are_tried_again() {
    let mut controller = Controller::new(Kind::Ins, bounds());
    let mut run = |slows_down: bool, samples: usize| {
        for _ in 0..samples {
            let pc = controller.enter().pc;
            controller.step(&Sample {
                seconds: 0.1,
                pc,
                pda: 1,
                // Two threads do as much in both cases.
                items: match (pc > 2, slows_down) {
                    (false, _) => 20,
                    (true, true) => 10,
                    (true, false) => 40,
                },
                cpu: 0.5,
                ..Sample::default()
            });
        }
        controller.enter().pc
    };
    assert_eq!(run(true, 20), 2);
    assert_eq!(run(false, 20), 2);
    assert_eq!(run(false, 1000), PROCESSORS);
}

/// Full memory takes accesses away, down to one, at once.
#[test]
fn full_memory_takes_accesses_away() {
    for kind in [Kind::Ins, Kind::Mod] {
        let mut controller = Controller::new(kind, bounds());
        let machine = Machine::new(32, Load::Cold);
        let mut noise = Noise(3);
        run(&mut controller, &machine, &mut noise);
        let mut before = controller.enter();
        for _ in 0..30 {
            let mut sample = machine.sample(before.pc, before.pda, 1.0);
            sample.memory = 0.9;
            let decision = controller.step(&sample);
            assert!(decision.pda < before.pda || decision.pda == 1);
            before = decision;
        }
        assert_eq!(before.pda, 1);
    }
}

#[test]
fn erlangs_formula_has_its_known_values() {
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
    near(erlang_c(1, 0.5), 0.5);
    near(erlang_c(2, 1.0), 1.0 / 3.0);
    // c = 3, load 2: (8/6 · 3) / (1 + 2 + 2 + 4) = 4/9.
    near(erlang_c(3, 2.0), 4.0 / 9.0);
    near(erlang_c(4, 4.0), 1.0);
    // One server: 1 / (μ − λ).
    near(response_seconds(1, 10.0, 6.0).unwrap(), 0.25);
    assert_eq!(response_seconds(1, 10.0, 10.0), None);
    assert!(erlang_c(4096, 4000.0).is_finite());
}

#[test]
fn a_saturation_curve_is_found_again() {
    for curve in [
        Saturation {
            lambda: 900.0,
            sigma: 0.05,
            kappa: 0.001,
        },
        Saturation {
            lambda: 50.0,
            sigma: 0.0,
            kappa: 0.02,
        },
        Saturation {
            lambda: 7.0,
            sigma: 0.3,
            kappa: 0.0,
        },
        Saturation {
            lambda: 3.0,
            sigma: 0.0,
            kappa: 0.0,
        },
    ] {
        let points: Vec<(f64, f64)> = [1.0, 3.0, 8.0, 40.0]
            .iter()
            .map(|c| (*c, curve.at(*c)))
            .collect();
        let found = Saturation::fit(&points).unwrap();
        for c in [2.0, 20.0, 60.0] {
            let error = found.at(c) / curve.at(c) - 1.0;
            assert!(error.abs() < 1e-3, "{curve:?} {found:?}");
        }
    }
    assert_eq!(Saturation::fit(&[(1.0, 5.0)]), None);
}
