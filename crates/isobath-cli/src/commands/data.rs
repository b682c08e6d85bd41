//! get, put, delete.

use std::io::{self, Read, Write};
use std::path::Path;

use isobath::{OutputFile, Store, Tree};
use isobath_lab::load::InputFile;
use isobath_lab::{LabError, escape, hex};
use serde_json::{Map, Value};

use super::store::{self, SMALL_POOL};
use crate::args::{DeleteArgs, GetArgs, GlobalArgs, PutArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{Output, put_bytes, size};
use crate::progress::Progress;

/// Bytes moved at a time between a file and a value.
const PIECE: usize = 1 << 20;

fn absent(key: &[u8]) -> Failure {
    Failure::NotFound(format!("there is no key `{}`", escape(key)))
}

pub(crate) fn get(args: &GetArgs, out: &mut Output) -> Result<(), Failure> {
    let key = store::key(&args.key, args.hex)?;
    let store = store::read(&args.store, SMALL_POOL)?;
    let tree = store::tree(&store, &args.tree)?;
    if let Some(path) = &args.output {
        let bytes = save(&store, &tree, &key, path)?;
        if out.json() {
            let mut object = Map::new();
            put_bytes(&mut object, "key", &key);
            object.insert("value_bytes".into(), bytes.into());
            object.insert("output".into(), path.display().to_string().into());
            out.document(&Value::Object(object))?;
        }
    } else if args.raw {
        let Some(mut reader) = tree.reader(&key)? else {
            return Err(absent(&key));
        };
        let mut piece = vec![0; PIECE];
        loop {
            let read = reader.read(&mut piece).map_err(engine_read)?;
            if read == 0 {
                break;
            }
            out.raw(&piece[..read])?;
        }
    } else {
        let Some(value) = tree.get(&key)? else {
            return Err(absent(&key));
        };
        if out.json() {
            let mut object = Map::new();
            put_bytes(&mut object, "key", &key);
            put_bytes(&mut object, "value", &value);
            out.document(&Value::Object(object))?;
        } else if args.hex {
            out.line(&hex(&value))?;
        } else {
            out.line(&escape(&value))?;
        }
    }
    store.close()?;
    Ok(())
}

fn engine_read(error: io::Error) -> Failure {
    LabError::streamed("read a value of", "the store".as_ref(), error).into()
}

/// Writes a value to a file; answers its length.
fn save(store: &Store, tree: &Tree, key: &[u8], path: &Path) -> Result<u64, Failure> {
    let Some(mut reader) = tree.reader(key)? else {
        return Err(absent(key));
    };
    let mut output = store.output_file(path, true)?;
    let copied = copy(&mut reader, &mut output)?;
    output.finish()?;
    Ok(copied)
}

fn copy(reader: &mut impl Read, output: &mut OutputFile) -> Result<u64, Failure> {
    let mut piece = vec![0; PIECE];
    let mut total = 0;
    loop {
        let read = reader.read(&mut piece).map_err(engine_read)?;
        if read == 0 {
            return Ok(total);
        }
        output
            .write_all(&piece[..read])
            .map_err(LabError::io("write", output.path()))?;
        total += read as u64;
    }
}

pub(crate) fn put(args: &PutArgs, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    let key = store::key(&args.key, args.hex)?;
    let given = match &args.value {
        Some(text) => Some(store::bytes(text, args.hex)?),
        None => None,
    };
    let progress = Progress::start(global)?;
    store::remove_unfinished(&args.store, &args.create);
    // The input is opened before the store, so that a wrong name changes nothing.
    let input = match &args.file {
        None => None,
        Some(path) => Some(InputFile::open(Some(path), &progress)?),
    };
    let target = store::write_or_create(&args.store, &args.create, SMALL_POOL)?;
    let bytes = target.finish(|target| {
        let tree = target.tree(&args.tree, &args.new_tree)?;
        match (given, input) {
            (Some(value), _) => {
                tree.insert(&key, &value)?;
                Ok(value.len() as u64)
            }
            (None, Some(mut input)) => stream(&tree, &key, &mut input),
            (None, None) => Err(Failure::Usage("give a value, or --file".into())),
        }
    })?;
    if out.json() {
        let mut object = Map::new();
        put_bytes(&mut object, "key", &key);
        object.insert("value_bytes".into(), bytes.into());
        out.document(&Value::Object(object))
    } else {
        out.line(&format!("stored {} under `{}`", size(bytes), escape(&key)))
    }
}

/// Stores the input as one value, or nothing; its length.
fn stream(tree: &Tree, key: &[u8], input: &mut InputFile<'_>) -> Result<u64, Failure> {
    let mut writer = tree.writer(key)?;
    let mut piece = vec![0; PIECE];
    let mut total = 0;
    loop {
        interrupt::check()?;
        let read = match input.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(LabError::io("read", &input.path)(e).into()),
        };
        writer
            .write_all(&piece[..read])
            .map_err(|e| LabError::streamed("store", &input.path, e))?;
        total += read as u64;
    }
    writer.finish()?;
    Ok(total)
}

pub(crate) fn delete(args: &DeleteArgs, out: &mut Output) -> Result<(), Failure> {
    let key = store::key(&args.key, args.hex)?;
    let store = store::write(&args.store, SMALL_POOL)?;
    let tree = store::tree(&store, &args.tree)?;
    let removed = tree.remove(&key)?;
    store.close()?;
    if !removed {
        return Err(absent(&key));
    }
    if out.json() {
        let mut object = Map::new();
        put_bytes(&mut object, "key", &key);
        object.insert("removed".into(), true.into());
        out.document(&Value::Object(object))
    } else {
        out.line(&format!("removed `{}`", escape(&key)))
    }
}
