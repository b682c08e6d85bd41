//! The files of a running sequence, and how they are used.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use isobath::{Options, Store};

use crate::model::{Effect, Model, Records, compare};
use crate::plan::{By, Plan};

/// Longest that one process of the command may run.
pub(crate) const LONGEST_COMMAND: Duration = Duration::from_secs(100);
/// The exit code for what the engine refuses.
pub(crate) const FAILED: i32 = 3;

/// The problem, in a sentence.
pub(crate) type Wrong = String;

/// A backup file, with those that it adds to before it.
pub(crate) struct Backup {
    pub(crate) chain: Vec<PathBuf>,
    pub(crate) model: Model,
    /// The store that it is of.
    pub(crate) identity: u32,
}

/// A store, its copies, and what must be in them.
pub(crate) struct World {
    pub(crate) plan: Plan,
    directory: tempfile::TempDir,
    /// On a file system whose drive may have other blocks.
    elsewhere: Option<tempfile::TempDir>,
    pub(crate) store: PathBuf,
    pub(crate) model: Model,
    pub(crate) backups: Vec<Backup>,
    pub(crate) exports: Vec<(PathBuf, Model)>,
    pub(crate) identity: u32,
    /// Of names, and of what varies from step to step.
    pub(crate) number: usize,
    pub(crate) killed: u64,
}

/// What one process answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// None if it was killed.
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Answer {
    /// Refuses other exit codes.
    pub(crate) fn expect(self, code: i32) -> Result<Answer, Wrong> {
        if self.code == Some(code) {
            return Ok(self);
        }
        Err(format!(
            "the command ended with {:?} instead of {code}: {}",
            self.code, self.err
        ))
    }
}

pub(crate) fn engine<E: Display>(what: &str) -> impl Fn(E) -> Wrong + '_ {
    move |error| format!("{what}: {error}")
}

fn system(path: &Path) -> impl Fn(std::io::Error) -> Wrong + '_ {
    move |error| format!("{}: {error}", path.display())
}

impl World {
    /// Makes the store.
    pub(crate) fn new(plan: Plan) -> Result<World, Wrong> {
        let made = |parent: &Path| {
            let prefix = tempfile::Builder::new()
                .prefix("isobath-sequence-")
                .tempdir_in(parent);
            prefix.map_err(|e| e.to_string())
        };
        let parent = std::env::var_os("ISOBATH_SEQUENCES_DIRECTORY");
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        let memory = Path::new("/dev/shm");
        let directory = made(&parent)?;
        let mut world = World {
            store: directory.path().join("0.iso"),
            plan,
            directory,
            elsewhere: memory.is_dir().then(|| made(memory)).transpose()?,
            model: Model::default(),
            backups: Vec::new(),
            exports: Vec::new(),
            identity: 0,
            number: 0,
            killed: 0,
        };
        let mut options = world.options().log_bytes(world.plan.log_bytes);
        if world.plan.separate_log {
            options = options.log_path(world.store.with_extension("log"));
        }
        let store = Store::create(&[&world.store], &options).map_err(engine("creating"))?;
        store.close().map_err(engine("closing a new store"))?;
        world.number += 1;
        Ok(world)
    }

    /// The options of one opening; small, so that everything happens often.
    pub(crate) fn options(&self) -> Options {
        Options::new()
            .pool_bytes(if self.number.is_multiple_of(3) {
                16 << 20
            } else {
                4 << 20
            })
            .workers(1 + self.number % 2)
            .tasks_per_worker(16)
            .segment_bytes(self.plan.layout.segment_bytes)
            .log_bytes(self.plan.log_bytes)
    }

    /// A path that nothing has yet.
    pub(crate) fn fresh(&mut self, extension: &str) -> PathBuf {
        self.number += 1;
        let name = format!("{}.{extension}", self.number);
        self.directory.path().join(name)
    }

