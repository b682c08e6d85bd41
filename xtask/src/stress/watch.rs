//! A watchdog: nothing may take longer than a minute without a step.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread may go without a step.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Watches the threads of a process.
pub(super) struct Watch {
    threads: Vec<Mutex<Doing>>,
}

#[derive(Clone, Copy)]
struct Doing {
    /// Nothing that could be stuck, if there is none.
    what: Option<&'static str>,
    since: Instant,
}

impl Watch {
    /// Watches `threads` threads; a process without progress says where it stands
    /// and ends.
    pub(super) fn begin(threads: u64) -> Arc<Watch> {
        let idle = || {
            Mutex::new(Doing {
                what: None,
                since: Instant::now(),
            })
        };
        let watch = Arc::new(Watch {
            threads: (0..threads).map(|_| idle()).collect(),
        });
        let watching = Arc::clone(&watch);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                if watching.all().iter().any(Doing::is_stuck) {
                    watching.give_up();
                }
            }
        });
        watch
    }

    /// The thread takes a step, and does `what` now.
    pub(super) fn at(&self, thread: u64, what: &'static str) {
        self.note(thread, Some(what));
    }

    /// The thread waits for another one that is watched itself, or for nothing.
    pub(super) fn idle(&self, thread: u64) {
        self.note(thread, None);
    }

    fn note(&self, thread: u64, what: Option<&'static str>) {
        let slot = &self.threads[thread as usize];
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Doing {
            what,
            since: Instant::now(),
        };
    }

    fn all(&self) -> Vec<Doing> {
        let threads = self.threads.iter();
        threads
            .map(|slot| *slot.lock().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    fn give_up(&self) -> ! {
        eprintln!("no progress for {} s:", MAX_WAIT.as_secs());
        for (thread, doing) in self.all().iter().enumerate() {
            let what = doing.what.unwrap_or("nothing");
            let seconds = doing.since.elapsed().as_secs_f64();
            eprintln!("  thread {thread}: {what} for {seconds:.1} s");
        }
        // A debugger, if there is one, says more.
        let process = std::process::id().to_string();
        let printed = std::process::Command::new("gdb")
            .args(["-p", &process, "-batch", "-ex", "thread apply all bt 16"])
            .status();
        if let Err(error) = printed {
            eprintln!("no debugger says where the threads stand: {error}");
        }
        std::process::exit(3)
    }
}

impl Doing {
    fn is_stuck(&self) -> bool {
        self.what.is_some() && self.since.elapsed() > MAX_WAIT
    }
}
