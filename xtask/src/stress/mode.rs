//! How a round runs: drawn from its seed, or fixed by `--mode`.

use std::fmt;

use clap::ValueEnum;
use isobath::{Durability, Options, PolicyKind, Small};

use crate::crash::{LogPlace, Problem, Way};
use crate::random::Random;

/// Cores that a worker may run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Cores {
    All,
    Two,
    One,
}

/// When single operations are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Wait {
    Synced,
    Buffered,
    None,
}

impl Wait {
    pub(super) fn durability(self) -> Durability {
        match self {
            Wait::Synced => Durability::Synced,
            Wait::Buffered => Durability::Buffered { window_ms: 5 },
            Wait::None => Durability::None,
        }
    }
}

/// How a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum End {
    /// The worker closes the store.
    Close,
    /// It is killed while it works,
    Kill,
    /// or while it opens the store,
    KillOpening,
    /// or while it closes it.
    KillClosing,
}

/// The mode of a round. The first four fields are the store's, for all its rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mode {
    pub(super) files: u64,
    pub(super) log: LogPlace,
    /// Whether the volume has hardly more space than the data needs.
    pub(super) full: bool,
    /// Whether it begins with small segments and a small log, which becomes longer.
    pub(super) small: bool,
    /// Whether transactions spill, and so rewrite their trees.
    pub(super) spills: bool,
    pub(super) backend: Way,
    pub(super) threads: u64,
    pub(super) workers: u64,
    pub(super) pool_mib: u64,
    pub(super) cores: Cores,
    pub(super) durability: Wait,
    pub(super) end: End,
    /// How segments to clean are chosen.
    pub(super) policy: PolicyKind,
}

impl Mode {
    pub(super) fn draw(random: &mut Random) -> Mode {
        let ways = [Way::Uring, Way::Aio, Way::Pread];
        let ends = [
            End::Close,
            End::Close,
            End::Kill,
            End::Kill,
            End::KillOpening,
            End::KillClosing,
        ];
        let mut mode = Mode {
            files: random.one_of(&[1, 1, 2, 3]),
            log: random.one_of(&[LogPlace::Volume, LogPlace::Separate]),
            full: random.chance(30),
            small: random.chance(30),
            spills: random.chance(15),
            backend: random.one_of(&ways),
            threads: random.one_of(&[1, 2, 4, 8, 16, 16]),
            workers: random.one_of(&[1, 2, 2, 4]),
            pool_mib: random.one_of(&[4, 4, 16]),
            cores: random.one_of(&[Cores::All, Cores::Two, Cores::One]),
            durability: random.one_of(&[Wait::Synced, Wait::Buffered, Wait::None]),
            end: random.one_of(&ends),
            policy: random.one_of(&[
                PolicyKind::LifeTable,
                PolicyKind::LifeTable,
                PolicyKind::Mdc,
                PolicyKind::MultiLog,
            ]),
        };
        mode.may_be_small();
        mode
    }

    /// A store with a limit, or with a log of its own, begins with large segments.
    fn may_be_small(&mut self) {
        self.small &= !self.full && self.log == LogPlace::Volume;
    }

    /// As `self`, on a store that was made for `first`.
    pub(super) fn on_store_of(mut self, first: &Mode) -> Mode {
        (self.files, self.log, self.full) = (first.files, first.log, first.full);
        self.small = first.small;
        self
    }

    /// Sets fields from `name=value,name=value`.
    pub(super) fn fix(&mut self, text: &str) -> Result<(), Problem> {
        for part in text.split(',').filter(|part| !part.is_empty()) {
            self.set(part)
                .ok_or_else(|| format!("--mode: {part:?}; a mode is for example {self}"))?;
        }
        self.may_be_small();
        Ok(())
    }

    fn set(&mut self, part: &str) -> Option<()> {
        fn of<T: ValueEnum>(value: &str) -> Option<T> {
            T::from_str(value, false).ok()
        }
        let count = |value: &str, most: u64| {
            let number = value.parse().ok()?;
            (1..=most).contains(&number).then_some(number)
        };
        let (name, value) = part.split_once('=')?;
        match name {
            "files" => self.files = count(value, 16)?,
            "log" => self.log = of(value)?,
            "full" => self.full = value.parse().ok()?,
            "small" => self.small = value.parse().ok()?,
            "spills" => self.spills = value.parse().ok()?,
            "backend" => self.backend = of(value)?,
            "threads" => self.threads = count(value, super::world::OWNERS)?,
            "workers" => self.workers = count(value, 64)?,
            "pool" => self.pool_mib = count(value, 1 << 20)?,
            "cores" => self.cores = of(value)?,
            "durability" => self.durability = of(value)?,
            "end" => self.end = of(value)?,
            "policy" => {
                self.policy = value
                    .parse()
                    .ok()
                    .filter(|p: &PolicyKind| !p.needs_rates())?
            }
            _ => return None,
        }
        Some(())
    }

    /// How the store is opened.
    pub(super) fn options(&self) -> Options {
        Options::new()
            .pool_bytes(self.pool_mib << 20)
            .workers(self.workers as usize)
            .tasks_per_worker(if self.workers > 2 { 8 } else { 16 })
            .durability(self.durability.durability())
            .backend(self.backend.backend())
            .cleaning_policy(self.policy)
    }

    /// The sizes that the stores of this thread have.
    pub(super) fn sizes(&self) -> Small {
        Small {
            words_per_page: None,
            checkpoint_bytes: self.small.then_some(1 << 20),
            first_segments: None,
            spill_bytes: self.spills.then_some(2000),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn name<T: ValueEnum>(value: T) -> String {
            let value = value.to_possible_value();
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        }
        write!(
            f,
            "files={},log={},full={},small={},spills={},backend={},threads={},workers={},pool={},cores={},durability={},end={},policy={}",
            self.files,
            name(self.log),
            self.full,
            self.small,
            self.spills,
            name(self.backend),
            self.threads,
            self.workers,
            self.pool_mib,
            name(self.cores),
            name(self.durability),
            name(self.end),
            self.policy
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_is_printed_can_be_fixed() {
        for seed in 0..50 {
            let mode = Mode::draw(&mut Random::new(seed));
            let mut other = Mode::draw(&mut Random::new(seed + 1));
            other.fix(&mode.to_string()).unwrap();
            assert_eq!(mode.to_string(), other.to_string());
        }
        let mut mode = Mode::draw(&mut Random::new(1));
        for wrong in [
            "threads=0",
            "threads=17",
            "end=never",
            "colour=red",
            "policy=mdc-opt",
            "x",
        ] {
            assert!(mode.fix(wrong).is_err(), "{wrong}");
        }
    }
}
