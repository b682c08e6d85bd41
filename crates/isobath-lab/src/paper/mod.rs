//! The papers' experiments by name: `isobath paper 003 figure5`.
//!
//! An experiment is a table of rows, which a file of this folder describes for each paper. A row is
//! one or more command lines of `isobath`, which the caller runs in this process; their JSON is
//! kept in `rows.jsonl`, and a row that is there is not run again. Charts, verdicts and the page
//! come from the kept rows alone.

mod claims;
mod page;
mod table;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use claims::Verdict;
use table::Texts;

use crate::bench::{append, go_on_with, lock};
use crate::drive_model::write_whole;
use crate::{LabError, Monitor};

/// The file of rows in an experiment's directory.
const ROWS: &str = "rows.jsonl";
/// In command lines: a directory on the drive to measure, which each row has for itself.
const WORK: &str = "{work}";

/// What a row begins with that equations answer, and no command.
const PREDICTED: &str = "= ";

const PAPERS: [&str; 5] = [
    include_str!("000.toml"),
    include_str!("001.toml"),
    include_str!("002.toml"),
    include_str!("003.toml"),
    include_str!("004.toml"),
];

/// How large the runs of an experiment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PaperSize {
    /// Seconds: shows that everything runs; rates mean nothing
    Small,
    /// Minutes to hours, for a machine of a few cores and one drive
    Machine,
    /// The paper's own sizes
    Full,
}

impl PaperSize {
    /// The value for this size.
    fn of<T>(self, small: T, machine: T, full: T) -> T {
        match self {
            PaperSize::Small => small,
            PaperSize::Machine => machine,
            PaperSize::Full => full,
        }
    }
}

/// A paper and its experiments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its number on the command line.
    pub id: String,
    /// Title and authors.
    pub title: String,
    /// Its figures and tables.
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
    /// Texts that rows of all experiments name.
    #[serde(default)]
    texts: Texts,
}

/// A figure or a table. The lines' forms are those of `table` and `claims`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name on the command line: `figure3`, `table1`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What it needs beside this program; of one without rows, what is missing.
    #[serde(default)]
    pub needs: String,
    /// About how long it takes, by size.
    #[serde(default)]
    pub time: [String; 3],
    /// The experiment that it shows in another form.
    #[serde(default)]
    same_as: Option<String>,
    #[serde(default)]
    texts: Texts,
    /// Lists of words that rows are repeated for.
    #[serde(default)]
    lists: Texts,
    #[serde(default)]
    rows: Vec<String>,
    /// `title | name of x | name of y`, and `| log` for logarithmic axes.
    #[serde(default)]
    charts: Vec<String>,
    /// Terms of x and y: a line through a row's documents is one more document.
    #[serde(default)]
    fit: Option<[String; 2]>,
    #[serde(default)]
    points: Vec<String>,
    /// What the paper prints: `chart | series | x:y x:y`.
    #[serde(default)]
    printed: Vec<String>,
    #[serde(default)]
    claims: Vec<String>,
}

/// One measurement of an experiment.
#[derive(Debug, Clone)]
struct Row {
    series: String,
    x: f64,
    /// Command lines without the program's name.
    commands: Vec<String>,
    note: String,
    /// Why nothing here can measure it.
    lacks: Option<String>,
}

/// A number of ours in the chart of that place.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    chart: usize,
    series: String,
    x: f64,
    y: f64,
}

/// What is known of an experiment.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The paper's number.
    pub paper: String,
    /// The figure or table.
    pub name: String,
    /// What holds, what does not, and what is lacking, in one sentence.
    pub sentence: String,
    /// The paper's statements.
    pub verdicts: Vec<Verdict>,
    /// Rows that are measured.
    pub measured_count: usize,
    /// Rows that this call measured.
    pub ran_count: usize,
    /// Rows that cannot be measured here, or failed, and why.
    pub lacking: Vec<String>,
}

/// A row that was run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    commands: Vec<String>,
    isobath_version: String,
    seconds: f64,
    error: Option<String>,
    documents: Vec<Value>,
}

type Records = HashMap<Vec<String>, Record>;

/// Runs a command line, `isobath` left out, and answers its JSON.
pub type RunCommand<'r> = dyn FnMut(&[String]) -> Result<Vec<Value>, LabError> + 'r;

