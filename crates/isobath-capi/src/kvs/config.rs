//! A device's configuration: `key = value` lines in a file, and the same behind the path of a URI.
//!
//! Which file: the one that the URI's `config` names; else the environment's `ISOBATH_KVS_CONFIG`;
//! else the device's path with `.conf` behind it, if there is such a file; else none. What the URI
//! says comes last.

use std::path::{Path, PathBuf};
use std::time::Duration;

use isobath::{Backend, Durability, Options};

use super::types::limits;

/// How completions reach the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    /// A thread of the device calls the callbacks.
    Thread,
    /// `kvs_get_ioevents` calls them.
    Polling,
}

/// The configuration of a device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    pub(crate) create: bool,
    pub(crate) pool_bytes: Option<u64>,
    pub(crate) workers: Option<usize>,
    /// Most bytes of the store's files.
    pub(crate) capacity: Option<u64>,
    pub(crate) log_bytes: Option<u64>,
    pub(crate) durability: Durability,
    pub(crate) backend: Backend,
    pub(crate) open_timeout: Duration,
    /// Most bytes of a value.
    pub(crate) max_value: u32,
    pub(crate) queue_depth: u32,
    pub(crate) data_tasks: u32,
    pub(crate) is_serial: bool,
    pub(crate) completion: Completion,
    /// Bytes for values that were read; 0: none are kept.
    pub(crate) value_cache: u64,
}

impl Config {
    fn new(path: PathBuf) -> Config {
        Config {
            path,
            create: false,
            pool_bytes: None,
            workers: None,
            capacity: None,
            log_bytes: None,
            durability: Durability::Synced,
            backend: Backend::Auto,
            open_timeout: Duration::ZERO,
            max_value: limits::MAX_VALUE_LENGTH,
            queue_depth: 64,
            data_tasks: 8,
            is_serial: false,
            completion: Completion::Thread,
            value_cache: 0,
        }
    }

    /// The configuration of the device at `uri`; in the error, its problem.
    pub(crate) fn of_uri(uri: &str) -> Result<Config, String> {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        if path.is_empty() {
            return Err("the URI has no path".to_owned());
        }
        let given: Vec<(&str, &str)> = query
            .split('&')
            .filter(|part| !part.is_empty())
            .map(|part| {
                part.split_once('=')
                    .ok_or_else(|| format!("{part:?}: expected key=value"))
            })
            .collect::<Result<_, String>>()?;
        let mut config = Config::new(PathBuf::from(path));
        let named = given
            .iter()
            .find(|(key, _)| *key == "config")
            .map(|(_, file)| PathBuf::from(file))
            .or_else(|| std::env::var_os("ISOBATH_KVS_CONFIG").map(PathBuf::from));
        let beside = PathBuf::from(format!("{path}.conf"));
        let file = named.or_else(|| beside.exists().then_some(beside));
        if let Some(file) = file {
            config.read_file(&file)?;
        }
        for (key, value) in given {
            if key != "config" {
                config.set(key, value)?;
            }
        }
        Ok(config)
    }

