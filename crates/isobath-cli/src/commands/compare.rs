//! bench compare: two engines in interleaved repeats, and second pairs with the least isolation and
//! with RocksDB's blocks aligned.

use isobath_lab::bench::{self, Case, Plan, Ratio, RunRecord};
use isobath_lab::{DriveProfile, EngineKind, IsolationLevel, LabError, Tuning};
use serde::Serialize;

use super::campaign::{Drive, place, plan, run_and_then};
use super::records::print;
use super::suite::print_stalls;
use crate::args::{ChangeArgs, CompareArgs, GlobalArgs};
use crate::failure::Failure;
use crate::output::Output;

/// The ratio of two sides, as it is printed.
#[derive(Serialize)]
struct Compared {
    first: &'static str,
    second: &'static str,
    isolation: IsolationLevel,
    block_align: bool,
    #[serde(flatten)]
    ratio: Ratio,
}

/// What is run in each round, and which of it is compared: the two engines; the two with the least
/// isolation, if one of them has less than was asked for; and the two with RocksDB's blocks
/// aligned, if that is asked for and one of them is RocksDB.
struct Sides {
    plans: Vec<Plan>,
    pairs: Vec<Pair>,
}

struct Pair {
    isolation: IsolationLevel,
    block_align: bool,
    sides: [usize; 2],
}

impl Sides {
    fn of(mut plans: [Plan; 2], least: bool) -> Sides {
        let isolation = plans[0].engine.tuning.isolation;
        let align = plans[0].engine.tuning.block_align;
        for plan in &mut plans {
            plan.engine.tuning.block_align = false;
        }
        let mut sides = Sides {
            plans: Vec::from(plans),
            pairs: Vec::new(),
        };
        sides.pairs.push(Pair {
            isolation,
            block_align: false,
            sides: [0, 1],
        });
        if isolation == IsolationLevel::Snapshot && least {
            let has_less = |plan: &Plan| {
                let transactions = plan.workload.tpcc.is_some();
                plan.engine.kind.has_less_isolation(transactions)
            };
            let set = |tuning: &mut Tuning| tuning.isolation = IsolationLevel::Least;
            sides.second_rows(has_less, set);
        }
        if align {
            let is_rocksdb = |plan: &Plan| plan.engine.kind == EngineKind::RocksDb;
            sides.second_rows(is_rocksdb, |tuning| tuning.block_align = true);
        }
        sides
    }

    /// Adds a pair of which those that may be another way are that, unless none may.
    fn second_rows(&mut self, may: impl Fn(&Plan) -> bool, set: impl Fn(&mut Tuning)) {
        let mut sides = [0, 1];
        let mut tuning = self.plans[0].engine.tuning.clone();
        for side in &mut sides {
            if may(&self.plans[*side]) {
                let mut plan = self.plans[*side].clone();
                set(&mut plan.engine.tuning);
                tuning = plan.engine.tuning.clone();
                *side = self.plans.len();
                self.plans.push(plan);
            }
        }
        if sides != [0, 1] {
            self.pairs.push(Pair {
                isolation: tuning.isolation,
                block_align: tuning.block_align,
                sides,
            });
        }
    }
}

/// Why there is no ratio.
const NO_OPERATION: &str = "a run ended without a single operation, so there is nothing to compare; give a longer --duration, and with --out a new directory";