/// Every paper.
#[must_use]
pub fn papers() -> Vec<Paper> {
    let read = |text: &str| -> Paper {
        #[expect(clippy::expect_used, reason = "a constant, which a test reads")]
        let mut paper: Paper = toml::from_str(text).expect("a paper");
        let all = paper.experiments.clone();
        for experiment in &mut paper.experiments {
            let is_same = |other: &&Experiment| Some(&other.name) == experiment.same_as.as_ref();
            if let Some(same) = all.iter().find(is_same) {
                let (name, title) = (experiment.name.clone(), experiment.title.clone());
                *experiment = Experiment {
                    name,
                    title,
                    ..same.clone()
                };
            }
            for (name, text) in &paper.texts {
                experiment
                    .texts
                    .entry(name.clone())
                    .or_insert_with(|| text.clone());
            }
        }
        paper
    };
    PAPERS.map(read).into()
}

impl Paper {
    /// The paper with the experiment of that name, or with all of them.
    ///
    /// # Errors
    /// [`LabError::Request`] that lists the names there are.
    pub fn named(id: &str, name: Option<&str>) -> Result<Paper, LabError> {
        let unknown = |what: &str, wrong: &str, names: Vec<&str>| {
            let names = names.join(", ");
            LabError::Request(format!("there is no {what} `{wrong}`; there are {names}"))
        };
        let mut papers = papers();
        let Some(at) = papers.iter().position(|paper| paper.id == id) else {
            let ids = papers.iter().map(|paper| paper.id.as_str()).chain(["all"]);
            return Err(unknown("paper", id, ids.collect()));
        };
        let mut paper = papers.swap_remove(at);
        let Some(name) = name else { return Ok(paper) };
        let wanted = name.to_lowercase().replace([' ', '.'], "");
        let number = wanted
            .trim_start_matches("figure")
            .trim_start_matches("fig");
        let is_wanted = |e: &&Experiment| e.name == wanted || e.name == format!("figure{number}");
        let Some(found) = paper
            .experiments
            .iter()
            .find(is_wanted)
            .map(|e| e.name.clone())
        else {
            let names = paper.experiments.iter().map(|e| e.name.as_str());
            return Err(unknown(
                &format!("experiment of paper {id}"),
                name,
                names.collect(),
            ));
        };
        paper
            .experiments
            .retain(|experiment| experiment.name == found);
        Ok(paper)
    }

    /// Name of the page's file.
    #[must_use]
    pub fn page_name(&self, size: PaperSize) -> String {
        let what = match &self.experiments[..] {
            [one] => format!("{}-{}", self.id, one.name),
            _ => self.id.clone(),
        };
        format!("{what}-{}.html", size.of("small", "machine", "full"))
    }

    /// Runs the rows that `directory` does not have yet, and writes the page.
    ///
    /// # Errors
    /// [`LabError::Interrupted`], after the page was written; I/O errors. A row that fails is a row
    /// with an error, which the next call tries again.
    pub fn run(
        &self,
        size: PaperSize,
        directory: &Path,
        run: &mut RunCommand<'_>,
        monitor: &dyn Monitor,
    ) -> Result<Vec<Outcome>, LabError> {
        fs::create_dir_all(directory).map_err(LabError::io("make", directory))?;
        let file = directory.join(ROWS);
        let _lock = lock(&file)?;
        let known = go_on_with::<Record>(&file)?.into_iter();
        let mut records: Records = known.map(|known| (known.commands.clone(), known)).collect();
        let mut outcomes = Vec::new();
        let mut ended = Ok(());
        for experiment in &self.experiments {
            let mut ran_count = 0;
            for row in experiment.rows(size) {
                let known = records.get(&row.commands);
                let is_known = known.is_some_and(|known| known.error.is_none());
                if ended.is_err() || is_known || row.lacks.is_some() {
                    continue;
                }
                monitor.say(&format!(
                    "{} {}: {} at {}",
                    self.id, experiment.name, row.series, row.x
                ));
                match run_row(&row, directory, run) {
                    Err(error) => ended = Err(error),
                    Ok(record) => {
                        let is_new = known.is_none_or(|known| known.error != record.error);
                        if is_new {
                            append(&file, &record)?;
                        }
                        records.insert(row.commands, record);
                        ran_count += 1;
                    }
                }
            }
            let outcome = experiment.outcome(&self.id, size, &records);
            outcomes.push(Outcome {
                ran_count,
                ..outcome
            });
        }
        let page = page::html(self, size, &records);
        write_whole(&directory.join(self.page_name(size)), &page)?;
        ended.map(|()| outcomes)
    }
}

