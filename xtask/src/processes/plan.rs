//! How a process works on a store: drawn from a seed, or fixed by `--mode`.

use clap::ValueEnum;
use isobath::{Backend, Durability, Options, PolicyKind, Small};
use isobath_io::Op;
use serde::{Deserialize, Serialize};

use super::Problem;
use crate::clients::plan::{Faults, Scenario};
use crate::random::Random;

/// A way to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// io_uring
    Uring,
    /// Linux native AIO
    Aio,
    /// Blocking pread and pwrite
    Pread,
}

impl Way {
    pub(super) fn backend(self) -> Backend {
        match self {
            Way::Uring => Backend::IoUring {
                iopoll: false,
                sqpoll: false,
            },
            Way::Aio => Backend::Libaio,
            Way::Pread => Backend::Pread,
        }
    }
}

/// The place of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogPlace {
    /// On the store's own volume
    Volume,
    /// In a file of its own
    Separate,
}

/// When single operations are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Wait {
    Synced,
    Buffered,
    None,
}

/// How a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    /// The process closes the store.
    Close,
    /// It is killed while it works,
    Kill,
    /// or while it opens the store,
    KillOpening,
    /// or while it closes it.
    KillClosing,
}

/// The faults of a process's system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Calls {
    /// All do what they should
    #[value(skip)]
    Sound,
    /// Interrupted, EAGAIN, or short: no operation may fail
    Soft,
    /// One write or flush fails: nothing that was acknowledged is lost
    Error,
    /// Unflushed writes are lost, and each descriptor reports it once
    Lost,
}

/// The name of a word of a plan.
pub(super) fn name(of: &impl Serialize) -> String {
    let value = serde_json::to_value(of).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// The plan of a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Bytes of data, about.
    pub(super) size: u64,
    // The next ones are the store's, for all its rounds.
    pub(super) files: u64,
    pub(super) log: LogPlace,
    /// Whether the volume has hardly more space than the data needs.
    pub(super) full: bool,
    /// Whether it begins with a small log, which becomes longer.
    pub(super) small: bool,
    pub(super) threads: u64,
    /// Whether transactions spill, and so become runs.
    pub(super) spills: bool,
    pub(super) backend: Way,
    pub(super) workers: u64,
    pub(super) pool_mib: u64,
    /// Cores that the process may run on; 0 for all.
    pub(super) cores: u64,
    pub(super) durability: Wait,
    pub(super) end: End,
    pub(super) calls: Calls,
    /// How segments to clean are chosen.
    pub(super) policy: String,
    /// Operations after which the round ends, about.
    pub(super) operations: u64,
}

/// Bytes of a segment and of the log.
pub(super) const SEGMENT: u32 = 256 << 10;
pub(super) const LOG: u64 = 4 << 20;

impl Plan {
    pub(super) fn draw(seed: u64, size: u64, operations: u64, random: &mut Random) -> Plan {
        let ways = [Way::Uring, Way::Aio, Way::Pread];
        let ends = [
            End::Close,
            End::Close,
            End::Kill,
            End::Kill,
            End::KillOpening,
            End::KillClosing,
        ];
        Plan {
            seed,
            size,
            files: random.one_of(&[1, 1, 2, 3]),
            log: random.one_of(&[LogPlace::Volume, LogPlace::Separate]),
            full: random.chance(30),
            small: random.chance(30),
            threads: random.one_of(&[1, 2, 4, 8, 16, 16]),
            spills: random.chance(15),
            backend: random.one_of(&ways),
            workers: random.one_of(&[1, 2, 2, 4]),
            pool_mib: random.one_of(&[4, 4, 16]),
            cores: random.one_of(&[0, 2, 1]),
            durability: random.one_of(&[Wait::Synced, Wait::Buffered, Wait::None]),
            end: random.one_of(&ends),
            calls: Calls::Sound,
            policy: random
                .one_of(&["life-table", "life-table", "mdc", "multi-log"])
                .to_owned(),
            operations: operations / 2 + random.below(operations.max(1)),
        }
    }

    /// As `self`, on a store that was made for `first`.
    pub(super) fn on_store_of(self, first: &Plan) -> Plan {
        Plan {
            files: first.files,
            log: first.log,
            full: first.full,
            small: first.small,
            threads: first.threads,
            ..self
        }
    }

