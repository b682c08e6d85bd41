//! Known bugs, planted one by one: each has to be found within a minute, or the
//! simulator proves nothing about the rule that it breaks.

mod directed;
mod table;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isobath::Canary;
use table::{FoundBy, Hunt, ROWS, Row};

use super::switching;
use crate::simulate::run::Failure;

/// Simulations that run side by side.
const THREADS: u64 = 2;

/// Options of `cargo xtask canaries`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds of each core, of two, within which each must be found
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Only this one; says how it shows
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only so many of those that are found soon: other ones each day, until all had their turn
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// First seed of campaigns, if not the row's own
    #[arg(long)]
    seed: Option<u64>,
}

/// How a canary was found, or was not.
struct Found {
    is_found: bool,
    /// Seeds or tests that were run.
    seeds: u64,
    seconds: f64,
    /// The failure that shows it, or that none did.
    story: String,
}

/// Plants canaries one by one; whether each was found.
pub(crate) fn campaign(args: &Args) -> bool {
    let Some(rows) = chosen(args) else {
        return false;
    };
    println!("| canary | rule | record | found by | seeds | seconds |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut survivors = Vec::new();
    for row in rows {
        let found = row.plant(args);
        println!(
            "| `{}` | {} | {} | {} | {} | {:.1} |",
            row.canary.name(),
            row.rule,
            row.record,
            row.found_by,
            found.seeds,
            found.seconds
        );
        if args.only.is_some() {
            println!("\n{}", found.story);
        }
        if !found.is_found {
            survivors.push(format!("{}: {}", row.canary.name(), found.story));
        }
    }
    for survivor in &survivors {
        println!("\nNOT FOUND: {survivor}");
    }
    survivors.is_empty()
}

/// The rows that the options ask for.
fn chosen(args: &Args) -> Option<Vec<&'static Row>> {
    let Some(name) = &args.only else {
        return Some(match args.sample {
            None => ROWS.iter().collect(),
            Some(most) => sample(most, today()),
        });
    };
    let row = ROWS.iter().find(|row| row.canary.name() == *name);
    if row.is_none() {
        let names: Vec<String> = ROWS.iter().map(|row| row.canary.name()).collect();
        println!(
            "no canary is called {name:?}; there are {}",
            names.join(", ")
        );
    }
    row.map(|row| vec![row])
}

/// Days since 1970.
fn today() -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| (now.as_secs() / 86_400) as usize)
}

/// `most` of the rows that are found soon, those of this day: the next day's follow them.
fn sample(most: usize, day: usize) -> Vec<&'static Row> {
    let quick: Vec<&Row> = ROWS.iter().filter(|row| row.is_quick()).collect();
    let first = day.wrapping_mul(most) % quick.len().max(1);
    let from_first = quick.iter().cycle().skip(first).take(most.min(quick.len()));
    from_first.copied().collect()
}

impl Row {
    fn plant(&self, args: &Args) -> Found {
        match &self.found_by {
            FoundBy::Seeds(hunt) => hunt.run(self.canary, args),
            FoundBy::Test(test, _) => test.run(Some(self.canary)),
            FoundBy::Implied(test, _) => test.run(None),
        }
    }

    /// Whether a campaign finds it within a second or so.
    fn is_quick(&self) -> bool {
        matches!(&self.found_by, FoundBy::Seeds(hunt) if hunt.is_quick)
    }
}

/// Seconds that all threads of this process have computed for.
#[allow(unsafe_code)]
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to `time` only. The clock of the own process exists always.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_secs_f64()
}

/// The budget of a campaign in CPU time, so that a busy machine makes no difference.
struct Budget {
    from: f64,
    seconds: f64,
}

impl Budget {
    fn new(args: &Args) -> Budget {
        Budget {
            from: cpu_seconds(),
            seconds: args.seconds * THREADS as f64,
        }
    }

    fn spent(&self) -> f64 {
        cpu_seconds() - self.from
    }

    fn is_spent(&self) -> bool {
        self.spent() > self.seconds
    }

