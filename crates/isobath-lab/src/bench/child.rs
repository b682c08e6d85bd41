//! A run in a process of its own: libraries in C may end their process while others answer with an
//! error, RocksDB for one by an assertion when its drive is full. The campaign must go on.
//!
//! The plan goes to the child as one line on its standard input, and what it measured comes back on
//! its standard output. The parent keeps the input open: its end tells the child that it was
//! cancelled, or that the parent has ended.

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

use super::plan::{Plan, check_plan};
use super::run::{self, RunReport};
use crate::{LabError, Monitor, Stage, Unit, engine, hex, unhex};

/// How a process is started that calls [`serve`].
#[derive(Debug, Clone)]
pub struct ChildProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Between two looks at the child.
const STEP: Duration = Duration::from_millis(20);
/// How long a child that was cancelled may take to end.
const END_WAIT: Duration = Duration::from_secs(20);

/// A child's answer: its measurement, or an error.
#[derive(Serialize, Deserialize)]
enum Answer {
    Measured(Box<Measured>),
    Interrupted,
    Failed(String),
}

#[derive(Serialize, Deserialize)]
struct Measured {
    report: RunReport,
    /// An HdrHistogram, V2, in hexadecimal digits.
    latency_ns: Option<String>,
}

/// Runs a plan in a process of its own.
///
/// # Errors
/// What the child said, or how it ended where it said nothing.
pub(super) fn run_in_child(
    child: &ChildProgram,
    plan: &Plan,
    monitor: &dyn Monitor,
) -> Result<RunReport, LabError> {
    check_plan(plan)?;
    plan.engine.kind.check_built()?;
    let path = plan.engine.path.as_deref();
    let was_there = path.is_some_and(|path| path.exists());
    let ran = run(child, plan, monitor);
    if let (Some(path), Err(_)) = (path, &ran)
        && !plan.keep
        && !was_there
    {
        // A child that ended by a signal has removed nothing.
        engine::remove(plan.engine.kind, path)?;
    }
    ran
}

fn run(child: &ChildProgram, plan: &Plan, monitor: &dyn Monitor) -> Result<RunReport, LabError> {
    let failed = |message: String| LabError::Rival {
        engine: plan.engine.kind.name(),
        message,
    };
    let io = |error| LabError::io("run", &child.program)(error);
    let text = serde_json::to_string(plan).map_err(|error| failed(error.to_string()))?;
    let mut process = Command::new(&child.program)
        .args(&child.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    let mut input = process.stdin.take();
    let read = |from: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // A killed child's answer lacks the bytes that it has not written.
            let _ = from.map(|mut from| from.read_to_end(&mut bytes));
            bytes
        })
    };
    let said = read(process.stdout.take().map(|out| Box::new(out) as _));
    let complained = read(process.stderr.take().map(|out| Box::new(out) as _));
    if let Some(input) = &mut input {
        // A child that has ended already says by its status why.
        let _ = input
            .write_all(text.as_bytes())
            .and_then(|()| input.write_all(b"\n"));
    }
    monitor.begin(Stage {
        name: "running in a process of its own",
        total: None,
        unit: Unit::Milliseconds,
    });
    let status = wait(&mut process, &mut input, monitor).map_err(io)?;
    let (said, complained) = (
        said.join().unwrap_or_default(),
        complained.join().unwrap_or_default(),
    );
    match serde_json::from_slice(&said) {
        Ok(Answer::Measured(measured)) => measured.report().map_err(failed),
        Ok(Answer::Interrupted) => Err(LabError::Interrupted),
        Ok(Answer::Failed(message)) => Err(failed(message)),
        Err(_) if monitor.cancelled() => Err(LabError::Interrupted),
        Err(_) => {
            let complained = String::from_utf8_lossy(&complained);
            let last = complained.lines().rfind(|line| !line.trim().is_empty());
            let last = last.map_or(String::new(), |line| format!(": {}", line.trim()));
            Err(failed(format!("its process ended by {status}{last}")))
        }
    }
}

/// Waits for the child's end, and has it end if the user asks for it.
fn wait(
    process: &mut Child,
    input: &mut Option<std::process::ChildStdin>,
    monitor: &dyn Monitor,
) -> std::io::Result<std::process::ExitStatus> {
    let mut cancelled_at: Option<Instant> = None;
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(status);
        }
        if monitor.cancelled() {
            *input = None;
            let since = cancelled_at.get_or_insert_with(Instant::now);
            if since.elapsed() > END_WAIT {
                process.kill()?;
            }
        }
        thread::sleep(STEP);
        monitor.advance(STEP.as_millis() as u64);
    }
}