    /// Writes an input file.
    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<PathBuf, Wrong> {
        let path = self.fresh("input");
        fs::write(&path, bytes).map_err(system(&path))?;
        Ok(path)
    }

    /// Copies the store's files to the other file system, or beside the store.
    pub(crate) fn copy_files(&mut self) -> Result<PathBuf, Wrong> {
        self.number += 1;
        let there = match &self.elsewhere {
            Some(elsewhere) if !self.store.starts_with(elsewhere.path()) => elsewhere.path(),
            _ => self.directory.path(),
        };
        let folder = there.join(format!("{}.copy", self.number));
        fs::create_dir(&folder).map_err(system(&folder))?;
        for from in [self.store.clone(), self.store.with_extension("log")] {
            if let Some(name) = from.file_name().filter(|_| from.exists()) {
                fs::copy(&from, folder.join(name)).map_err(system(&from))?;
            }
        }
        Ok(folder.join(self.store.file_name().unwrap_or_default()))
    }

    /// Forgets a store that is of no further use.
    pub(crate) fn remove(&self, store: &Path) {
        let _ = fs::remove_file(store);
        let _ = fs::remove_file(store.with_extension("log"));
    }

    /// Opens a store, works with it and closes it.
    pub(crate) fn with_store<T>(
        &self,
        path: &Path,
        options: &Options,
        work: impl FnOnce(&Store) -> Result<T, Wrong>,
    ) -> Result<T, Wrong> {
        let store = Store::open(&[path], options).map_err(engine("opening"))?;
        let done = work(&store);
        let closed = store.close().map_err(engine("closing"));
        let done = done?;
        closed.map(|()| done)
    }

