//! Tests, run with a canary, for rules that no simulated campaign reaches.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use isobath::Canary;

use super::Found;

/// A test that passes, and that does not with a canary.
pub(super) struct Directed {
    pub(super) package: &'static str,
    /// The test program in the package's `tests`; the library's own tests if there is none.
    pub(super) file: Option<&'static str>,
    pub(super) name: &'static str,
}

/// A test that takes so many times as long as without a canary counts as one that never ends.
const ENDLESS: u32 = 20;
/// The least that it is given.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// How a test ended.
enum Ended {
    Passed(Duration),
    Failed,
    Never,
}

impl Directed {
    /// Runs the test without a canary, if it has to pass, and with one, where it must not.
    pub(super) fn run(&self, canary: Option<Canary>) -> Found {
        let program = self.build();
        let begin = Instant::now();
        let compared = program.and_then(|program| self.compare(&program, canary));
        Found {
            is_found: compared.is_ok(),
            seeds: 1,
            seconds: begin.elapsed().as_secs_f64(),
            story: compared.unwrap_or_else(|story| story),
        }
    }

    fn compare(&self, program: &Path, canary: Option<Canary>) -> Result<String, String> {
        let took = match self.once(program, None, Duration::from_secs(600))? {
            Ended::Passed(took) => took,
            Ended::Failed => return Err(format!("{} fails without it", self.name)),
            Ended::Never => return Err(format!("{} does not end without it", self.name)),
        };
        let Some(canary) = canary else {
            return Ok(format!("{} passes", self.name));
        };
        match self.once(program, Some(canary), (took * ENDLESS).max(MAX_WAIT))? {
            Ended::Passed(_) => Err(format!("{} passes with it", self.name)),
            Ended::Failed => Ok(format!("{} fails with it", self.name)),
            Ended::Never => Ok(format!("{} does not end with it", self.name)),
        }
    }

    /// Builds the test's program; where it is.
    fn build(&self) -> Result<PathBuf, String> {
        let mut command = crate::cargo();
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        command.args(["test", "--no-run", "--package", self.package]);
        match self.file {
            Some(file) => command.args(["--test", file]),
            None => command.arg("--lib"),
        };
        let output = command
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let program = said
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Executable "))
            .filter_map(|line| line.rsplit_once('(')?.1.strip_suffix(')'))
            .next_back();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        program
            .map(|path| root.join(path))
            .ok_or_else(|| format!("no program of {}:\n{said}", self.name))
    }

    /// Runs the test alone.
    fn once(
        &self,
        program: &Path,
        canary: Option<Canary>,
        max_wait: Duration,
    ) -> Result<Ended, String> {
        let mut command = Command::new(program);
        command.args(["--exact", self.name]);
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(canary) = canary {
            command.env("ISOBATH_CANARY", canary.name());
        }
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("{}: {error}", program.display()))?;
        let output = child.stdout.take();
        let said = std::thread::spawn(move || read(output));
        let begin = Instant::now();
        while begin.elapsed() < max_wait {
            match child.try_wait() {
                Ok(Some(status)) => {
                    let said = said.join().unwrap_or_default();
                    return match status.success() {
                        true if said.contains("1 passed") => Ok(Ended::Passed(begin.elapsed())),
                        true => Err(format!("there is no test {}", self.name)),
                        false => Ok(Ended::Failed),
                    };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(error.to_string()),
            }
        }
        // The child may have ended since.
        let _ = child.kill();
        let _ = child.wait();
        Ok(Ended::Never)
    }
}

/// All that a program prints.
fn read(output: Option<ChildStdout>) -> String {
    let mut said = String::new();
    if let Some(mut output) = output {
        // A file that cannot be read says nothing.
        let _ = output.read_to_string(&mut said);
    }
    said
}

impl std::fmt::Display for Directed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "`{}`", self.name)
    }
}
