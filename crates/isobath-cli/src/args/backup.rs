//! Verbs that copy whole stores.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{Size, StoreArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
The file holds the store's pages as they are: `isobath restore` needs the same \
format of stores. `isobath export` writes a file that any version can read. It \
appears under its name only when it is complete, on the drive and read back; \
until then it is FILE.partial.

The store may be in use: the file holds what was committed when the verb began. \
It may also be one that was not closed. Backups of both kinds are full ones, and \
others cannot add to them: for that the store is closed (`isobath recover` does so \
after a crash), or its process makes them: `Store::backup` in Rust.

--since copies only pages that are new or changed since that backup, which may be \
an incremental one itself. To restore, all of them are needed, in order.

Examples:
  isobath backup -s my.iso sunday.backup
  isobath backup -s my.iso monday.backup --since sunday.backup
  isobath backup -s my.iso tuesday.backup --since monday.backup
  isobath restore sunday.backup monday.backup tuesday.backup new.iso")]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The file to write
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Copy only pages that have changed since this backup
    #[arg(long, value_name = "BASE", value_hint = ValueHint::FilePath)]
    pub(crate) since: Option<PathBuf>,
    /// Replace the file where it exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not read the file back from the drive
    #[arg(long)]
    pub(crate) no_verify: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every byte of the backups is verified, then the store is opened once, which applies \
the log in the last backup, and closed. --check reads all of it once more. If \
anything is wrong no store is left.

The restored store is a store of its own: the first backup of it has to be a full \
one. It lies compactly, whatever the size of the first one was; segments and log \
have the sizes that they had.

A store of several files: repeat --also for those after the first.

Examples:
  isobath restore sunday.backup new.iso
  isobath restore sunday.backup monday.backup new.iso --check
  isobath restore sunday.backup a.iso --also b.iso")]
pub(crate) struct RestoreArgs {
    /// A full backup, then those that add to it, in order; at last the store to make
    #[arg(value_name = "BACKUP... STORE", num_args = 2.., required = true, value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// A further file or block device of the store; can be repeated
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) also: Vec<PathBuf>,
    /// Most bytes that the store may grow to, beside the 64 KiB in front of each file [default: no
    /// limit]
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<Size>,
    /// Memory for the buffer pool [default: 256MiB, at most a quarter of the memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool: Option<Size>,
    /// Read and verify the whole store afterwards
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
For a store that cannot be opened, or in which `isobath check` finds problems, where \
there is no backup. The corrupt store is only read. Pages are looked for where \
the store says that they are; where it cannot say so, or they are corrupt there, the \
whole volume is searched for the newest sound copy of each. Trees whose names are lost \
are called lost-NUMBER.

What is printed names every page, range of keys and value that could not be read, and \
pages of which only an older copy was found: records there may be out of date. Exits \
with 1 if there is any such. It needs some 50 bytes of memory per page, and 100 to 200 \
more for a search.

Examples:
  isobath salvage -s broken.iso saved.iso
  isobath check -s saved.iso")]
pub(crate) struct SalvageArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The store to make
    #[arg(value_name = "STORE", value_hint = ValueHint::FilePath)]
    pub(crate) to: PathBuf,
    /// Search the whole volume for the pages of the store, whatever it says of them itself
    #[arg(long)]
    pub(crate) search: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
COPY is a store of its own, which anyone may open for reading: it has what the source \
had after one of its transactions. The source may be in use by the process that writes \
it, which does not notice. The verb ends when that closes the source, with --once when \
there is nothing new, and with Ctrl-C. Run it again, and it goes on: the copy notes how \
far it is, in the transaction that brings it there, in the tree `.isobath-follow`.

Where the source's log no longer has what the copy lacks, all of the source is compared \
with it. Large transactions and bulk loads are not in the log by their keys: their trees \
are compared.

A copy that was restored from a backup follows from the backup's position, which \
`isobath backup` prints.

Examples:
  isobath follow my.iso copy.iso
  isobath follow my.iso copy.iso --once
  isobath follow my.iso restored.iso --from POSITION")]
pub(crate) struct FollowArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The copy: a store that an earlier run has made, or a new one
    #[arg(value_name = "COPY", value_hint = ValueHint::FilePath)]
    pub(crate) copy: PathBuf,
    /// The position in the source's log that the restored store COPY is at
    #[arg(long, value_name = "POSITION")]
    pub(crate) from: Option<String>,
    /// End as soon as there is nothing new
    #[arg(long)]
    pub(crate) once: bool,
}