pub(crate) fn compare(
    args: &CompareArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let drive = Drive {
        profile: DriveProfile::Tlc,
        over_provisioning: 0.125,
    };
    let plans = [
        plan(args.first, &args.case, None, drive, &ChangeArgs::default())?,
        plan(args.second, &args.case, None, drive, &ChangeArgs::default())?,
    ];
    let sides = Sides::of(plans, !args.no_least);
    let place = place(&args.case)?;
    let order = bench::schedule(sides.plans.len(), args.repeats.get(), args.case.seed);
    let mut cases: Vec<Case> = order
        .iter()
        .map(|&(round, side)| Case {
            place: place.clone(),
            ..Case::new(sides.plans[side].clone(), side, round)
        })
        .collect();
    let then = |cases: &[Case], records: &[RunRecord]| match args.half_rate {
        true => bench::at_half_rate(cases, records),
        false => Vec::new(),
    };
    let (records, stalls) = run_and_then(&mut cases, &args.case, global, out, false, then)?;
    let mut compared = Vec::new();
    for pair in &sides.pairs {
        let [first, second] = pair.sides;
        let pairs = rates(&order, &records, first, second, args.repeats.get());
        compared.push(Compared {
            first: sides.plans[first].engine.kind.name(),
            second: sides.plans[second].engine.kind.name(),
            isolation: pair.isolation,
            block_align: pair.block_align,
            ratio: bench::compare(&pairs).ok_or_else(|| LabError::Request(NO_OPERATION.into()))?,
        });
    }
    if out.json() {
        let mut all = records.iter().chain(&stalls);
        all.try_for_each(|record| out.document(record))?;
        return compared.iter().try_for_each(|ratio| out.document(ratio));
    }
    print(&records, out)?;
    compared
        .iter()
        .try_for_each(|ratio| print_ratio(ratio, out))?;
    print_stalls(&bench::summarize(&stalls), out)
}

/// Throughput of two sides in each round.
fn rates(
    order: &[(usize, usize)],
    records: &[RunRecord],
    first: usize,
    second: usize,
    repeats: usize,
) -> Vec<(f64, f64)> {
    let rate_of = |wanted: (usize, usize)| {
        let found = order.iter().zip(records).find(|(at, _)| **at == wanted);
        found.map_or(0.0, |(_, record)| record.operations_per_s)
    };
    (0..repeats)
        .map(|round| (rate_of((round, first)), rate_of((round, second))))
        .collect()
}

fn print_ratio(compared: &Compared, out: &mut Output) -> Result<(), Failure> {
    let ratio = &compared.ratio;
    let isolation = match compared.isolation {
        IsolationLevel::Snapshot => "",
        IsolationLevel::Least => ", each with its least isolation",
    };
    let blocks = match compared.block_align {
        true => ", RocksDB's blocks aligned",
        false => "",
    };
    out.paragraph(&format!(
        "{} / {}{isolation}{blocks}: {:.3} (95%: {:.3} to {:.3}, {} repeats); {}",
        compared.first,
        compared.second,
        ratio.ratio,
        ratio.low,
        ratio.high,
        ratio.repeats_count,
        ratio.says.sentence()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn sides(words: &str) -> Sides {
        let words = ["compare"].into_iter().chain(words.split_whitespace());
        let CompareArgs {
            first,
            second,
            case,
            no_least,
            ..
        } = Command::parse_from(words).args;
        let drive = Drive {
            profile: DriveProfile::Tlc,
            over_provisioning: 0.1,
        };
        let of = |engine| plan(engine, &case, None, drive, &ChangeArgs::default()).unwrap();
        Sides::of([of(first), of(second)], !no_least)
    }

    #[test]
    fn aligned_blocks_make_a_second_row_of_rocksdb_alone() {
        let both = sides("isobath rocksdb --block-align");
        let aligned = |sides: &Sides| -> Vec<bool> {
            let plans = sides.plans.iter();
            plans.map(|p| p.engine.tuning.block_align).collect()
        };
        assert_eq!(aligned(&both), [false, false, true]);
        let pairs = both.pairs.iter().map(|p| (p.block_align, p.sides));
        assert_eq!(pairs.collect::<Vec<_>>(), [(false, [0, 1]), (true, [0, 2])]);
        assert_eq!(
            aligned(&sides("isobath redb --block-align")),
            [false, false]
        );
        // Transactions have the least isolation as another pair of second rows.
        let all = sides("isobath rocksdb --workload tpcc --warehouses 1 --block-align");
        let pairs = all
            .pairs
            .iter()
            .map(|p| (p.isolation, p.block_align, p.sides));
        let (snapshot, least) = (IsolationLevel::Snapshot, IsolationLevel::Least);
        let wanted = [
            (snapshot, false, [0, 1]),
            (least, false, [2, 3]),
            (snapshot, true, [0, 4]),
        ];
        assert_eq!(pairs.collect::<Vec<_>>(), wanted);
    }
}
