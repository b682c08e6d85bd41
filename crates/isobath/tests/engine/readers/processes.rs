//! Readers and writers in processes of their own, which are killed.

use super::*;

/// The environment variable that makes a test program a writer of the store that it names.
const WRITER: &str = "ISOBATH_TEST_WRITER";

/// Not a test of its own: the writer in a process of its own, which reports acknowledged commits.
#[test]
fn writer_process() {
    let Some(path) = std::env::var_os(WRITER).map(PathBuf::from) else {
        return;
    };
    let store = Store::open(&path, &options()).unwrap();
    let tree = store.tree("accounts").unwrap();
    let mut random = Random::new(3);
    for round in 0.. {
        let moves = move_some(&store, &tree, &mut random);
        println!("moves {moves}");
        if round % 50 == 0 {
            change_trees(&store, round / 50 + 1);
        }
    }
}

/// A process that writes, and the last count that it has acknowledged.
struct WriterProcess {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    moves: u64,
}

impl WriterProcess {
    fn start(path: &Path) -> WriterProcess {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "readers::processes::writer_process",
                "--nocapture",
            ])
            .env(WRITER, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        WriterProcess {
            child,
            lines,
            moves: 0,
        }
    }

    fn note(&mut self, line: &str) -> bool {
        let count = line.split("moves ").nth(1).and_then(|n| n.parse().ok());
        self.moves = count.unwrap_or(self.moves);
        count.is_some()
    }

    /// Reads what it says until so many more moves were acknowledged.
    fn await_moves(&mut self, mut times: u64) {
        while times > 0 {
            let line = self.lines.next().unwrap().unwrap();
            times -= u64::from(self.note(&line));
        }
    }

    /// Kills it; how many moves it has acknowledged.
    fn kill(mut self) -> u64 {
        self.child.kill().unwrap();
        while let Some(Ok(line)) = self.lines.next() {
            // The last line may be cut off.
            if line.len() >= format!("moves {}", self.moves).len() {
                self.note(&line);
            }
        }
        self.child.wait().unwrap();
        self.moves
    }
}

/// The kernel takes the rings of a process that was killed down in the background, and its writes
/// may end until then.
fn await_last_writes(path: &Path) {
    let beside = VolumeOptions::new().access(Access::Beside);
    let volume = isobath_io::Volume::open(&[path.to_owned()], &beside).unwrap();
    while volume.has_writer() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_store_whose_writer_was_killed_is_read_and_stays_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let mut acknowledged = 0;
    for round in 0..4 {
        let mut writer = WriterProcess::start(&path);
        writer.await_moves(60 + 70 * round);
        acknowledged = writer.kill().max(acknowledged);
        assert!(Store::needs_recovery(&path, &options()).unwrap());
        await_last_writes(&path);
        let before = fs::read(&path).unwrap();
        let reader = Store::open(&path, &reading()).unwrap();
        let moves = read_all(&reader).unwrap();
        // The last one may have been acknowledged to a process that could not say so any more.
        assert!(
            (acknowledged..=acknowledged + 1).contains(&moves),
            "{moves} of {acknowledged}"
        );
        assert_sound(&reader, None);
        reader.close().unwrap();
        assert!(
            fs::read(&path).unwrap() == before,
            "a reader has changed the file"
        );
        // Every other time the next writer process recovers it.
        if round % 2 == 0 {
            let store = Store::open(&path, &options()).unwrap();
            assert!(store.stats().recovered_log_bytes > 0);
            assert_eq!(read_all(&store).unwrap(), moves);
            assert_sound(&store, None);
            store.close().unwrap();
            assert!(!Store::needs_recovery(&path, &options()).unwrap());
        }
        acknowledged = moves;
    }
}

#[test]
fn readers_beside_a_writer_process_see_what_it_has_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let mut writer = WriterProcess::start(&path);
    writer.await_moves(20);
    let mut last = None;
    for _ in 0..6 {
        writer.await_moves(30);
        let reader = Store::open(&path, &reading()).unwrap();
        let moves = read_all(&reader).unwrap();
        assert!(moves >= writer.moves, "{moves} of {}", writer.moves);
        last = Some((reader, moves));
    }
    // The reader outlives the writer, and sees what it saw.
    let (reader, moves) = last.unwrap();
    writer.kill();
    assert_eq!(read_all(&reader).unwrap(), moves);
    let store = Store::open(&path, &options()).unwrap();
    assert!(read_all(&store).unwrap() >= moves);
    store.close().unwrap();
}

#[test]
fn a_reader_that_is_killed_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let store = Store::open(&path, &options()).unwrap();
    let files = || fs::read_dir(place.path()).unwrap().count();
    let before = files();
    beside(&store, false, |busy| {
        for round in 0..6 {
            await_moves(busy, 50);
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "readers::processes::reader_process",
                    "--nocapture",
                ])
                .env(READER, &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // Sometimes while it opens the store, sometimes while it reads.
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let reads = |line: &String| line.contains("reading");
            if round % 2 == 0 {
                assert!(lines.any(|line| reads(&line.unwrap())));
            } else {
                std::thread::sleep(Duration::from_millis(3 * round));
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        await_moves(busy, 500);
    });
    assert_eq!(files(), before);
    assert_sound(&store, None);
    store.close().unwrap();
}

/// The same for a process that only reads.
const READER: &str = "ISOBATH_TEST_READER";

/// Not a test of its own: a process that reads until it is killed.
#[test]
fn reader_process() {
    let Some(path) = std::env::var_os(READER).map(PathBuf::from) else {
        return;
    };
    let store = Store::open(&path, &reading()).unwrap();
    println!("reading");
    loop {
        if let Err(error) = read_all(&store) {
            assert!(matches!(error, Error::ReaderOverrun { .. }), "{error}");
        }
    }
}

/// Recovery would not help: a writer needs the same address space.
#[test]
fn a_reader_without_address_space_says_so() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let mut writer = WriterProcess::start(&path);
    writer.await_moves(20);
    let is_told = || {
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 20000000 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "readers::processes::limited_process"])
            .arg("--nocapture")
            .env(LIMITED, &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains("the buffer pool is refused"), "{printed}");
    };
    is_told();
    writer.kill();
    await_last_writes(&path);
    assert!(Store::needs_recovery(&path, &options()).unwrap());
    is_told();
}

/// A process that may not have the address space of a store.
const LIMITED: &str = "ISOBATH_TEST_LIMITED";

/// Not a test of its own.
#[test]
fn limited_process() {
    let Some(path) = std::env::var_os(LIMITED).map(PathBuf::from) else {
        return;
    };
    let error = Store::open(&path, &reading()).err().unwrap();
    let OpenError::Storage(StorageError::Memory { what, .. }) = error else {
        panic!("{error}");
    };
    println!("{what} is refused");
}
