//! A search for settings: the same number of short trials for each engine, drawn at random from its
//! knobs.
//!
//! Random search covers the few knobs that matter better than a grid of equal cost. The first trial
//! runs what was asked for, so a search never ends below it by its own trials. Trials are short:
//! the winner may owe some of its lead to chance, which the measured runs that follow do not
//! repeat.

use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::LabError;
use crate::engine::{EngineConfig, EngineKind};

/// Draws for a setting that was not tried yet, before one is tried again.
const DRAWS_MAX: usize = 200;
/// Samples of a trial, and how far apart they are at least.
const SAMPLES: u32 = 20;
const SAMPLE_MIN: Duration = Duration::from_millis(20);

/// How settings are searched for.
#[derive(Debug, Clone, Copy)]
pub struct SearchPlan {
    /// Trials for each engine, at least one.
    pub trials: usize,
    /// How long each is measured; it runs half as long before, at most.
    pub duration: Duration,
    /// Seed of the draws.
    pub seed: u64,
}

/// A search's attempts and result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// Seed of the draws.
    pub seed: u64,
    /// Seconds that each trial measured.
    pub trial_s: f64,
    /// The trials, in their order.
    pub trials: Vec<Trial>,
    /// Number of the fastest trial, from 0.
    pub best: usize,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its settings; none means the requested ones.
    pub settings: Vec<(String, f64)>,
    /// Operations per second.
    pub operations_per_s: f64,
}

impl Trial {
    /// Its settings, for a person.
    #[must_use]
    pub fn text(&self) -> String {
        if self.settings.is_empty() {
            return "as asked".to_owned();
        }
        let settings = self.settings.iter();
        let settings: Vec<String> = settings
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        settings.join(", ")
    }
}

/// A setting that a search varies, and its values.
struct Knob {
    name: &'static str,
    values: Vec<f64>,
    set: fn(&mut EngineConfig, f64),
}

fn knobs(kind: EngineKind) -> Vec<Knob> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let per_core = |times: &[usize]| -> Vec<f64> {
        let all = times.iter().map(|times| (times * cores) as f64);
        all.collect()
    };
    let threads = Knob {
        name: "threads",
        values: per_core(&[1, 2, 4, 8, 16, 32, 64]),
        set: |config, value| config.threads = value as usize,
    };
    let jobs = Knob {
        name: "background_jobs",
        values: vec![1.0, 2.0, 4.0, 8.0],
        set: |config, value| config.tuning.background_jobs = Some(value as usize),
    };
    let write_share = Knob {
        name: "write_share",
        values: vec![0.05, 0.1, 0.25, 0.5],
        set: |config, value| config.tuning.write_share = Some(value),
    };
    match kind {
        EngineKind::Isobath => vec![
            Knob {
                name: "workers",
                values: (1..=cores).map(|workers| workers as f64).collect(),
                set: |config, value| config.workers = Some(value as usize),
            },
            Knob {
                name: "tasks_per_worker",
                values: vec![4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
                set: |config, value| config.tasks_per_worker = value as usize,
            },
            Knob {
                name: "depth_per_worker",
                values: vec![16.0, 32.0, 64.0, 128.0],
                set: |config, value| config.depth_per_worker = value as u32,
            },
        ],
        EngineKind::RocksDb | EngineKind::WiredTiger | EngineKind::Fjall => {
            vec![threads, jobs, write_share]
        }
        EngineKind::Lmdb | EngineKind::Redb | EngineKind::Null | EngineKind::Drive => vec![threads],
    }
}

/// Tries settings of the plan's engine; `measure` answers operations per second of a trial.
///
/// # Errors
/// Those of `measure`; [`LabError::Request`] for a search without a trial, or of an open loop,
/// whose rate is given.
pub fn search(
    plan: &Plan,
    wanted: &SearchPlan,
    measure: &mut dyn FnMut(&Plan) -> Result<f64, LabError>,
) -> Result<Search, LabError> {
    if wanted.trials == 0 || plan.rate_per_s.is_some() {
        return Err(LabError::Request(
            "a search takes one trial at least, and clients that offer no fixed rate".to_owned(),
        ));
    }
    let knobs = knobs(plan.engine.kind);
    let mut rng = Rng::with_seed(wanted.seed);
    let mut trials: Vec<Trial> = Vec::new();
    for _ in 0..wanted.trials {
        let settings = match trials.is_empty() {
            true => Vec::new(),
            false => draw(&knobs, &mut rng, &trials),
        };
        let mut short = trial_of(plan, wanted.duration);
        apply(&settings, &mut short.engine);
        trials.push(Trial {
            operations_per_s: measure(&short)?,
            settings,
        });
    }
    let rates = trials
        .iter()
        .map(|trial| trial.operations_per_s)
        .enumerate();
    // Of equal ones the first, so that the requested setting stays if nothing is better.
    let best = rates.fold((0, f64::NEG_INFINITY), |best, this| {
        if this.1 > best.1 { this } else { best }
    });
    Ok(Search {
        seed: wanted.seed,
        trial_s: wanted.duration.as_secs_f64(),
        trials,
        best: best.0,
    })
}