    fn read_file(&mut self, file: &Path) -> Result<(), String> {
        let at = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("configuration file {at}: {error}"))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let number = number + 1;
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("{at}:{number}: expected key = value"))?;
            self.set(key.trim(), value.trim())
                .map_err(|reason| format!("{at}:{number}: {reason}"))?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |expected: &str| format!("{key} = {value:?}: expected {expected}");
        let bytes = || bytes(value).ok_or_else(|| wrong("a size, such as 64MiB"));
        let number = || value.parse().map_err(|_| wrong("a number"));
        let count = || match number()? {
            0 => Err(wrong("a number of at least 1")),
            count => Ok(count),
        };
        match key {
            "create" => self.create = yes(value).ok_or_else(|| wrong("yes or no"))?,
            "pool" => self.pool_bytes = Some(bytes()?),
            "workers" => self.workers = Some(number()? as usize),
            "capacity" => self.capacity = Some(bytes()?),
            "log" => self.log_bytes = Some(bytes()?),
            "durability" => {
                self.durability = durability(value)
                    .ok_or_else(|| wrong("synced, buffered:MILLISECONDS or none"))?;
            }
            "backend" => {
                self.backend = match value {
                    "auto" => Backend::Auto,
                    "libaio" => Backend::Libaio,
                    "pread" => Backend::Pread,
                    _ => return Err(wrong("auto, libaio or pread")),
                }
            }
            "open_timeout" => {
                let seconds: f64 = value.parse().map_err(|_| wrong("seconds"))?;
                self.open_timeout =
                    Duration::try_from_secs_f64(seconds).map_err(|_| wrong("seconds"))?;
            }
            "max_value" => {
                let most = isobath::MAX_VALUE_BYTES;
                let length = bytes()?;
                if !(1..=most).contains(&length) {
                    return Err(wrong("1 byte to 1GiB"));
                }
                self.max_value = length as u32;
            }
            "value_cache" => self.value_cache = bytes()?,
            "queue_depth" => self.queue_depth = count()?,
            "data_tasks" => self.data_tasks = count()?,
            "channel" => {
                self.is_serial = match value {
                    "parallel" => false,
                    "serial" => true,
                    _ => return Err(wrong("parallel or serial")),
                }
            }
            "completion" => {
                self.completion = match value {
                    "thread" => Completion::Thread,
                    "polling" => Completion::Polling,
                    _ => return Err(wrong("thread or polling")),
                }
            }
            _ => return Err(format!("there is no option {key:?}")),
        }
        Ok(())
    }

    /// The engine's options.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new()
            .durability(self.durability)
            .backend(self.backend)
            .open_timeout(self.open_timeout);
        if let Some(bytes) = self.pool_bytes {
            options = options.pool_bytes(bytes);
        }
        if let Some(workers) = self.workers {
            options = options.workers(workers);
        }
        if let Some(bytes) = self.capacity {
            options = options.volume_limit_bytes(Some(bytes));
        }
        if let Some(bytes) = self.log_bytes {
            options = options.log_bytes(bytes);
        }
        options
    }
}

fn yes(value: &str) -> Option<bool> {
    match value {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn durability(value: &str) -> Option<Durability> {
    match value {
        "synced" => Some(Durability::Synced),
        "none" => Some(Durability::None),
        _ => {
            let window_ms = value.strip_prefix("buffered:")?.parse().ok()?;
            Some(Durability::Buffered { window_ms })
        }
    }
}

/// A size: a whole number, with or without KiB, MiB, GiB, TiB.
fn bytes(value: &str) -> Option<u64> {
    let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = value.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("64MiB"), Some(64 << 20));
        assert_eq!(bytes("2 GiB"), Some(2 << 30));
        for wrong in ["", "MiB", "4MB", "-1", "99999999999TiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_uri_overrides_the_file_beside_the_device() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("dev.iso");
        let conf = directory.path().join("dev.iso.conf");
        std::fs::write(
            &conf,
            "# a device\npool = 8MiB # small\nqueue_depth=7\ndurability = buffered:5\n",
        )
        .unwrap();
        let uri = format!("{}?queue_depth=9&create=yes", device.display());
        let config = Config::of_uri(&uri).unwrap();
        assert_eq!(config.pool_bytes, Some(8 << 20));
        assert_eq!((config.queue_depth, config.create), (9, true));
        assert_eq!(config.durability, Durability::Buffered { window_ms: 5 });

        std::fs::write(&conf, "pool = much\n").unwrap();
        let said = Config::of_uri(&uri).unwrap_err();
        assert!(
            said.contains("dev.iso.conf:1") && said.contains("pool"),
            "{said}"
        );
        let missing = format!("{}?config=/nonexistent/x.conf", device.display());
        assert!(
            Config::of_uri(&missing)
                .unwrap_err()
                .contains("/nonexistent/x.conf")
        );
    }

    #[test]
    fn wrong_options_are_named() {
        for wrong in [
            "x?pool",
            "x?depth=3",
            "x?create=maybe",
            "x?max_value=2GiB",
            "?create=yes",
            "x?channel=1",
            "x?queue_depth=0",
            "x?data_tasks=0",
        ] {
            assert!(Config::of_uri(wrong).is_err(), "{wrong}");
        }
    }
}
