//! files: directory trees in a store.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use isobath::{Error, Store};
use isobath_files::{
    Attributes, Copied, FileKind, FileTree, FileView, FilesError, ImportOptions, RenameMode, Span,
    Stat, Watcher,
};
use isobath_lab::{LabError, Monitor, Stage, Unit, escape};
use serde_json::{Map, Value, json};

use super::mount;
use super::store::{self, LARGE_POOL, SMALL_POOL};
use crate::args::{FilesArgs, FilesImportArgs, FilesVerb, GlobalArgs};
use crate::failure::Failure;
use crate::output::{Output, counted, put_bytes, size, soundness};
use crate::progress::Progress;

/// Runs a verb of `files`; whether nothing was found wrong.
pub(crate) fn files(
    args: &FilesArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    match &args.verb {
        FilesVerb::Import(import) => import_tree(args, import, global, out)?,
        FilesVerb::Export { path, to } => export(args, path, to, global, out)?,
        FilesVerb::Ls {
            path,
            long,
            recursive,
        } => list(args, path, *long, *recursive, out)?,
        FilesVerb::Stat { path } => stat(args, path, out)?,
        FilesVerb::Cat { path } => cat(args, path, out)?,
        FilesVerb::Mkdir { path, create } => {
            let target = store::write_or_create(&args.store, create, SMALL_POOL)?;
            target.finish(|target| {
                let files = FileTree::open_or_create(&target.store, &args.tree)?;
                Ok(files.create_directory(path.as_bytes(), &Attributes::directory())?)
            })?;
        }
        FilesVerb::Mv {
            from,
            to,
            no_replace,
            exact,
        } => {
            let mode = match no_replace {
                true => RenameMode::NoReplace,
                false => RenameMode::Replace,
            };
            change(args, |files| {
                let to = into_directory(files, from, to, *exact)?;
                files.rename_with(from.as_bytes(), to, mode)
            })?;
        }
        FilesVerb::Ln {
            target,
            path,
            symbolic,
        } => change(args, |files| {
            let path = into_directory(files, target, path, false)?;
            match symbolic {
                true => {
                    let attributes = Attributes::with_mode(0o777);
                    files.create_link(path, target.as_bytes(), &attributes)
                }
                false => files.link(target.as_bytes(), path),
            }
        })?,
        FilesVerb::Rm { path, recursive } => change(args, |files| match recursive {
            true => files.remove_all(path.as_bytes()),
            false => files.remove(path.as_bytes()),
        })?,
        FilesVerb::Rmdir { path } => {
            change(args, |files| files.remove_directory(path.as_bytes()))?;
        }
        FilesVerb::Check => return check(args, global, out),
        FilesVerb::Mount(mount) => mount::mount(args, mount, global, out)?,
        FilesVerb::Umount { mount_point } => isobath_files::unmount(mount_point)?,
        FilesVerb::Serve(mount) => mount::serve(args, mount, true, global)?,
    }
    Ok(true)
}

/// Opens the tree, changes it, closes the store.
fn change(
    args: &FilesArgs,
    work: impl FnOnce(&FileTree) -> Result<(), FilesError>,
) -> Result<(), Failure> {
    let store = store::write(&args.store, SMALL_POOL)?;
    let done = open(&store, &args.tree).and_then(|files| Ok(work(&files)?));
    let closed = store.close();
    done?;
    Ok(closed?)
}

/// Opens the tree of the command line.
pub(super) fn open(store: &Store, name: &str) -> Result<FileTree, Failure> {
    match FileTree::open(store, name) {
        Err(FilesError::Engine(Error::NoSuchTree { name })) => Err(Failure::NotFound(format!(
            "the store has no files: there is no tree {name:?}; `isobath files import` makes it"
        ))),
        other => Ok(other?),
    }
}

/// Shows the tree of a store that is open for reading only.
fn view<T>(
    args: &FilesArgs,
    pool: u64,
    work: impl FnOnce(&FileView) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = store::read(&args.store, pool)?;
    let done = open(&store, &args.tree).and_then(|files| work(&files.view()?));
    let closed = store.close();
    let done = done?;
    closed?;
    Ok(done)
}

/// The path that `mv` and `ln` mean: inside of a directory that exists.
fn into_directory(
    files: &FileTree,
    from: &OsStr,
    to: &OsStr,
    exact: bool,
) -> Result<Vec<u8>, FilesError> {
    let to = to.as_bytes();
    let is_directory = match files.view()?.stat(to) {
        Ok(stat) => stat.kind == FileKind::Directory,
        Err(FilesError::NotFound { .. }) => false,
        Err(error) => return Err(error),
    };
    let mut names = from.as_bytes().split(|byte| *byte == b'/');
    match names.rfind(|name| !name.is_empty()) {
        Some(name) if is_directory && !exact => Ok([to, b"/", name].concat()),
        _ => Ok(to.to_vec()),
    }
}

/// Shows how many bytes were copied.
struct Watched<'p>(&'p Progress);