    /// The same with the sequence's own store, for writing.
    pub(crate) fn with_own<T>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, Wrong>,
    ) -> Result<T, Wrong> {
        self.with_store(&self.store, &self.options(), work)
    }

    /// Compares a store that was closed with what must be in it, and checks it.
    pub(crate) fn verify(&self, path: &Path, model: &Model) -> Result<(), Wrong> {
        let options = self.options().read_only(true);
        self.with_store(path, &options, |store| {
            same(model, &read(store)?)?;
            let report = store.check(&mut |_, _| {}).map_err(engine("checking"))?;
            match report.problems.first() {
                None => Ok(()),
                Some(first) => Err(format!(
                    "check finds {} problems: {first}",
                    report.problems.len()
                )),
            }
        })
    }

    /// Starts the command; options of opening come behind `args`.
    fn start(&self, args: &[OsString], out: &Path, err: &Path) -> Result<Child, Wrong> {
        let created = |path: &Path| File::create(path).map_err(system(path));
        Command::new(env!("CARGO_BIN_EXE_isobath"))
            .args(args)
            .env_remove("ISOBATH_STORE")
            .current_dir(self.directory.path())
            .stdin(std::process::Stdio::null())
            .stdout(created(out)?)
            .stderr(created(err)?)
            .spawn()
            .map_err(|e| format!("the command does not start: {e}"))
    }

    /// Runs the command, and kills it after `kill`.
    pub(crate) fn run(&mut self, args: &[OsString], kill: Option<u64>) -> Result<Answer, Wrong> {
        let (out, err) = (self.fresh("out"), self.fresh("err"));
        let mut child = self.start(args, &out, &err)?;
        let limit = kill.map_or(LONGEST_COMMAND, Duration::from_millis);
        let ended = wait(&mut child, limit)?;
        let status = match ended {
            Some(status) => status,
            None => {
                child.kill().map_err(|e| e.to_string())?;
                let status = child.wait().map_err(|e| e.to_string())?;
                if kill.is_none() {
                    return Err(format!("the command does not end: {args:?}"));
                }
                self.killed += 1;
                status
            }
        };
        let answer = Answer {
            code: status.code(),
            out: fs::read(&out).map_err(system(&out))?,
            err: fs::read_to_string(&err).map_err(system(&err))?,
        };
        let _ = (fs::remove_file(&out), fs::remove_file(&err));
        if answer.err.contains("panicked") {
            return Err(format!("the command panicked: {}", answer.err));
        }
        Ok(answer)
    }

    /// A verb on the sequence's own store.
    pub(crate) fn verb(&self, verb: &[&str], args: &[OsString]) -> Vec<OsString> {
        self.verb_on(&self.store, verb, args)
    }

    pub(crate) fn verb_on(&self, store: &Path, verb: &[&str], args: &[OsString]) -> Vec<OsString> {
        let mut all: Vec<OsString> = verb[..1].iter().map(Into::into).collect();
        all.extend(["--quiet".into(), "-s".into(), store.into()]);
        all.extend(["--pool".into(), "4MiB".into()]);
        all.extend(["--workers".into(), (1 + self.number % 2).to_string().into()]);
        all.extend(verb[1..].iter().map(Into::into));
        all.extend(args.iter().cloned());
        all
    }

    /// Runs a verb that has these effects if it ends with `code`; and whatever a process that is
    /// killed leaves is accepted.
    pub(crate) fn change(
        &mut self,
        by: By,
        args: &[OsString],
        code: i32,
        effects: &[Effect],
    ) -> Result<(), Wrong> {
        let kill = match by {
            By::Killed(after) => Some(after),
            By::Command | By::Api => None,
        };
        let answer = self.run(args, kill)?;
        if answer.code.is_some() {
            answer.expect(code)?;
            self.model.apply(effects);
            return Ok(());
        }
        let unrecovered = self.look_at_killed()?;
        let found = self.with_own(read)?;
        same(&unrecovered, &found).map_err(|wrong| format!("recovery after a reader: {wrong}"))?;
        self.model
            .may_become(&found, effects)
            .map_err(|wrong| format!("after a kill: {wrong}"))?;
        self.model = found;
        Ok(())
    }

    /// What a store holds whose process was killed, as readers see it.
    fn look_at_killed(&mut self) -> Result<Model, Wrong> {
        let verb: &[&str] = match self.number % 4 {
            0 => &["get", "t00001"],
            1 => &["scan", "--count"],
            2 => &["stats"],
            _ => &["check"],
        };
        let answer = self.run(&self.verb(verb, &[]), None)?;
        let is_empty = answer.code == Some(FAILED) && answer.err.contains("there is no tree");
        let is_read = matches!(answer.code, Some(0)) || verb[0] == "get" && answer.code == Some(1);
        if !is_empty && !is_read {
            return Err(format!("after a kill, {verb:?} answers {answer:?}"));
        }
        // The next writer recovers the state read now.
        self.with_store(&self.store, &self.options().read_only(true), read)
    }
}

/// How a process ended within `limit`.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, Wrong> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(Some(status));
        }
        let left = limit.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(left.min(Duration::from_millis(1)));
    }
}

/// Everything that a store holds.
pub(crate) fn read(store: &Store) -> Result<Model, Wrong> {
    let mut model = Model::default();
    for info in store.trees().map_err(engine("listing trees"))? {
        let tree = store.tree(&info.name).map_err(engine("opening a tree"))?;
        let mut records = Records::new();
        for record in tree.range(..) {
            let (key, value) = record.map_err(engine("reading a record"))?;
            records.insert(key, value);
        }
        model.trees.insert(info.name, records);
    }
    Ok(model)
}

fn same(expected: &Model, found: &Model) -> Result<(), Wrong> {
    let names = |model: &Model| model.trees.keys().cloned().collect::<Vec<_>>();
    if names(expected) != names(found) {
        return Err(format!(
            "the trees are {:?} instead of {:?}",
            names(found),
            names(expected)
        ));
    }
    for (name, records) in &expected.trees {
        compare(records, &found.trees[name]).map_err(|wrong| format!("tree {name:?}: {wrong}"))?;
    }
    Ok(())
}
