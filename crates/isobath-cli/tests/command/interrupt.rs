//! Ctrl-C: nothing is stored of an input that it has cut short, and no verb is deaf to it.

use super::support;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use support::Place;

/// In which every verb ends once it was asked to.
const SOON: Duration = Duration::from_secs(20);

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([name, &id]).status();
    assert!(sent.unwrap().success());
}

/// Starts a verb and feeds it half of its input, more than a pipe holds: it has begun to read then.
fn half_fed(place: &Place, line: &str) -> (Child, ChildStdin) {
    let mut child = place
        .command()
        .args(words(line))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all("a\t1\n".repeat(1 << 16).as_bytes())
        .unwrap();
    (child, stdin)
}

#[test]
fn the_end_of_a_pipe_whose_writer_was_interrupted_too_is_not_the_end_of_the_data() {
    for line in [
        "put -s new.iso --create k --file -",
        "load -s new.iso --create lines",
        "load -s new.iso --create csv - --no-header",
    ] {
        for _ in 0..4 {
            let place = Place::new();
            let (child, stdin) = half_fed(&place, line);
            // As the terminal does: the signal goes to all, and the writer dies of it at once.
            signal(&child, "-INT");
            drop(stdin);
            let ended = child.wait_with_output().unwrap();
            assert_eq!(ended.status.code(), Some(130), "{line}: {ended:?}");
            assert!(
                ended.stderr.starts_with(b"isobath: interrupted"),
                "{ended:?}"
            );
            assert_eq!(place.names(), [""; 0], "{line}");
        }
    }
}

#[test]
fn a_value_that_was_there_stays_where_its_replacement_is_cut_short() {
    let place = Place::new();
    place.store(&[("k", "complete old value")]);
    let (mut child, stdin) = half_fed(&place, "put -s s.iso k --file -");
    signal(&child, "-TERM");
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let kept = place.run(&words("get -s s.iso k")).ok();
    assert_eq!(kept.text(), "complete old value\n");
}

/// Whether a process has ended because of a signal, also one that came before it listened.
fn was_asked(status: ExitStatus) -> bool {
    status.code() == Some(130) || status.signal().is_some_and(|signal| signal != 9)
}

#[test]
fn one_signal_ends_every_verb_that_waits_for_the_other_end_of_a_fifo() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    place.write("w.toml", "name = \"w\"\n");
    for fifo in ["f", "out"] {
        let made = Command::new("mkfifo").arg(place.path(fifo)).status();
        assert!(made.unwrap().success());
    }
    let before = place.names();
    let lines = [
        "restore f x.iso",
        "restore f f x.iso",
        "import -s s.iso --merge f",
        "import -s m.iso --create f",
        "load -s s.iso lines f",
        "load -s o.iso --create csv f",
        "load -s n.iso --create ndjson f --key-field id",
        "put -s s.iso k --file f",
        "get -s s.iso a -o out",
        "export -s s.iso --force out",
        "backup -s s.iso --force out",
        "backup -s s.iso o --since f",
        "stats -s s.iso --format openmetrics -o out",
        "salvage -s s.iso f",
        "salvage -s f q.iso",
        "check -s f",
        "info -s f",
        "advise f w.toml",
        "advise s.iso f",
        "model f",
        "bench report f",
        "bench campaign f.toml",
        "sim analysis --fill 0.8 --csv out",
        "files import -s p.iso --create f",
        "files export -s s.iso / out",
    ];
    let mut running: Vec<_> = lines
        .iter()
        .map(|line| {
            let mut command = place.command();
            command.args(words(line)).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            (line, command.spawn().unwrap())
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    for (_, child) in &mut running {
        if child.try_wait().unwrap().is_none() {
            signal(child, "-TERM");
        }
    }
    let asked = Instant::now();
    let mut deaf = Vec::new();
    for (line, child) in &mut running {
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(was_asked(status) || !status.success(), "{line}: {status}");
                break;
            }
            if asked.elapsed() > SOON {
                deaf.push(**line);
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(deaf.is_empty(), "deaf to a signal: {deaf:#?}");
    assert_eq!(place.names(), before, "nothing is left");
}

#[test]
fn an_output_that_nobody_reads_on_keeps_no_verb() {
    let place = Place::new();
    let value = "x".repeat(1 << 20);
    place.store(&[("a", &value)]);
    for line in [
        "export -s s.iso -",
        "backup -s s.iso --no-verify /dev/stdout",
    ] {
        let mut child = place
            .command()
            .args(words(line))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            child.try_wait().unwrap().is_none(),
            "{line}: the pipe is full"
        );
        signal(&child, "-INT");
        assert!(was_asked(child.wait().unwrap()), "{line}");
    }
    assert_eq!(place.names(), ["s.iso"]);
}

#[test]
fn what_nohup_has_ignored_stays_ignored() {
    let place = Place::new();
    let mut child = Command::new("sh")
        .arg("-c")
        .arg("trap '' HUP; exec \"$0\" load -s new.iso --create lines")
        .arg(env!("CARGO_BIN_EXE_isobath"))
        .current_dir(place.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while !place.path("new.iso").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-HUP");
    child.stdin.take().unwrap().write_all(b"a\t1\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(place.run(&words("get new.iso a")).ok().text(), "1\n");
}