impl Watcher for Watched<'_> {
    fn advance(&self, _: u64, bytes: u64) {
        self.0.advance(bytes);
    }

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

fn begin(progress: &Progress, name: &'static str) {
    progress.begin(Stage {
        name,
        total: None,
        unit: Unit::Bytes,
    });
}

fn import_tree(
    args: &FilesArgs,
    import: &FilesImportArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let progress = Progress::start(global)?;
    store::remove_unfinished(&args.store, &import.create);
    // A wrong name leaves no new, empty store behind.
    let found = import.from.canonicalize();
    let found = found.map_err(LabError::io("read", &import.from))?;
    let path = match (&import.path, found.file_name()) {
        (Some(path), _) => path.as_bytes().to_vec(),
        (None, Some(name)) => name.as_bytes().to_vec(),
        (None, None) => {
            let text = "say where in the store the root directory is to go, such as /";
            return Err(Failure::Usage(text.into()));
        }
    };
    let options = ImportOptions {
        replace: import.replace,
        skip_special: import.skip_special,
    };
    let target = store::write_or_create(&args.store, &import.create, LARGE_POOL)?;
    let began = Instant::now();
    let done = target.finish(|target| {
        let is_new = matches!(target.store.tree(&args.tree), Err(Error::NoSuchTree { .. }));
        let files = FileTree::open_or_create(&target.store, &args.tree)?;
        begin(&progress, "importing");
        let done = files.import(&import.from, &path, options, &Watched(&progress));
        progress.clear();
        drop(files);
        if done.is_err() && is_new {
            // The error that led here matters more.
            let _ = target.store.drop_tree(&args.tree);
        }
        let done = done?;
        if target.is_new {
            // The volume and its log have grown ahead.
            target.store.compact()?;
        }
        Ok(done)
    })?;
    tell_copied("imported", &done, began, out)
}

fn export(
    args: &FilesArgs,
    path: &OsStr,
    to: &Path,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let progress = Progress::in_order(global, &[])?;
    let began = Instant::now();
    let done = view(args, LARGE_POOL, |view| {
        begin(&progress, "exporting");
        let done = view.export(path.as_bytes(), to, &Watched(&progress));
        progress.clear();
        Ok(done?)
    })?;
    tell_copied("exported", &done, began, out)
}

/// Prints the counts of a copy since `began`.
fn tell_copied(verb: &str, done: &Copied, began: Instant, out: &mut Output) -> Result<(), Failure> {
    let seconds = began.elapsed().as_secs_f64();
    if out.json() {
        return out.document(&json!({
            "directories": done.directories,
            "files": done.files,
            "symlinks": done.symlinks,
            "hard_links": done.hard_links,
            "bytes": done.bytes,
            "skipped": done.skipped,
            "seconds": seconds,
        }));
    }
    out.line(&format!(
        "{verb} {}, {}, {}, {} in {seconds:.1} s",
        counted(done.directories, "directory"),
        counted(done.files, "file"),
        counted(done.symlinks + done.hard_links, "link"),
        size(done.bytes),
    ))?;
    match done.skipped {
        0 => Ok(()),
        skipped => out.line(&format!(
            "left out {}: sockets, pipes, devices",
            counted(skipped, "entry")
        )),
    }
}

fn list(
    args: &FilesArgs,
    path: &OsStr,
    long: bool,
    recursive: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    view(args, SMALL_POOL, |view| {
        let path = path.as_bytes();
        let top = view.stat(path)?;
        if recursive || top.kind != FileKind::Directory {
            for item in view.walk(path)? {
                let (path, stat) = item?;
                entry(view, &path, &path, &stat, long, out)?;
            }
            return Ok(());
        }
        let entries = view.list_inode(top.inode, None, usize::MAX)?;
        for found in entries {
            let at = [path, b"/", &found.name].concat();
            let stat = view.stat_inode(found.inode, &at)?;
            entry(view, &at, &found.name, &stat, long, out)?;
        }
        Ok(())
    })
}

/// One line of a list.
fn entry(
    view: &FileView,
    path: &[u8],
    name: &[u8],
    stat: &Stat,
    long: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    if out.json() {
        return out.document(&described(view, path, name, stat)?);
    }
    if !long {
        return out.line(&escape(name));
    }
    let target = match stat.kind {
        FileKind::Symlink => format!(" -> {}", escape(&view.read_link_inode(stat.inode, path)?)),
        _ => String::new(),
    };
    let attributes = stat.attributes;
    out.line(&format!(
        "{} {:>3} {:>5} {:>5} {:>10} {} {}{target}",
        permissions(stat),
        stat.links,
        attributes.uid,
        attributes.gid,
        stat.size,
        moment(stat),
        escape(name)
    ))
}

fn kind(stat: &Stat) -> &'static str {
    match stat.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
    }
}