impl Search {
    /// Gives a plan the settings of the fastest trial.
    pub fn tune(&self, plan: &mut Plan) {
        if let Some(best) = self.trials.get(self.best) {
            apply(&best.settings, &mut plan.engine);
        }
    }
}

fn draw(knobs: &[Knob], rng: &mut Rng, tried: &[Trial]) -> Vec<(String, f64)> {
    let mut drawn = Vec::new();
    for _ in 0..DRAWS_MAX {
        let values = knobs.iter().map(|knob| {
            let value = knob.values[rng.usize(..knob.values.len())];
            (knob.name.to_owned(), value)
        });
        drawn = values.collect();
        if !tried.iter().any(|trial| trial.settings == drawn) {
            break;
        }
    }
    drawn
}

fn apply(settings: &[(String, f64)], config: &mut EngineConfig) {
    for knob in knobs(config.kind) {
        if let Some((_, value)) = settings.iter().find(|(name, _)| name == knob.name) {
            (knob.set)(config, *value);
        }
    }
}

/// The same load and workload, measured briefly.
fn trial_of(plan: &Plan, duration: Duration) -> Plan {
    let mut short = plan.clone();
    short.duration = duration;
    short.warm_up = plan.warm_up.min(duration / 2);
    short.sample_every = (duration / SAMPLES).max(SAMPLE_MIN);
    (short.drive_depth, short.until_steady, short.components) = (None, false, false);
    short.engine.space.trace = None;
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Suite, SuiteChoice};

    fn plan(kind: EngineKind) -> Plan {
        let choice = SuiteChoice {
            engines: Some(vec![EngineKind::Isobath]),
            rows: vec!["update-128-out-log".to_owned()],
            repeats: 1,
            directory: "place".into(),
            measures_drive: true,
            seed: 1,
            ..SuiteChoice::default()
        };
        let mut cases = Suite::first().unwrap().cases(&choice).unwrap();
        let mut plan = cases.remove(0).plan;
        plan.engine.kind = kind;
        plan
    }

    const WANTED: SearchPlan = SearchPlan {
        trials: 12,
        duration: Duration::from_millis(500),
        seed: 7,
    };

    /// Throughput that one setting of each engine decides.
    fn rate(plan: &Plan) -> f64 {
        let engine = &plan.engine;
        match engine.kind {
            EngineKind::Isobath => 1000.0 - engine.tasks_per_worker as f64,
            _ => 1000.0 - engine.threads as f64 + engine.tuning.write_share.unwrap_or(0.0),
        }
    }

    #[test]
    fn every_engine_has_as_many_trials_and_the_fastest_wins() {
        let kinds = [
            EngineKind::Isobath,
            EngineKind::RocksDb,
            EngineKind::WiredTiger,
            EngineKind::Lmdb,
            EngineKind::Redb,
            EngineKind::Fjall,
        ];
        for kind in kinds {
            let asked = plan(kind);
            let mut seen = Vec::new();
            let mut measure = |plan: &Plan| {
                assert_eq!(plan.records, asked.records);
                assert_eq!(plan.engine.pool_bytes, asked.engine.pool_bytes);
                assert!(plan.drive_depth.is_none() && plan.duration == WANTED.duration);
                seen.push(format!("{:?}", plan.engine));
                Ok(rate(plan))
            };
            let found = search(&asked, &WANTED, &mut measure).unwrap();
            assert_eq!((found.trials.len(), seen.len()), (12, 12));
            assert!(found.trials[0].settings.is_empty());
            assert_eq!(seen[0], format!("{:?}", asked.engine));
            let fastest = found.trials.iter().map(|trial| trial.operations_per_s);
            let fastest = fastest.fold(0.0, f64::max);
            let mut tuned = asked.clone();
            found.tune(&mut tuned);
            assert!((rate(&tuned) - fastest).abs() < 1e-9, "{kind:?}");
            assert!(fastest > rate(&asked), "{kind:?}");
            // The same seed draws the same trials; settings do not repeat while there are others.
            assert_eq!(
                search(&asked, &WANTED, &mut |p| Ok(rate(p))).unwrap(),
                found
            );
            if kind != EngineKind::Lmdb && kind != EngineKind::Redb {
                seen.sort();
                seen.dedup();
                assert!(seen.len() >= 11, "{kind:?}: {seen:?}");
            }
            let text = serde_json::to_string(&found).unwrap();
            assert_eq!(serde_json::from_str::<Search>(&text).unwrap(), found);
        }
    }

    #[test]
    fn what_was_asked_for_stays_where_nothing_is_better() {
        let asked = plan(EngineKind::RocksDb);
        let found = search(&asked, &WANTED, &mut |_| Ok(5.0)).unwrap();
        assert_eq!(found.best, 0);
        assert_eq!(found.trials[0].text(), "as asked");
        assert!(found.trials[1].text().contains("threads "));
        let mut tuned = asked.clone();
        found.tune(&mut tuned);
        assert_eq!(format!("{tuned:?}"), format!("{asked:?}"));
        let none = SearchPlan {
            trials: 0,
            ..WANTED
        };
        assert!(search(&asked, &none, &mut |_| Ok(1.0)).is_err());
    }
}
