//! Progress bars on standard error.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use isobath_lab::{Monitor, Stage, Unit};

use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::interrupt::{self, InOrder};
use crate::output::count;
use crate::table;

/// Columns below which a bar shows a share instead of amounts and rates.
const BAR_WIDTH: usize = 76;

/// Shows stages as bars on a terminal; elsewhere nothing moves, and only what
/// is said is printed.
pub(crate) struct Progress {
    bar: Mutex<ProgressBar>,
    quiet: bool,
    _in_order: Option<InOrder>,
}

impl Progress {
    /// Listens for Ctrl-C, which ends the process at once until an [`InOrder`] begins.
    pub(crate) fn start(global: &GlobalArgs) -> Result<Progress, Failure> {
        interrupt::listen(global.json)?;
        Ok(Progress {
            bar: Mutex::new(ProgressBar::hidden()),
            quiet: global.quiet,
            _in_order: None,
        })
    }

    /// The same for work that has something to clean up from its beginning on: the first Ctrl-C (or
    /// SIGTERM) asks it to stop; the second one removes `unfinished` and ends at once.
    pub(crate) fn in_order(
        global: &GlobalArgs,
        unfinished: &[PathBuf],
    ) -> Result<Progress, Failure> {
        interrupt::remove_unfinished(unfinished);
        let mut progress = Progress::start(global)?;
        progress._in_order = Some(InOrder::begin()?);
        Ok(progress)
    }

    fn bar(&self) -> MutexGuard<'_, ProgressBar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the last bar off the screen.
    pub(crate) fn clear(&self) {
        self.bar().finish_and_clear();
    }
}

/// Shows as bars the engine's progress in long work: how much of a stage is done, and not how much
/// since the last call.
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

    /// `total` is 0 if it is unknown.
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

/// Columns of the terminal that bars are drawn on.
fn columns() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stderr());
    size.map_or(table::DEFAULT_WIDTH, |(width, _)| usize::from(width.0))
}

/// A stage's line; one that is longer than the terminal is wide would stay on the screen each time
/// it is drawn again.
fn template(stage: &Stage, columns: usize) -> &'static str {
    match (stage.total, stage.unit, columns < BAR_WIDTH) {
        (Some(_), Unit::Milliseconds, _) => "{msg} {wide_bar} {elapsed:>4}",
        (Some(_), _, true) => "{msg} {wide_bar} {percent:>3}% {eta:>4}",
        (Some(_), Unit::Bytes, false) => {
            "{msg:18} {wide_bar} {bytes:>11} / {total_bytes:11} {binary_bytes_per_sec:>12} {eta:>4}"
        }
        (Some(_), Unit::Items, false) => {
            "{msg:18} {wide_bar} {human_pos:>11} / {human_len:11} {rate:>12} {eta:>4}"
        }
        (None, Unit::Bytes, true) => "{msg} {spinner} {bytes}",
        (None, Unit::Bytes, false) => "{msg:18} {spinner} {bytes} {binary_bytes_per_sec}",
        (None, _, true) => "{msg} {spinner} {pos}",
        (None, _, false) => "{msg:18} {spinner} {human_pos} {elapsed}",
    }
}

/// Rates from here on are guesses of a bar's first moment, and too long for its line.
const MAX_RATE: f64 = 1e9;

/// Things per second, in whole numbers.
fn rate(state: &ProgressState, text: &mut dyn fmt::Write) {
    let per_s = state.per_sec();
    if per_s < MAX_RATE {
        // A stage that cannot be written is not shown.
        let _ = write!(text, "{}/s", count(per_s as u64));
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
        let template = template(&stage, columns());
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("rate", rate);
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
        interrupt::asked()
    }
}

/// How long runs that are alike go on: as many as are left, each as long as those before took on
/// average.
pub(crate) struct TimeLeft {
    left: usize,
    spent: Duration,
    ran: u32,
    began: Instant,
}

impl TimeLeft {
    pub(crate) fn of(runs: usize) -> TimeLeft {
        TimeLeft {
            left: runs,
            spent: Duration::ZERO,
            ran: 0,
            began: Instant::now(),
        }
    }

    /// A run begins.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// It says nothing of how long runs take.
    pub(crate) fn skip(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// It has ended; the last line, in words.
    pub(crate) fn ran(&mut self) -> String {
        let took = self.began.elapsed();
        self.took(took)
    }

    fn took(&mut self, time: Duration) -> String {
        self.skip();
        self.spent += time;
        self.ran += 1;
        let left = u32::try_from(self.left).unwrap_or(u32::MAX);
        let time = (self.spent / self.ran).saturating_mul(left);
        match time.as_secs().div_ceil(60) {
            _ if left == 0 => "the last run".to_owned(),
            0 | 1 => "about a minute left".to_owned(),
            minutes => format!("about {minutes} minutes left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use indicatif::TermLike;

    use super::*;

    /// A terminal of this many columns that keeps its drawings.
    #[derive(Debug, Clone)]
    struct Drawn(u16, Arc<Mutex<String>>);

    impl TermLike for Drawn {
        fn width(&self) -> u16 {
            self.0
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.1.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A stage's line on a terminal of this many columns, without trailing blanks.
    fn shown(stage: Stage, columns: u16, done: u64) -> String {
        let terminal = Drawn(columns, Arc::default());
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = ProgressBar::with_draw_target(stage.total, target);
        let style = ProgressStyle::with_template(template(&stage, usize::from(columns))).unwrap();
        bar.set_style(style.with_key("rate", rate));
        bar.set_message(stage.name);
        // A rate takes some time to have passed.
        std::thread::sleep(std::time::Duration::from_millis(20));
        bar.set_position(done);
        // Earlier drawings would stand over the last line on a terminal.
        terminal.1.lock().unwrap().clear();
        bar.force_draw();
        let text = terminal.1.lock().unwrap().clone();
        text.trim_end().to_owned()
    }

    #[test]
    fn bars_fit_narrow_terminals() {
        for columns in [30, 40, 60, 75, 76, 80, 120] {
            for unit in [Unit::Bytes, Unit::Items, Unit::Milliseconds] {
                for total in [None, Some(98_765_432_109)] {
                    let stage = Stage {
                        name: "writing in full",
                        total,
                        unit,
                    };
                    let text = shown(stage, columns, 45_678_901_234);
                    assert!(text.starts_with("writing in full"), "{text}");
                    let length = text.chars().count();
                    assert!(length <= usize::from(columns), "{columns} columns: {text}");
                }
            }
        }
    }

    #[test]
    fn time_left_is_the_mean_of_what_ran_times_what_is_left() {
        let mut left = TimeLeft::of(5);
        assert_eq!(left.took(Duration::from_secs(60)), "about 4 minutes left");
        // Known from an earlier session: one fewer, and no time of its own.
        left.skip();
        assert_eq!(left.took(Duration::from_secs(180)), "about 4 minutes left");
        assert_eq!(left.took(Duration::from_secs(60)), "about 2 minutes left");
        assert_eq!(left.took(Duration::from_secs(60)), "the last run");
        let mut short = TimeLeft::of(2);
        assert_eq!(short.took(Duration::from_millis(5)), "about a minute left");
    }

    #[test]
    fn rates_of_things_are_whole_numbers() {
        let stage = Stage {
            name: "checking",
            total: Some(3_000_000),
            unit: Unit::Items,
        };
        let text = shown(stage, 80, 1_234_567);
        let rate = text.split_whitespace().find(|word| word.ends_with("/s"));
        assert!(rate.is_some_and(|rate| !rate.contains('.')), "{text}");
    }
}
