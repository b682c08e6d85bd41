//! One function per verb.

mod admin;
mod backup;
mod campaign;
mod compact;
mod compare;
mod data;
mod drive;
mod files;
mod follow;
mod info;
mod load;
mod measure;
mod mount;
mod nvme;
mod overlay;
mod paper;
mod probe;
mod raw;
mod records;
mod scan;
mod sim;
mod stats;
mod store;
mod suite;
mod vssd;
mod watch;

use clap::CommandFactory;

use crate::args::{BenchVerb, Cli, SimVerb, Verb};
use crate::failure::Failure;
use crate::output::Output;

/// Runs the command line.
pub(crate) fn run(cli: Cli) -> Result<(), Failure> {
    let mut out = Output::new(cli.global.json);
    let is_whole = run_verb(cli, &mut out)?;
    out.finish()?;
    match is_whole {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

/// Runs a verb, and answers whether it found no problem.
fn run_verb(cli: Cli, out: &mut Output) -> Result<bool, Failure> {
    let global = &cli.global;
    let mut is_whole = true;
    match cli.verb {
        Verb::Quickstart(args) => measure::quickstart(&args, global, out)?,
        Verb::Load(args) => load::load(&args, global, out)?,
        Verb::Get(args) => data::get(&args, out)?,
        Verb::Put(args) => data::put(&args, global, out)?,
        Verb::Delete(args) => data::delete(&args, out)?,
        Verb::Scan(args) => scan::scan(&args, out)?,
        Verb::Info(args) => info::info(&args, out)?,
        Verb::Trees(args) => admin::trees(&args, out)?,
        Verb::Stats(args) if args.watch => watch::watch(&args, global, out)?,
        Verb::Stats(args) => stats::stats(&args, out)?,
        Verb::Check(args) => is_whole = admin::check(&args, global, out)?,
        Verb::Recover(args) => admin::recover(&args, out)?,
        Verb::Compact(args) => compact::compact(&args, out)?,
        Verb::Export(args) => admin::export(&args, global, out)?,
        Verb::Import(args) => admin::import(&args, global, out)?,
        Verb::Files(args) => is_whole = files::files(&args, global, out)?,
        Verb::Backup(args) => backup::backup(&args, global, out)?,
        Verb::Follow(args) => follow::follow(&args, global, out)?,
        Verb::Restore(args) => is_whole = backup::restore(&args, global, out)?,
        Verb::Salvage(args) => is_whole = backup::salvage(&args, global, out)?,
        Verb::Raw(args) => raw::raw(&args, global, out)?,
        Verb::Bench(args) => match args.verb {
            BenchVerb::Run(args) => campaign::run(&args, global, out)?,
            BenchVerb::Compare(args) => compare::compare(&args, global, out)?,
            BenchVerb::Sweep(args) => campaign::sweep(&args, global, out)?,
            BenchVerb::Campaign(args) => is_whole = suite::campaign(&args, global, out)?,
            BenchVerb::ServeRun => isobath_lab::bench::serve()?,
            BenchVerb::Cost(args) => campaign::cost(&args, out)?,
            BenchVerb::Report(args) => campaign::report(&args, out)?,
            BenchVerb::SelfTest(args) => {
                is_whole = campaign::self_test(&args, global, out)?;
            }
            BenchVerb::Workloads => campaign::workloads(out)?,
        },
        Verb::Probe(args) => probe::probe(&args, global, out)?,
        Verb::Model(args) => drive::model(&args, global, out)?,
        Verb::Sim(args) => match args.verb {
            SimVerb::Clean(args) => sim::clean(&args, global, out)?,
            SimVerb::Analysis(args) => sim::analysis(&args, out)?,
            SimVerb::Overlay(args) => overlay::overlay(&args, global, out)?,
        },
        Verb::Advise(args) => drive::advise(&args, global, out)?,
        Verb::Vssd(args) => vssd::vssd(&args.verb, global, out)?,
        Verb::Paper(args) => paper::paper(&args, global, out)?,
        Verb::Nvme(args) => nvme::nvme(&args, out)?,
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "isobath", &mut script);
            out.raw(&script)?;
        }
    }
    Ok(is_whole)
}
