//! bench compare: two engines in interleaved repeats, and a second pair with the least isolation.

use isobath_lab::bench::{self, Case, LookupPlan, Ratio, Record};
use isobath_lab::{IsolationLevel, LabError};
use serde::Serialize;

use super::campaign::{Drive, place, plan, print, run_and_then};
use super::suite::print_stalls;
use crate::args::{CompareArgs, GlobalArgs, ProfileName};
use crate::failure::Failure;
use crate::output::Output;

/// The ratio of two sides, as it is printed.
#[derive(Serialize)]
struct Compared {
    first: &'static str,
    second: &'static str,
    isolation: IsolationLevel,
    #[serde(flatten)]
    ratio: Ratio,
}

/// What is run in each round, and which of it is compared: the two engines, and the two with the least isolation, where one of them
/// has less than was asked for.
struct Sides {
    plans: Vec<LookupPlan>,
    pairs: Vec<(IsolationLevel, [usize; 2])>,
}

impl Sides {
    fn of(plans: [LookupPlan; 2], second_rows: bool) -> Sides {
        let asked = plans[0].engine.tuning.isolation;
        let mut plans = Vec::from(plans);
        let mut pairs = vec![(asked, [0, 1])];
        let mut least = [0, 1];
        if asked == IsolationLevel::Snapshot && second_rows {
            for side in &mut least {
                let transactions = plans[*side].workload.tpcc.is_some();
                if plans[*side].engine.kind.has_less_isolation(transactions) {
                    let mut plan = plans[*side].clone();
                    plan.engine.tuning.isolation = IsolationLevel::Least;
                    *side = plans.len();
                    plans.push(plan);
                }
            }
        }
        if least != [0, 1] {
            pairs.push((IsolationLevel::Least, least));
        }
        Sides { plans, pairs }
    }
}

pub(crate) fn compare(
    args: &CompareArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let drive = Drive {
        profile: ProfileName::Tlc,
        over_provisioning: 0.125,
    };
    let plans = [
        plan(args.first, &args.case, None, drive)?,
        plan(args.second, &args.case, None, drive)?,
    ];
    let sides = Sides::of(plans, !args.no_least);
    let place = place(&args.case)?;
    let order = bench::schedule(sides.plans.len(), args.repeats, args.case.seed);
    let mut cases: Vec<Case> = order
        .iter()
        .map(|&(round, side)| Case {
            plan: sides.plans[side].clone(),
            side,
            round,
            place: place.clone(),
            row: None,
            search: None,
        })
        .collect();
    let then = |cases: &[Case], records: &[Record]| match args.half_rate {
        true => bench::at_half_rate(cases, records),
        false => Vec::new(),
    };
    let (records, stalls) = run_and_then(&mut cases, &args.case, global, out, false, then)?;
    let mut compared = Vec::new();
    for (isolation, [first, second]) in &sides.pairs {
        let pairs = rates(&order, &records, *first, *second, args.repeats);
        compared.push(Compared {
            first: sides.plans[*first].engine.kind.name(),
            second: sides.plans[*second].engine.kind.name(),
            isolation: *isolation,
            ratio: bench::compare(&pairs)
                .ok_or_else(|| LabError::Verify("a run has no throughput to compare".into()))?,
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
    records: &[Record],
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
    out.paragraph(&format!(
        "{} / {}{isolation}: {:.3} (95%: {:.3} to {:.3}, {} repeats); {}",
        compared.first,
        compared.second,
        ratio.ratio,
        ratio.low,
        ratio.high,
        ratio.repeats_count,
        ratio.says.sentence()
    ))
}
