//! A process that reads the store while another one writes it.

use std::path::{Path, PathBuf};
use std::process::Command;

use isobath::{Error, Store};

use super::mode::Mode;
use super::world::{self, ACCOUNTS, ACCOUNTS_SUM, COUNTERS, ZERO, main_record, shared_key};
use super::{Place, mode_of};
use crate::crash::Problem;
use crate::data::version_of;

/// Times that a reader is opened again because the writer has left it behind.
const TRIES: usize = 50;

/// Options of the reader process.
#[derive(Debug, clap::Args)]
pub(crate) struct ReaderArgs {
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    mode: String,
}

/// Runs a reader in a process of its own.
pub(super) fn start_and_judge(directory: &Path, mode: &Mode) -> Result<(), Problem> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(this)
        .arg("stress-reader")
        .arg("--directory")
        .arg(directory)
        .args(["--mode", &mode.to_string()])
        .output()
        .map_err(|error| format!("starting a reader: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("a reader, {}: {said}", output.status))
}

/// Reads all of the store once, and compares what it says at one instant; whether it belongs
/// together.
pub(crate) fn read(args: &ReaderArgs) -> bool {
    let mut last = String::new();
    for _ in 0..TRIES {
        match read_once(args) {
            Ok(()) => return true,
            Err(Stop::Again(error)) => last = error.to_string(),
            Err(Stop::Wrong(problem)) => {
                eprintln!("{problem}");
                return false;
            }
        }
    }
    // A busy writer may leave each of them behind.
    println!("left behind {TRIES} times: {last}");
    true
}

enum Stop {
    /// The writer has used again what the reader needs.
    Again(Error),
    Wrong(Problem),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Stop {
        match error.into() {
            error @ (Error::ReaderOverrun { .. } | Error::SnapshotTooOld) => Stop::Again(error),
            error => Stop::Wrong(error.to_string()),
        }
    }
}

fn read_once(args: &ReaderArgs) -> Result<(), Stop> {
    let mode = mode_of(&args.mode).map_err(Stop::Wrong)?;
    mode.sizes().switch_on();
    let place = Place::new(&args.directory, &mode);
    let store = Store::open(&place.files, &mode.options().workers(1).read_only(true))?;
    let (main, shared) = (store.tree("main")?, store.tree("shared")?);
    let mut sum = 0u64;
    for at in COUNTERS..COUNTERS + ACCOUNTS {
        let found = shared.get(shared_key(at))?;
        let Some(number) = found.as_deref().and_then(version_of) else {
            return Err(Stop::Wrong(format!("shared/{at} is no number")));
        };
        sum = sum.wrapping_add(number).wrapping_sub(ZERO);
    }
    if sum != ACCOUNTS_SUM {
        return Err(Stop::Wrong(format!("the accounts' sum is {sum}")));
    }
    let mut last: Option<u64> = None;
    for record in main.range(..) {
        let (key, bytes) = record?;
        let number = main_record(&key).filter(|number| last.is_none_or(|last| last < *number));
        let Some(number) = number.filter(|_| version_of(&bytes).is_some()) else {
            let key = String::from_utf8_lossy(&key).into_owned();
            let what = format!("main has {key:?}, out of order or never written");
            return Err(Stop::Wrong(what));
        };
        last = Some(number);
    }
    for owner in 0..world::OWNERS {
        if let Ok(tree) = store.tree(&world::scratch_name(owner)) {
            let counted = tree.count(..)?;
            if counted > world::SCRATCH {
                return Err(Stop::Wrong(format!("{counted} records in a scratch tree")));
            }
        }
    }
    Ok(store.close()?)
}
