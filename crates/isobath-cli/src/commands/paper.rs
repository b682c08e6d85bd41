//! paper.

use clap::Parser;
use isobath_lab::LabError;
use isobath_lab::paper::{self, Outcome, Paper};
use serde_json::Value;

use crate::args::{Cli, GlobalArgs, PaperArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

pub(crate) fn paper(
    args: &PaperArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let Some(id) = &args.paper else {
        return list(out);
    };
    let name = args.experiment.as_deref();
    let papers = match (id.as_str(), name) {
        ("all", None) => paper::papers(),
        ("all", Some(_)) => {
            return Err(Failure::Usage(
                "`all` papers take no figure or table".into(),
            ));
        }
        _ => vec![Paper::named(id, name)?],
    };
    let progress = Progress::in_order(global, &[])?;
    let mut run = |words: &[String]| run(words).map_err(lab_error);
    for paper in &papers {
        let outcomes = paper.run(args.size, &args.out, &mut run, &progress)?;
        progress.clear();
        print(&outcomes, out)?;
        let page = args.out.join(paper.page_name(args.size));
        if !out.json() {
            out.line(&format!("written: {}", page.display()))?;
        }
        out.flush()?;
    }
    Ok(())
}

/// Runs a command line in this process, and reads its JSON.
fn run(words: &[String]) -> Result<Vec<Value>, Failure> {
    let line = ["isobath", "--json", "--quiet"].into_iter();
    let line = line.chain(words.iter().map(String::as_str));
    let cli = Cli::try_parse_from(line).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut kept = Output::kept();
    super::run_verb(cli, &mut kept)?;
    kept.documents()
}

fn lab_error(failure: Failure) -> LabError {
    match failure.is_interruption() {
        true => LabError::Interrupted,
        false => LabError::Request(failure.to_string()),
    }
}

fn list(out: &mut Output) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for paper in paper::papers() {
        for experiment in &paper.experiments {
            let (id, name, needs) = (&paper.id, &experiment.name, &experiment.needs);
            let [small, machine, full] = &experiment.time;
            if out.json() {
                out.document(&serde_json::json!({
                    "paper": id, "name": name, "title": experiment.title, "needs": needs,
                    "runs": !experiment.is_missing(),
                    "time": { "small": small, "machine": machine, "full": full },
                }))?;
                continue;
            }
            let needs = match experiment.is_missing() {
                true => format!("not yet: {needs}"),
                false => needs.clone(),
            };
            let (id, title) = (format!("{id} {name}"), experiment.title.clone());
            rows.push([vec![id, title, needs], experiment.time.to_vec()].concat());
        }
    }
    if out.json() {
        return Ok(());
    }
    let header = ["experiment", "shows", "needs", "small", "machine", "full"];
    out.table(&header, &rows, false)
}

fn print(outcomes: &[Outcome], out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        return outcomes
            .iter()
            .try_for_each(|outcome| out.document(outcome));
    }
    for outcome in outcomes {
        let Outcome {
            paper,
            name,
            sentence,
            ..
        } = outcome;
        out.paragraph(&format!("{paper} {name}: {sentence}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use isobath_lab::paper::PaperSize;

    #[test]
    fn every_row_is_a_command_line() {
        for paper in paper::papers() {
            for experiment in &paper.experiments {
                for size in PaperSize::value_variants() {
                    let commands = experiment.commands(*size);
                    for line in &commands {
                        let words = std::iter::once("isobath").chain(line.split_whitespace());
                        let parsed = Cli::try_parse_from(words);
                        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                    }
                }
            }
        }
    }
}
