//! A volume whose writer was killed is opened by the next one, also if processes have a
//! namespace of their own. The test starts itself again in other roles.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use isobath_io::{Io, Volume, VolumeOptions};

const MIB: u64 = 1 << 20;

/// What a process of this test is for.
const ROLE: &str = "ISOBATH_TEST_ROLE";
/// Where its volume is.
const PLACE: &str = "ISOBATH_TEST_PLACE";

fn itself(name: &str, role: &str, place: &Path) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let words = ["env", &format!("{ROLE}={role}")].map(str::to_owned);
    let place = format!("{PLACE}={}", place.display());
    let rest = [
        &program.display().to_string(),
        "--exact",
        name,
        "--nocapture",
    ]
    .map(str::to_owned);
    words.into_iter().chain([place]).chain(rest).collect()
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Writes until it is killed.
fn write_on(path: PathBuf) {
    let volume = Volume::open(&[path], &VolumeOptions::new()).unwrap();
    let mut channel = open(&volume);
    let page = pattern(4096, 1);
    println!("ready");
    loop {
        let ios: Vec<Io> = (0..16)
            .map(|i| Io::write(i * 8192, page.as_ptr(), 4096, i).durable())
            .collect();
        // SAFETY: `page` outlives the call.
        unsafe { run_all(&mut *channel, &ios) };
    }
}

#[test]
fn a_killed_writer_lets_the_next_one_in_also_in_a_namespace_of_processes() {
    use std::io::{BufRead, BufReader};
    let name = "a_killed_writer_lets_the_next_one_in_also_in_a_namespace_of_processes";
    let place = std::env::var_os(PLACE).map(PathBuf::from);
    match (std::env::var(ROLE).as_deref(), place) {
        (Ok("writer"), Some(path)) => write_on(path),
        (Ok(_), Some(path)) => {
            for round in 0..30 {
                let mut writer = command(&itself(name, "writer", &path));
                let mut writer = writer.stdout(std::process::Stdio::piped()).spawn().unwrap();
                let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
                assert!(
                    lines
                        .map_while(Result::ok)
                        .any(|line| line.contains("ready"))
                );
                writer.kill().unwrap();
                writer.wait().unwrap();
                let opened = Volume::open(std::slice::from_ref(&path), &VolumeOptions::new());
                assert!(opened.is_ok(), "round {round}: {}", opened.unwrap_err());
            }
        }
        _ => {
            if !superuser() {
                return;
            }
            let dir = scratch();
            let p = paths(&dir, 1);
            let volume = Volume::create(&p, &VolumeOptions::new()).unwrap();
            volume.grow(MIB).unwrap();
            drop(volume);
            let apart = ["unshare", "--pid", "--fork", "--mount-proc"].map(str::to_owned);
            if !command(&[&apart[..], &["true".to_owned()]].concat())
                .status()
                .is_ok_and(|status| status.success())
            {
                skipped("no namespaces of processes here");
                return;
            }
            let words = [&apart[..], &itself(name, "killer", &p[0])].concat();
            assert!(command(&words).status().unwrap().success());
        }
    }
}
