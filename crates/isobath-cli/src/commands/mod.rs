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
    let global = &cli.global;
    let mut out = Output::new(global.json);
    let mut is_whole = true;
    match cli.verb {
        Verb::Quickstart(args) => measure::quickstart(&args, global, &mut out)?,
        Verb::Load(args) => load::load(&args, global, &mut out)?,
        Verb::Get(args) => data::get(&args, &mut out)?,
        Verb::Put(args) => data::put(&args, global, &mut out)?,
        Verb::Delete(args) => data::delete(&args, &mut out)?,
        Verb::Scan(args) => scan::scan(&args, &mut out)?,
        Verb::Info(args) => info::info(&args, &mut out)?,
        Verb::Trees(args) => admin::trees(&args, &mut out)?,
        Verb::Stats(args) if args.watch => watch::watch(&args, global, &mut out)?,
        Verb::Stats(args) => stats::stats(&args, &mut out)?,
        Verb::Check(args) => is_whole = admin::check(&args, global, &mut out)?,
        Verb::Recover(args) => admin::recover(&args, &mut out)?,
        Verb::Compact(args) => compact::compact(&args, &mut out)?,
        Verb::Export(args) => admin::export(&args, global, &mut out)?,
        Verb::Import(args) => admin::import(&args, global, &mut out)?,
        Verb::Files(args) => is_whole = files::files(&args, global, &mut out)?,
        Verb::Backup(args) => backup::backup(&args, global, &mut out)?,
        Verb::Follow(args) => follow::follow(&args, global, &mut out)?,
        Verb::Restore(args) => is_whole = backup::restore(&args, global, &mut out)?,
        Verb::Salvage(args) => is_whole = backup::salvage(&args, global, &mut out)?,
        Verb::Raw(args) => raw::raw(&args, global, &mut out)?,
        Verb::Bench(args) => match args.verb {
            BenchVerb::Run(args) => campaign::run(&args, global, &mut out)?,
            BenchVerb::Compare(args) => compare::compare(&args, global, &mut out)?,
            BenchVerb::Sweep(args) => campaign::sweep(&args, global, &mut out)?,
            BenchVerb::Campaign(args) => is_whole = suite::campaign(&args, global, &mut out)?,
            BenchVerb::ServeRun => isobath_lab::bench::serve()?,
            BenchVerb::Cost(args) => campaign::cost(&args, &mut out)?,
            BenchVerb::Report(args) => campaign::report(&args, &mut out)?,
            BenchVerb::SelfTest(args) => {
                is_whole = campaign::self_test(&args, global, &mut out)?;
            }
            BenchVerb::Workloads => campaign::workloads(&mut out)?,
        },
        Verb::Probe(args) => probe::probe(&args, global, &mut out)?,
        Verb::Model(args) => drive::model(&args, global, &mut out)?,
        Verb::Sim(args) => match args.verb {
            SimVerb::Clean(args) => sim::clean(&args, global, &mut out)?,
            SimVerb::Analysis(args) => sim::analysis(&args, &mut out)?,
            SimVerb::Overlay(args) => overlay::overlay(&args, global, &mut out)?,
        },
        Verb::Advise(args) => drive::advise(&args, global, &mut out)?,
        Verb::Vssd(args) => vssd::vssd(&args.verb, global, &mut out)?,
        Verb::Nvme(args) => nvme::nvme(&args, &mut out)?,
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "isobath", &mut script);
            out.raw(&script)?;
        }
    }
    out.finish()?;
    if is_whole {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}
