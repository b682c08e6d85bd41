//! The process that writes until it is killed.

use std::io::Write as _;
use std::path::PathBuf;

use isobath::{Durability, Error, Isolation, Store, TransactionOptions, Tree};

use super::journal::{Journal, now};
use super::{Problem, Records, THREADS, Way, options};
use crate::data::{value, version_of};
use crate::history::{Key, Level, Read, Seen, Transaction, Version, Write};
use crate::random::Random;

/// Options of the writer process.
#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    #[arg(long)]
    backend: Way,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    round: u64,
    #[arg(long)]
    store: PathBuf,
    #[arg(long)]
    journals: PathBuf,
}

/// One thread of the writer.
struct Client<'r> {
    store: Store,
    trees: Vec<Tree>,
    records: &'r Records,
    own: &'r [Key],
    journal: Journal,
    random: Random,
    next: Version,
}

/// Writes until it is killed; returns only if something is wrong.
pub(crate) fn write(args: &WriterArgs) -> bool {
    let Err(problem) = run(args) else {
        return true;
    };
    eprintln!("the writer: {problem}");
    false
}

fn run(args: &WriterArgs) -> Result<(), Problem> {
    let records = Records::new();
    let store = Store::open(&[&args.store], &options(args.backend))
        .map_err(|error| format!("opening: {error}"))?;
    let mut trees = Vec::new();
    for tree in &records.universe.trees {
        trees.push(store.tree(&tree.name).map_err(|error| error.to_string())?);
    }
    println!("writing");
    std::io::stdout()
        .flush()
        .map_err(|error| error.to_string())?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let journal = Journal::create(&args.journals, args.round, thread)
                .map_err(|error| error.to_string())?;
            let mut client = Client {
                store: store.clone(),
                trees: trees.clone(),
                records: &records,
                own: &records.own[thread as usize],
                journal,
                random: Random::new(args.seed ^ args.round << 20 ^ thread << 50),
                next: args.round << 40 | thread << 32 | 1,
            };
            threads.push(scope.spawn(move || client.run()));
        }
        let mut first = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err("a panic".to_owned()));
            first = first.and(ended);
        }
        first
    })
}

impl Client<'_> {
    fn run(&mut self) -> Result<(), Problem> {
        loop {
            if self.random.chance(40) {
                self.transact()?;
            } else {
                self.single()?;
            }
        }
    }

    fn version(&mut self) -> Version {
        self.next += 1;
        self.next
    }

    fn bytes(&mut self, version: Version) -> Vec<u8> {
        let length = match self.random.below(100) {
            0..2 => 20_000 + self.random.below(200_000),
            2..20 => 1_000 + self.random.below(3_000),
            _ => 12 + self.random.below(300),
        };
        value(version, length as usize)
    }

    fn single(&mut self) -> Result<(), Problem> {
        let key = self.random.one_of(self.own);
        let version = self.version();
        let present = self.random.chance(80);
        let (tree, name) = self.records.universe.record(key);
        let bytes = self.bytes(version);
        let mut transaction = Transaction::new(Level::Single, now());
        transaction.writes.push(Write {
            key,
            version,
            present,
        });
        self.note(&mut transaction)?;
        // A removal that finds nothing changes and logs nothing: it makes nothing durable.
        let done = if present {
            self.trees[tree].insert(name, &bytes).map(|()| true)
        } else {
            self.trees[tree].remove(name)
        };
        self.answered(done)
    }

    fn note(&mut self, transaction: &mut Transaction) -> Result<(), Problem> {
        let noted = self.journal.ask(transaction);
        noted.map_err(|error| format!("the journal: {error}"))
    }

    /// Notes whether the request has changed anything.
    fn answered(&mut self, done: Result<bool, Error>) -> Result<(), Problem> {
        let committed = match done {
            Ok(changed) => changed,
            Err(error) if error.is_retryable() => false,
            Err(error) => return Err(format!("a write failed: {error}")),
        };
        let noted = self.journal.answer(committed);
        noted.map_err(|error| format!("the journal: {error}"))
    }

    /// Replaces some counters and some records of its own, all or none.
    fn transact(&mut self) -> Result<(), Problem> {
        let begin = now();
        let failed = |error: Error| format!("in a transaction: {error}");
        let serializable = self.random.chance(40);
        let durable = self.random.chance(60);
        let (level, isolation) = if serializable {
            (Level::Serializable, Isolation::Serializable)
        } else {
            (Level::Snapshot, Isolation::Snapshot)
        };
        let durability = if durable {
            Durability::Synced
        } else if self.random.chance(50) {
            Durability::Buffered { window_ms: 3 }
        } else {
            Durability::None
        };
        let options = TransactionOptions::new()
            .isolation(isolation)
            .durability(durability);
        let mut running = self
            .store
            .begin_with(options)
            .map_err(|error| failed(error.into()))?;
        let mut noted = Transaction::new(level, begin);
        noted.durable = durable;
        let mut keys: Vec<Key> = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            keys.push(self.random.one_of(&self.records.counters));
            keys.push(self.random.one_of(self.own));
        }
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let (tree, name) = self.records.universe.record(key);
            let tree = self.trees[tree].clone();
            let found = match running.get(&tree, name) {
                Ok(found) => found,
                // It begins again, and was never asked for.
                Err(error) if error.is_retryable() => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
            let seen = match found {
                None => Seen::Absent,
                Some(bytes) => match version_of(&bytes) {
                    Some(version) => Seen::Version(version),
                    None => return Err(format!("{} bytes that was never written", bytes.len())),
                },
            };
            noted.reads.push(Read { key, seen });
            let version = self.version();
            let bytes = self.bytes(version);
            running.insert(&tree, name, &bytes).map_err(failed)?;
            noted.writes.push(Write {
                key,
                version,
                present: true,
            });
        }
        self.note(&mut noted)?;
        let done = running.commit().map(|()| true);
        self.answered(done.map_err(Error::from))
    }
}