    /// The same with fields set from `name=value,name=value`.
    pub(super) fn fixed(self, text: &str) -> Result<Plan, Problem> {
        let mut fields = serde_json::to_value(&self).map_err(|error| error.to_string())?;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let word = || serde_json::Value::from(value);
            fields[name] = serde_json::from_str(value).unwrap_or_else(|_| word());
        }
        let fixed: Result<Plan, _> = serde_json::from_value(fields);
        let mut fixed = fixed.map_err(|error| format!("--mode: {error}; a mode is {self}"))?;
        if !(1..=64).contains(&fixed.threads) || !(1..=16).contains(&fixed.files) {
            return Err("--mode: threads are 1 to 64, files 1 to 16".to_owned());
        }
        fixed.policy()?;
        // The log of a store with a limit, or a log of its own, does not.
        fixed.small &= !fixed.full && fixed.log == LogPlace::Volume;
        Ok(fixed)
    }

    fn policy(&self) -> Result<PolicyKind, Problem> {
        let policy: Option<PolicyKind> = self.policy.parse().ok();
        policy
            .filter(|policy| !policy.needs_rates())
            .ok_or_else(|| format!("--mode: no policy {}", self.policy))
    }

    /// How the store is opened.
    pub(super) fn options(&self) -> Result<Options, Problem> {
        Ok(Options::new()
            .pool_bytes(self.pool_mib << 20)
            .workers(self.workers as usize)
            .tasks_per_worker(16)
            .durability(self.durability())
            .backend(self.backend.backend())
            .cleaning_policy(self.policy()?))
    }

    fn durability(&self) -> Durability {
        match self.durability {
            Wait::Synced => Durability::Synced,
            Wait::Buffered => Durability::Buffered { window_ms: 5 },
            Wait::None => Durability::None,
        }
    }

    /// Whether the process may say that writing fails, and end.
    pub(super) fn may_end(&self) -> bool {
        matches!(self.calls, Calls::Error | Calls::Lost)
    }

    /// What clients do.
    pub(super) fn scenario(&self) -> Scenario {
        let mut scenario = Scenario::draw(self.seed, &[]);
        scenario.actors = self.threads;
        scenario.trees = 2;
        scenario.own_keys = (self.size / 1000 / self.threads).max(8);
        (scenario.shared_keys, scenario.counters) = (24, 24);
        scenario.operations = 2 * self.operations / self.threads;
        scenario.transactions = 40;
        scenario.large_values = true;
        scenario.durability = self.durability();
        scenario.log = true;
        scenario.faults = Faults {
            power: false,
            io: self.may_end().then_some((Op::Write, 0)),
            corruption: None,
            slow: false,
            full: self.full,
        };
        scenario.more.passing = (self.threads as usize).min(3);
        scenario.more.loads = 15;
        scenario.more.held_snapshots = 2;
        scenario.more.visits = 10;
        scenario.more.deletes = true;
        scenario.more.calls = 20;
        scenario.more.small = Small {
            words_per_page: None,
            checkpoint_bytes: self.small.then_some(1 << 20),
            spill_bytes: self.spills.then_some(2000),
            overlay_bytes: None,
        };
        scenario
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields = serde_json::to_value(self).unwrap_or_default();
        let fields = fields.as_object().into_iter().flatten();
        let words = fields.map(|(name, value)| match value.as_str() {
            Some(word) => format!("{name}={word}"),
            None => format!("{name}={value}"),
        });
        out.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_is_printed_can_be_fixed() {
        let draw = |seed| Plan::draw(seed, 1 << 20, 100, &mut Random::new(seed)).fixed("");
        for seed in 0..50 {
            let plan = draw(seed).unwrap();
            let other = draw(seed + 1).unwrap().fixed(&plan.to_string()).unwrap();
            assert_eq!(plan.to_string(), other.to_string());
        }
        for wrong in [
            "threads=0",
            "threads=65",
            "end=never",
            "colour=red",
            "policy=mdc-opt",
            "x",
        ] {
            assert!(draw(1).unwrap().fixed(wrong).is_err(), "{wrong}");
        }
    }
}