impl Experiment {
    /// Whether nothing here can measure it yet.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.rows.is_empty()
    }

    /// The command lines of all its rows.
    #[must_use]
    pub fn commands(&self, size: PaperSize) -> Vec<String> {
        let rows = self.rows(size).into_iter();
        rows.flat_map(|row| row.commands)
            .filter(|command| !command.starts_with(PREDICTED))
            .collect()
    }

    fn rows(&self, size: PaperSize) -> Vec<Row> {
        let of_line = |line: &String| table::rows(line, &self.texts, &self.lists, size);
        self.rows.iter().flat_map(of_line).collect()
    }

    /// Title, names of the axes, and what else there is to say of a chart.
    fn chart(&self, at: usize) -> Option<[&str; 4]> {
        let mut parts = self.charts.get(at)?.split(" | ");
        Some([0; 4].map(|_| parts.next().unwrap_or_default()))
    }

    /// Series, x and y of what the paper prints for a chart.
    fn printed_in(&self, chart: usize) -> Vec<(&str, f64, f64)> {
        let mut found = Vec::new();
        for line in &self.printed {
            let parts: Vec<&str> = line.split(" | ").collect();
            let [at, series, points] = parts[..] else {
                continue;
            };
            if at.parse() == Ok(chart) {
                let points = points.split(' ').filter_map(|point| point.split_once(':'));
                let points =
                    points.filter_map(|(x, y)| Some((series, x.parse().ok()?, y.parse().ok()?)));
                found.extend(points);
            }
        }
        found
    }

    fn measured(&self, size: PaperSize, records: &Records) -> Vec<Point> {
        let mut points = Vec::new();
        for row in self.rows(size) {
            let record = records
                .get(&row.commands)
                .filter(|record| record.error.is_none());
            let Some(record) = record else { continue };
            let mut documents = record.documents.clone();
            if let Some([x, y]) = &self.fit {
                documents.push(table::fit(x, y, &row, &record.documents));
            }
            points.extend(
                self.points
                    .iter()
                    .flat_map(|line| table::points(line, &row, &documents)),
            );
        }
        points
    }

    fn outcome(&self, paper: &str, size: PaperSize, records: &Records) -> Outcome {
        let points = self.measured(size, records);
        let verdicts = self
            .claims
            .iter()
            .filter_map(|line| claims::judge(line, self, &points));
        let verdicts: Vec<Verdict> = verdicts.collect();
        let rows = self.rows(size);
        let why = |row: &Row| {
            Some(format!(
                "{} at {}: {}",
                row.series,
                row.x,
                lacks(row, records)?
            ))
        };
        let lacking: Vec<String> = rows.iter().filter_map(why).collect();
        let measured_count = rows.len() - lacking.len();
        let sentence = match self.is_missing() {
            true => format!("Not yet: {}.", self.needs),
            false => claims::sentence(&verdicts, measured_count, lacking.len()),
        };
        let (paper, name) = (paper.to_owned(), self.name.clone());
        Outcome {
            paper,
            name,
            sentence,
            verdicts,
            measured_count,
            ran_count: 0,
            lacking,
        }
    }
}

/// Why a row has no measurement.
fn lacks(row: &Row, records: &Records) -> Option<String> {
    match (&row.lacks, records.get(&row.commands)) {
        (Some(why), _) => Some(why.clone()),
        (None, None) => Some("not run yet".to_owned()),
        (None, Some(record)) => record.error.clone(),
    }
}

fn run_row(row: &Row, directory: &Path, run: &mut RunCommand<'_>) -> Result<Record, LabError> {
    let work = directory.join("work");
    let remove = || crate::files::removed(&work, fs::remove_dir_all(&work));
    // A call that was killed may have left one.
    remove()?;
    fs::create_dir_all(&work).map_err(LabError::io("make", &work))?;
    let began = Instant::now();
    let mut documents = Vec::new();
    let ran = row.commands.iter().try_for_each(|command| {
        if let Some(costs) = command.strip_prefix(PREDICTED) {
            documents.push(table::predicted(costs));
            return Ok(());
        }
        let words = command.split_whitespace();
        let words = words.map(|word| word.replace(WORK, &work.to_string_lossy()));
        documents.extend(run(&words.collect::<Vec<String>>())?);
        Ok(())
    });
    remove()?;
    let error = match ran {
        Err(LabError::Interrupted) => return Err(LabError::Interrupted),
        ran => ran.err().map(|error| error.to_string()),
    };
    Ok(Record {
        commands: row.commands.clone(),
        isobath_version: env!("CARGO_PKG_VERSION").to_owned(),
        seconds: began.elapsed().as_secs_f64(),
        error,
        documents,
    })
}

#[cfg(test)]
mod tests;
