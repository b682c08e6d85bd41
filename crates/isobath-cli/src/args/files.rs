//! Directory trees in a store.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::data::anywhere;
use super::{CreateArgs, StoreArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
A store holds directories, files, symbolic and hard links as a file system does. \
Each change is one step that survives crashes: a directory is imported, moved, \
replaced or removed whole or not at all. Contents are verified whenever they \
are read. Mounted, any program reads them.

Paths begin at the root of the tree, with or without a slash. Symbolic links \
in them are not followed.

Example:
  isobath files import -s my.iso --create ./photos
  isobath files ls -s my.iso -l /photos
  isobath files mv -s my.iso /photos /holidays
  isobath files mount -s my.iso /mnt/photos
  isobath files export -s my.iso /holidays ./out")]
#[command(mut_args(anywhere))]
#[command(override_usage = "isobath files --store <PATH> [OPTIONS] <COMMAND>")]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The tree of the store that holds the files
    #[arg(short, long, value_name = "NAME", default_value = "files")]
    pub(crate) tree: String,
    #[command(subcommand)]
    pub(crate) verb: FilesVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FilesVerb {
    /// Copy a directory, a file or a link into the store, as one step
    Import(FilesImportArgs),
    /// Copy a directory, a file or a link out of the store
    #[command(after_help = "\
The copy has the contents, holes, links, permissions and times of the original; \
made by root, its owners too. It appears under its name when it is complete.

Examples:
  isobath files export -s my.iso / ./out
  isobath files export -s my.iso /photos/beach.jpg beach.jpg")]
    Export {
        /// The path in the store
        path: OsString,
        /// The directory or file to make, which must not exist
        #[arg(value_name = "TO", value_hint = ValueHint::AnyPath)]
        to: PathBuf,
    },
    /// List a directory
    #[command(after_help = "Example:\n  isobath files ls -s my.iso -lR /photos")]
    Ls {
        /// The path in the store
        #[arg(default_value = "/")]
        path: OsString,
        /// Permissions, names, owner, group, size and time of each entry
        #[arg(short, long)]
        long: bool,
        /// With everything below it, by path
        #[arg(short = 'R', long)]
        recursive: bool,
    },
    /// Show the properties of a file, directory or link
    #[command(after_help = "Example:\n  isobath files stat -s my.iso /photos/beach.jpg")]
    Stat {
        /// The path in the store
        path: OsString,
    },
    /// Print the contents of a file, exactly
    #[command(after_help = "Example:\n  isobath files cat -s my.iso /notes.txt | less")]
    Cat {
        /// The path in the store
        path: OsString,
    },
    /// Make a directory
    #[command(after_help = "Example:\n  isobath files mkdir -s my.iso /photos")]
    Mkdir {
        /// The path in the store
        path: OsString,
        #[command(flatten)]
        create: CreateArgs,
    },
    /// Move or rename a file, link or directory, with all that is below it
    #[command(after_help = "\
A name that is taken is replaced, as by mv: a file or link by a file or link, \
an empty directory by a directory. What is moved to a directory that exists goes \
into it.

Example:
  isobath files mv -s my.iso /photos/2024 /archive")]
    Mv {
        /// What to move
        from: OsString,
        /// Where to
        to: OsString,
        /// Replace nothing
        #[arg(short, long)]
        no_replace: bool,
        /// Take the new path as it is, also if it is a directory
        #[arg(short = 'T', long)]
        exact: bool,
    },
    /// Give a file a further name, or make a symbolic link
    #[command(after_help = "\
Examples:
  isobath files ln -s my.iso /photos/beach.jpg /favourite.jpg
  isobath files ln -s my.iso --symbolic beach.jpg /photos/best.jpg")]
    Ln {
        /// The file; of a symbolic link any text
        target: OsString,
        /// The new name
        path: OsString,
        /// Make a symbolic link
        #[arg(long)]
        symbolic: bool,
    },
    /// Remove a file or link, or a directory
    #[command(after_help = "\
Examples:
  isobath files rm -s my.iso /photos/blurred.jpg
  isobath files rm -s my.iso --recursive /photos")]
    Rm {
        /// The path in the store
        path: OsString,
        /// A directory with everything below it, as one step
        #[arg(short, long)]
        recursive: bool,
    },
    /// Remove an empty directory
    #[command(after_help = "Example:\n  isobath files rmdir -s my.iso /photos")]
    Rmdir {
        /// The path in the store
        path: OsString,
    },
    /// Read everything and verify names, links and contents
    #[command(after_help = "\
Exits with 1 where something is wrong. `isobath check` verifies the store below.

Example:
  isobath files check -s my.iso")]
    Check,
    /// Show the files as a file system, for reading
    Mount(FilesMountArgs),
    /// Unmount, also what a killed process has left mounted
    #[command(after_help = "Example:\n  isobath files umount /mnt/photos")]
    Umount {
        /// Where it is mounted
        #[arg(value_name = "MOUNTPOINT", value_hint = ValueHint::DirPath)]
        mount_point: PathBuf,
    },
    /// Serve a file system: what `mount` starts
    #[command(hide = true)]
    Serve(FilesMountArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Permissions, owners, times, holes, symbolic and hard links are kept. It appears in \
the store in one step, at the end; Ctrl-C, an error or a crash leaves nothing of it.

Examples:
  isobath files import -s my.iso --create ./photos
  isobath files import -s my.iso ./photos /archive/photos --replace
  isobath files import -s my.iso --create ./photos /")]
pub(crate) struct FilesImportArgs {
    /// The directory or file to copy
    #[arg(value_name = "FROM", value_hint = ValueHint::AnyPath)]
    pub(crate) from: PathBuf,
    /// The path in the store, in a directory that exists; `/` where the tree is empty [default: the
    /// name of FROM, in the root]
    pub(crate) path: Option<OsString>,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    /// Replace the entry at the path, with everything below it
    #[arg(long)]
    pub(crate) replace: bool,
    /// Leave out sockets, pipes and devices instead of stopping
    #[arg(long)]
    pub(crate) skip_special: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file system shows the files as they were when it was mounted, and cannot be \
written to. The store may be in use by a program that writes it. A file whose \
contents are not those that were stored gives an I/O error.

Root may mount anywhere; others need the program fusermount3 (Debian: fuse3).

Examples:
  isobath files mount -s my.iso /mnt/photos
  isobath files umount /mnt/photos")]
pub(crate) struct FilesMountArgs {
    /// An empty directory
    #[arg(value_name = "MOUNTPOINT", value_hint = ValueHint::DirPath)]
    pub(crate) mount_point: PathBuf,
    /// Let other users in, as far as permissions allow
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Do not go to the background; Ctrl-C unmounts
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Append each failed read to a file [default: standard error in the foreground, else nowhere]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
}
