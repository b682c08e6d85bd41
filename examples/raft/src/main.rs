//! `raft-kv serve`: a node of the replicated key-value server; `raft-kv bench`: its throughput.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use isobath::Backend;
use isobath_example_raft::bench::{self, Plan};
use isobath_example_raft::server::{self, Fault, Setup};

const USAGE: &str = "usage:
  raft-kv serve --id ID --address HOST:PORT --directory DIRECTORY [--engine isobath|isobath-pread|rocksdb]
                [--snapshot-every ENTRIES] [--pool-mib MIB] [--fault stale-reads|early-acknowledgement]
  raft-kv bench --directory DIRECTORY [--engines isobath,isobath-pread,rocksdb] [--clients N] [--seconds N]
                [--rounds N] [--value-bytes N]";

type Failure = Box<dyn Error>;

/// The options of a command line, each with its value.
struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn parse(words: &[String]) -> Result<Arguments, Failure> {
        let pairs = words.chunks(2).map(|pair| match pair {
            [name, value] if name.starts_with("--") => Ok((name[2..].to_owned(), value.clone())),
            _ => Err(Failure::from(USAGE)),
        });
        Ok(Arguments(pairs.collect::<Result<_, _>>()?))
    }

    fn text(&mut self, name: &str) -> Result<String, Failure> {
        let given = self.0.remove(name);
        given.ok_or_else(|| format!("--{name} is missing\n{USAGE}").into())
    }

    fn number(&mut self, name: &str, otherwise: u64) -> Result<u64, Failure> {
        let given = self.0.remove(name);
        let parse = |text: String| text.parse().map_err(|error| format!("--{name}: {error}"));
        Ok(given.map_or(Ok(otherwise), parse)?)
    }

    fn end(self) -> Result<(), Failure> {
        match self.0.keys().next() {
            Some(name) => Err(format!("there is no option --{name}\n{USAGE}").into()),
            None => Ok(()),
        }
    }
}

fn serve(mut arguments: Arguments) -> Result<(), Failure> {
    let fault = match arguments.0.remove("fault").as_deref() {
        None => None,
        Some("stale-reads") => Some(Fault::StaleReads),
        Some("early-acknowledgement") => Some(Fault::EarlyAcknowledgement),
        Some(other) => return Err(format!("there is no fault {other}").into()),
    };
    let engine = arguments.0.remove("engine");
    let engine = engine.as_deref().unwrap_or("isobath");
    let setup = Setup {
        id: arguments.text("id")?.parse()?,
        address: arguments.text("address")?.parse()?,
        snapshot_every: arguments.number("snapshot-every", 5_000)?,
        pool_bytes: arguments.number("pool-mib", 64)? << 20,
        backend: match engine {
            "isobath-pread" => Backend::Pread,
            _ => Backend::Auto,
        },
        fault,
    };
    let directory = PathBuf::from(arguments.text("directory")?);
    arguments.end()?;
    match engine {
        "isobath" | "isobath-pread" => server::serve(&directory, &setup)?,
        "rocksdb" => bench::serve_rocksdb(&directory, &setup)?,
        other => return Err(format!("there is no engine {other}").into()),
    }
    Ok(())
}

fn measure(mut arguments: Arguments) -> Result<(), Failure> {
    let engines = arguments.0.remove("engines");
    let plan = Plan {
        directory: PathBuf::from(arguments.text("directory")?),
        engines: engines
            .unwrap_or_else(|| "isobath".to_owned())
            .split(',')
            .map(str::to_owned)
            .collect(),
        clients: arguments.number("clients", 32)?,
        seconds: arguments.number("seconds", 10)?,
        rounds: arguments.number("rounds", 3)?,
        value_bytes: arguments.number("value-bytes", 100)?,
    };
    arguments.end()?;
    Ok(bench::run(&plan)?)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((verb, rest)) if verb == "serve" => Arguments::parse(rest).and_then(serve),
        Some((verb, rest)) if verb == "bench" => Arguments::parse(rest).and_then(measure),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
