//! Writing an export file.

use std::io::{self, BufWriter, Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use isobath::{OutputFile, Store, Tree};

use super::block::{BlockWriter, Kind};
use super::{Counts, EXPORT_FORMAT, LARGE_VALUE, RECORDS_BLOCK, Transferred, VALUE_PART};
use crate::{LabError, Monitor, Stage, Unit};

/// The data to export, and the target.
#[derive(Debug, Clone)]
pub struct ExportPlan {
    /// The file to write; `None` is standard output.
    pub to: Option<PathBuf>,
    /// The trees; empty means all.
    pub trees: Vec<String>,
    /// Whether an existing file may be replaced.
    pub overwrite: bool,
}

/// Writes trees of `store` to an export file.
///
/// The file appears under its name only when it is complete and on the drive;
/// until then it is `NAME.partial`. FIFOs and devices take the bytes themselves.
///
/// # Errors
/// Engine errors, I/O errors, a tree that does not exist, a file that exists or is one of a store.
pub fn export(
    store: &Store,
    plan: &ExportPlan,
    monitor: &dyn Monitor,
) -> Result<Transferred, LabError> {
    let trees = chosen(store, &plan.trees)?;
    let Some(path) = &plan.to else {
        let out = BlockWriter::new(BufWriter::new(io::stdout().lock()));
        let name = Path::new("standard output");
        let (out, done) = write_all(out, name, &trees, monitor)?;
        let mut out = out.into_inner();
        out.flush().map_err(LabError::io("write", name))?;
        return Ok(done);
    };
    let output = store.output_file(path, plan.overwrite)?;
    let done = write_file(&output, &trees, monitor)?;
    output.finish()?;
    Ok(done)
}

fn chosen(store: &Store, names: &[String]) -> Result<Vec<Tree>, LabError> {
    if names.is_empty() {
        let all = store.trees()?;
        return all.iter().map(|t| Ok(store.tree(&t.name)?)).collect();
    }
    names.iter().map(|n| Ok(store.tree(n)?)).collect()
}

fn write_file(
    output: &OutputFile,
    trees: &[Tree],
    monitor: &dyn Monitor,
) -> Result<Transferred, LabError> {
    let out = BlockWriter::new(BufWriter::with_capacity(1 << 20, output.file()));
    let (out, done) = write_all(out, output.path(), trees, monitor)?;
    out.into_inner()
        .into_inner()
        .map_err(|e| LabError::io("write", output.path())(e.into_error()))?;
    Ok(done)
}

fn write_all<W: Write>(
    mut out: BlockWriter<W>,
    path: &Path,
    trees: &[Tree],
    monitor: &dyn Monitor,
) -> Result<(BlockWriter<W>, Transferred), LabError> {
    monitor.begin(Stage {
        name: "exporting",
        total: None,
        unit: Unit::Bytes,
    });
    let mut total = Transferred::default();
    out.write(Kind::Header, &header(trees))
        .map_err(LabError::io("write", path))?;
    for (ordinal, tree) in trees.iter().enumerate() {
        let counts = write_tree(&mut out, path, ordinal, tree, monitor)?;
        counts.add_to(&mut total);
    }
    let end = [total.trees, total.records, total.value_bytes];
    out.write(Kind::End, end.map(u64::to_le_bytes).as_flattened())
        .map_err(LabError::io("write", path))?;
    total.file_bytes = out.bytes();
    Ok((out, total))
}

fn header(trees: &[Tree]) -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let mut payload = Vec::new();
    payload.extend_from_slice(&EXPORT_FORMAT.to_le_bytes());
    payload.extend_from_slice(&[0; 2]);
    payload.extend_from_slice(&(trees.len() as u32).to_le_bytes());
    payload.extend_from_slice(&now.to_le_bytes());
    push_text(&mut payload, concat!("isobath ", env!("CARGO_PKG_VERSION")));
    payload
}

/// Text after its length in 16 bits. Tree names are far shorter than the
/// length can say; one that is not would be refused by the reader's counts.
fn push_text(payload: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    payload.extend_from_slice(&length.to_le_bytes());
    payload.extend_from_slice(&bytes[..usize::from(length)]);
}

fn write_tree<W: Write>(
    out: &mut BlockWriter<W>,
    path: &Path,
    ordinal: usize,
    tree: &Tree,
    monitor: &dyn Monitor,
) -> Result<Counts, LabError> {
    let failed = |e| LabError::io("write", path)(e);
    let mut begin = Vec::new();
    begin.extend_from_slice(&(ordinal as u32).to_le_bytes());
    push_text(&mut begin, tree.name());
    out.write(Kind::TreeBegin, &begin).map_err(failed)?;

    let mut counts = Counts::default();
    let mut block = Vec::with_capacity(RECORDS_BLOCK + (LARGE_VALUE as usize) + 2048);
    for record in tree.range((Bound::<&[u8]>::Unbounded, Bound::Unbounded)) {
        let (key, value) = record?;
        counts.record(key.len(), value.len() as u64);
        let large = value.len() as u64 > LARGE_VALUE;
        if large || block.len() + key.len() + value.len() > RECORDS_BLOCK {
            flush_records(out, &mut block, monitor).map_err(failed)?;
            monitor.check()?;
        }
        if large {
            write_large(out, path, &key, value.len() as u64, &value[..], monitor)?;
        } else {
            block.extend_from_slice(&(key.len() as u32).to_le_bytes());
            block.extend_from_slice(&(value.len() as u32).to_le_bytes());
            block.extend_from_slice(&key);
            block.extend_from_slice(&value);
        }
    }
    flush_records(out, &mut block, monitor).map_err(failed)?;

    let end = [counts.records, counts.key_bytes, counts.value_bytes];
    out.write(Kind::TreeEnd, end.map(u64::to_le_bytes).as_flattened())
        .map_err(failed)?;
    Ok(counts)
}

fn flush_records<W: Write>(
    out: &mut BlockWriter<W>,
    block: &mut Vec<u8>,
    monitor: &dyn Monitor,
) -> io::Result<()> {
    if !block.is_empty() {
        out.write(Kind::Records, block)?;
        monitor.advance(block.len() as u64);
        block.clear();
    }
    Ok(())
}

fn write_large<W: Write>(
    out: &mut BlockWriter<W>,
    path: &Path,
    key: &[u8],
    length: u64,
    mut value: impl Read,
    monitor: &dyn Monitor,
) -> Result<(), LabError> {
    let failed = |e| LabError::io("write", path)(e);
    let mut begin = Vec::with_capacity(12 + key.len());
    begin.extend_from_slice(&length.to_le_bytes());
    begin.extend_from_slice(&(key.len() as u32).to_le_bytes());
    begin.extend_from_slice(key);
    out.write(Kind::LargeRecord, &begin).map_err(failed)?;
    let mut part = vec![0; VALUE_PART];
    let mut left = length;
    while left > 0 {
        monitor.check()?;
        let take = usize::try_from(left).map_or(VALUE_PART, |l| l.min(VALUE_PART));
        value
            .read_exact(&mut part[..take])
            .map_err(|e| LabError::Verify(format!("a value ended early: {e}")))?;
        out.write(Kind::ValuePart, &part[..take]).map_err(failed)?;
        monitor.advance(take as u64);
        left -= take as u64;
    }
    Ok(())
}