impl Measured {
    fn of(mut report: RunReport) -> Result<Measured, LabError> {
        let encoded = report.latency_ns.take().map(|latencies| {
            let mut bytes = Vec::new();
            let encoded = V2Serializer::new().serialize(&latencies, &mut bytes);
            encoded.map(|_| hex(&bytes))
        });
        let encoded = encoded.transpose();
        Ok(Measured {
            latency_ns: encoded
                .map_err(|_| LabError::Verify("the latencies cannot be encoded".to_owned()))?,
            report,
        })
    }

    fn report(self) -> Result<RunReport, String> {
        let decode = |text: String| -> Result<Histogram<u64>, String> {
            let bytes = unhex(&text)?;
            let decoded = Deserializer::new().deserialize(&mut &bytes[..]);
            decoded.map_err(|error| error.to_string())
        };
        Ok(RunReport {
            latency_ns: self.latency_ns.map(decode).transpose()?,
            ..self.report
        })
    }
}

/// Ends a run when the parent is gone, or asks for it.
struct Parent(Arc<AtomicBool>);

impl Monitor for Parent {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs the plan that stands in the first line of standard input, and writes what it measured to
/// standard output.
///
/// # Errors
/// I/O errors. What the run fails with is an answer.
pub fn serve() -> Result<(), LabError> {
    let mut line = String::new();
    let input = std::path::Path::new("-");
    let mut lines = std::io::BufReader::new(std::io::stdin());
    lines
        .read_line(&mut line)
        .map_err(LabError::io("read", input))?;
    let plan: Plan =
        serde_json::from_str(&line).map_err(|error| LabError::input(input, error.to_string()))?;
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    thread::spawn(move || {
        // To its end; an error is one, too.
        let _ = lines.read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Relaxed);
    });
    let answer = match run::run(&plan, &Parent(is_over)).and_then(Measured::of) {
        Ok(measured) => Answer::Measured(Box::new(measured)),
        Err(LabError::Interrupted | LabError::Engine(isobath::Error::Interrupted)) => {
            Answer::Interrupted
        }
        Err(error) => Answer::Failed(error.to_string()),
    };
    let text = serde_json::to_string(&answer)
        .map_err(|error| LabError::input(input, error.to_string()))?;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(LabError::io("write", input))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    fn shell(script: &str) -> ChildProgram {
        ChildProgram {
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
        }
    }

    fn plan() -> Plan {
        super::super::campaign::tests::case(0, 0).plan
    }

    #[test]
    fn a_child_that_aborts_is_a_run_that_failed() {
        let run = |script| {
            let error = run_in_child(&shell(script), &plan(), &Silent).unwrap_err();
            error.to_string()
        };
        let error = run("read line; echo assertion failed >&2; kill -ABRT $$");
        assert!(
            error.starts_with("null: its process ended by signal: 6"),
            "{error}"
        );
        assert!(error.ends_with("assertion failed"), "{error}");
        assert!(run("exit 3").contains("exit status: 3"));
        assert_eq!(
            run(r#"read line; echo '{"Failed":"no space"}'"#),
            "null: no space"
        );
    }

    #[test]
    fn a_cancelled_child_sees_the_end_of_its_input() {
        struct Cancelled;
        impl Monitor for Cancelled {
            fn cancelled(&self) -> bool {
                true
            }
        }
        let ended = run_in_child(&shell("cat > /dev/null"), &plan(), &Cancelled);
        assert!(matches!(ended, Err(LabError::Interrupted)), "{ended:?}");
    }

    #[test]
    fn what_was_measured_is_the_same_on_both_sides() {
        let plan: Plan = serde_json::from_str(&serde_json::to_string(&plan()).unwrap()).unwrap();
        let report = run::run(&plan, &Silent).unwrap();
        let text = serde_json::to_string(&Measured::of(report.clone()).unwrap()).unwrap();
        let again: Measured = serde_json::from_str(&text).unwrap();
        let again = again.report().unwrap();
        assert_eq!(
            (&again.record, &again.latency_ns),
            (&report.record, &report.latency_ns)
        );
    }
}