    /// The result within it, as seconds of as many cores as there are threads.
    fn outcome(&self, seeds: u64, failure: Option<(u64, Failure)>) -> Found {
        let story = match &failure {
            Some((seed, failure)) => format!("seed {seed}:\n{failure}"),
            None => format!("nothing within {seeds} seeds"),
        };
        Found {
            is_found: failure.is_some(),
            seeds,
            seconds: self.spent() / THREADS as f64,
            story,
        }
    }
}

impl Hunt {
    /// Runs one seed with `canary`.
    fn seed(&self, seed: u64, canary: Option<Canary>) -> Result<(), Failure> {
        let scenario = self.scenario(seed);
        let how = switching::draw(seed, self.switches);
        let done = switching::run_switching(scenario, canary, how);
        done.outcome.map(drop)
    }

    /// Runs one seed after another until one fails or the time is over.
    fn run(&self, canary: Canary, args: &Args) -> Found {
        let budget = Budget::new(args);
        let next = AtomicU64::new(args.seed.unwrap_or(self.first));
        let (ran, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let found: Mutex<Option<(u64, Failure)>> = Mutex::new(None);
        let search = || {
            while !over.load(Ordering::Relaxed) && !budget.is_spent() {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let outcome = self.seed(seed, Some(canary));
                ran.fetch_add(1, Ordering::Relaxed);
                if let (Err(failure), Ok(mut found)) = (outcome, found.lock()) {
                    over.store(true, Ordering::Relaxed);
                    found.get_or_insert((seed, failure));
                }
            }
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|_| drop(scope.spawn(search)));
        });
        budget.outcome(ran.into_inner(), found.into_inner().ok().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_canary_has_a_row_and_only_one() {
        for canary in Canary::ALL {
            let rows = ROWS.iter().filter(|row| row.canary == *canary).count();
            assert_eq!(rows, 1, "{} has {rows} rows", canary.name());
        }
        assert_eq!(ROWS.len(), Canary::ALL.len());
    }

    #[test]
    fn samples_of_some_days_have_every_quick_row() {
        let quick = ROWS.iter().filter(|row| row.is_quick()).count();
        let mut names: Vec<String> = (0..quick.div_ceil(6))
            .flat_map(|day| sample(6, 20_000 + day))
            .map(|row| row.canary.name())
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), quick);
    }

    #[test]
    fn every_row_names_a_record_that_exists() {
        let records = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/decisions");
        let names: Vec<String> = std::fs::read_dir(records)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        for row in ROWS {
            let named = |name: &String| name.starts_with(row.record);
            assert!(
                names.iter().any(named),
                "{} names no record",
                row.canary.name()
            );
        }
    }

    #[test]
    fn every_test_that_a_row_names_exists() {
        for row in ROWS {
            let (FoundBy::Test(test, _) | FoundBy::Implied(test, _)) = &row.found_by else {
                continue;
            };
            let name = test.name.rsplit("::").next().unwrap();
            let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            let package = match test.package {
                "isobath-spec" => own.join("../spec"),
                "xtask" => own.to_owned(),
                other => own.join("../crates").join(other),
            };
            let part = if test.file.is_some() { "tests" } else { "src" };
            let place = package.join(part);
            assert!(
                has_line(&place, &format!("fn {name}()")),
                "{} names {}, which is not there",
                row.canary.name(),
                test.name
            );
        }
    }

    /// Whether a source file in `folder`, or below, has this in it.
    fn has_line(folder: &std::path::Path, text: &str) -> bool {
        let mut entries = std::fs::read_dir(folder).unwrap();
        entries.any(|entry| {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => has_line(&path, text),
                false => std::fs::read_to_string(&path).is_ok_and(|source| source.contains(text)),
            }
        })
    }

    #[test]
    fn what_is_found_soon_is_found_and_nothing_without_it() {
        let args = Args {
            seconds: 10.0,
            only: None,
            sample: None,
            seed: None,
        };
        for row in sample(6, today()) {
            let found = row.plant(&args);
            assert!(found.is_found, "{}: {}", row.canary.name(), found.story);
            if let FoundBy::Seeds(hunt) = &row.found_by {
                let without = hunt.seed(hunt.first, None);
                assert!(without.is_ok(), "{}: {without:?}", row.canary.name());
            }
        }
    }
}