/// As `ls -l` shows them.
fn permissions(stat: &Stat) -> String {
    let mode = stat.attributes.mode;
    let mut text = String::from(match stat.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
    });
    for (shift, special, marks) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push_str(match (mode & special != 0, bits & 1 != 0) {
            (false, true) => "x",
            (false, false) => "-",
            (true, true) => &marks[..1],
            (true, false) => &marks[1..],
        });
    }
    text
}

/// The time of the last change, in UTC.
fn moment(stat: &Stat) -> String {
    let mtime = stat.attributes.mtime;
    let since = u64::try_from(mtime.seconds).map(std::time::Duration::from_secs);
    // Years of five digits are no dates for the library.
    match since {
        Ok(since) if since.as_secs() < 253_402_300_800 => {
            humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
        }
        _ => format!("@{}", mtime.seconds),
    }
}

/// An entry's properties, for programs.
fn described(
    view: &FileView,
    path: &[u8],
    name: &[u8],
    stat: &Stat,
) -> Result<Map<String, Value>, Failure> {
    let attributes = stat.attributes;
    let mut object = Map::new();
    put_bytes(&mut object, "name", name);
    object.insert("kind".into(), kind(stat).into());
    object.insert("size".into(), stat.size.into());
    object.insert("mode".into(), format!("{:04o}", attributes.mode).into());
    object.insert("links".into(), stat.links.into());
    object.insert("uid".into(), attributes.uid.into());
    object.insert("gid".into(), attributes.gid.into());
    object.insert("mtime_seconds".into(), attributes.mtime.seconds.into());
    let nanoseconds = attributes.mtime.nanoseconds;
    object.insert("mtime_nanoseconds".into(), nanoseconds.into());
    object.insert("inode".into(), stat.inode.into());
    if stat.kind != FileKind::Directory {
        object.insert("crc32c".into(), format!("{:08x}", stat.crc).into());
    }
    if stat.kind == FileKind::Symlink {
        let target = view.read_link_inode(stat.inode, path)?;
        put_bytes(&mut object, "target", &target);
    }
    Ok(object)
}

fn stat(args: &FilesArgs, path: &OsStr, out: &mut Output) -> Result<(), Failure> {
    view(args, SMALL_POOL, |view| {
        let path = path.as_bytes();
        let stat = view.stat(path)?;
        if out.json() {
            return out.document(&described(view, path, path, &stat)?);
        }
        let attributes = stat.attributes;
        let mut rows = vec![
            ("kind", kind(&stat).to_owned()),
            ("size", stat.size.to_string()),
            (
                "mode",
                format!("{:04o} {}", attributes.mode, permissions(&stat)),
            ),
            (
                "owner, group",
                format!("{}, {}", attributes.uid, attributes.gid),
            ),
            ("modified", moment(&stat)),
            ("names", stat.links.to_string()),
            ("inode", stat.inode.to_string()),
        ];
        if stat.kind != FileKind::Directory {
            rows.push(("CRC-32C", format!("{:08x}", stat.crc)));
        }
        if stat.kind == FileKind::Symlink {
            rows.push(("target", escape(&view.read_link(path)?)));
        }
        for (what, value) in rows {
            out.line(&format!("{what:12}  {value}"))?;
        }
        Ok(())
    })
}

fn cat(args: &FilesArgs, path: &OsStr, out: &mut Output) -> Result<(), Failure> {
    view(args, SMALL_POOL, |view| {
        let mut reader = view.open(path.as_bytes())?;
        let zeros = vec![0; 64 << 10];
        while let Some(span) = reader.next_span()? {
            match span {
                Span::Bytes(bytes) => out.raw(bytes)?,
                Span::Hole(mut left) => {
                    while left > 0 {
                        let now = left.min(zeros.len() as u64);
                        out.raw(&zeros[..now as usize])?;
                        left -= now;
                    }
                }
            }
        }
        Ok(())
    })
}

fn check(args: &FilesArgs, global: &GlobalArgs, out: &mut Output) -> Result<bool, Failure> {
    let progress = Progress::start(global)?;
    let report = view(args, LARGE_POOL, |view| {
        begin(&progress, "checking");
        let report = view.check(&Watched(&progress));
        progress.clear();
        Ok(report?)
    })?;
    let is_sound = report.problems.is_empty();
    if out.json() {
        out.document(&json!({
            "directories": report.directories,
            "files": report.files,
            "symlinks": report.symlinks,
            "names": report.names,
            "bytes_verified": report.bytes_verified,
            "unfinished": report.unfinished,
            "problems": report.problems,
            "more_problems": report.more_problems,
        }))?;
        return Ok(is_sound);
    }
    out.each("problem", &report.problems)?;
    if report.unfinished > 0 {
        out.line(&format!(
            "note: {} unfinished; the next program that writes removes it",
            counted(report.unfinished, "entry")
        ))?;
    }
    out.line(&format!(
        "{}: {}, {}, {}, {} verified",
        soundness(report.problems.len() as u64 + report.more_problems),
        counted(report.directories, "directory"),
        counted(report.files, "file"),
        counted(report.symlinks, "symbolic link"),
        size(report.bytes_verified)
    ))?;
    Ok(is_sound)
}
