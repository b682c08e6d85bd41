//! Progress bars on standard error, and Ctrl-C.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isobath_lab::{LabError, Monitor, Stage, Unit};

use crate::failure::{Failure, INTERRUPTED};

/// Whether the user has asked to stop.
static STOP: AtomicBool = AtomicBool::new(false);

/// An error once the user asked to stop, where a [`Progress`] listens for that.
pub(crate) fn check() -> Result<(), Failure> {
    match STOP.load(Ordering::Relaxed) {
        true => Err(LabError::Interrupted.into()),
        false => Ok(()),
    }
}

/// Ends the process once the user asked to stop: for work that cannot be cancelled, and to which a crash does no harm.
pub(crate) fn leave_if_stopped() {
    if STOP.load(Ordering::Relaxed) {
        eprintln!("isobath: interrupted");
        std::process::exit(i32::from(INTERRUPTED));
    }
}

/// Shows stages as bars on a terminal; elsewhere nothing moves, and only what
/// is said is printed.
pub(crate) struct Progress {
    bar: Mutex<ProgressBar>,
    quiet: bool,
}

impl Progress {
    /// Installs the Ctrl-C handler. The first Ctrl-C (or SIGTERM) asks the work
    /// to stop and clean up; the second removes `remove` and ends at once.
    pub(crate) fn start(quiet: bool, remove: Vec<PathBuf>) -> Result<Progress, Failure> {
        ctrlc::set_handler(move || {
            if STOP.swap(true, Ordering::Relaxed) {
                for path in &remove {
                    let _ = std::fs::remove_file(path);
                }
                std::process::exit(i32::from(INTERRUPTED));
            }
        })
        .map_err(|e| Failure::Usage(format!("cannot listen for Ctrl-C: {e}")))?;
        Ok(Progress {
            bar: Mutex::new(ProgressBar::hidden()),
            quiet,
        })
    }

    fn bar(&self) -> MutexGuard<'_, ProgressBar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the last bar off the screen.
    pub(crate) fn clear(&self) {
        self.bar().finish_and_clear();
    }
}

/// Shows as bars the engine's progress in long work: how much of a stage is done, and not how much since the last call.
pub(crate) struct Stages<'p> {
    progress: &'p Progress,
    stage: &'static str,
    done: u64,
}

impl Stages<'_> {
    pub(crate) fn new(progress: &Progress) -> Stages<'_> {
        Stages {
            progress,
            stage: "",
            done: 0,
        }
    }

    /// `total` is 0 where it is unknown.
    pub(crate) fn tell(
        &mut self,
        stage: &'static str,
        done: u64,
        total: u64,
        unit: Unit,
    ) -> ControlFlow<()> {
        if self.stage != stage {
            (self.stage, self.done) = (stage, 0);
            self.progress.begin(Stage {
                name: stage,
                total: (total > 0).then_some(total),
                unit,
            });
        }
        self.progress.advance(done.saturating_sub(self.done));
        self.done = self.done.max(done);
        if self.progress.cancelled() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Monitor for Progress {
    fn begin(&self, stage: Stage) {
        let mut slot = self.bar();
        slot.finish_and_clear();
        if self.quiet {
            return;
        }
        let template = match (stage.total, stage.unit) {
            (Some(_), Unit::Bytes) => {
                "{msg:18} {wide_bar} {bytes:>11} / {total_bytes:11} {binary_bytes_per_sec:>12} {eta:>4}"
            }
            (Some(_), Unit::Items) => {
                "{msg:18} {wide_bar} {human_pos:>11} / {human_len:11} {per_sec:>14} {eta:>4}"
            }
            (Some(_), Unit::Milliseconds) => "{msg:18} {wide_bar} {elapsed:>4}",
            (None, Unit::Bytes) => "{msg:18} {spinner} {bytes} {binary_bytes_per_sec}",
            (None, _) => "{msg:18} {spinner} {human_pos} {elapsed}",
        };
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(stage.total, ProgressDrawTarget::stderr());
        bar.set_style(style);
        bar.set_message(stage.name);
        bar.enable_steady_tick(Duration::from_millis(120));
        *slot = bar;
    }

    fn advance(&self, amount: u64) {
        self.bar().inc(amount);
    }

    fn say(&self, line: &str) {
        if self.quiet {
            return;
        }
        let bar = self.bar();
        let line = isobath_lab::escape(line.as_bytes());
        bar.suspend(|| eprintln!("{line}"));
    }

    fn cancelled(&self) -> bool {
        STOP.load(Ordering::Relaxed)
    }
}
