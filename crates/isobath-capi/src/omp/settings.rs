//! A program's settings from its command line and its environment.

use std::path::PathBuf;

use super::controller::{Bounds, Kind};

/// The prefix of environment variables; options on the command line are `--isobath-omp-` and the
/// name in lower case.
const VARIABLE: &str = "ISOBATH_OMP_";
const OPTION: &str = "--isobath-omp-";

/// Help for the options, for a program's own `--help`.
pub(super) const HELP: &std::ffi::CStr = c"\
  --isobath-omp-mode=seq|pc|pda_pc          one thread, parallel compute with one data channel, or both parallel [pda_pc]
  --isobath-omp-controller=kv-ins|kv-mod|kv-mod-printed   who chooses numbers of threads [kv-ins]
  --isobath-omp-pc=N                        fixes the compute threads
  --isobath-omp-pda=N                       fixes the data accesses of each compute thread at a time
  --isobath-omp-pc-max=N                    most compute threads [processors]
  --isobath-omp-pda-max=N                   most data accesses of each compute thread at a time [64]
  --isobath-omp-interval-ms=N               milliseconds between two measurements [50]
  --isobath-omp-cpu-limit=PERCENT           busy processors above which no compute thread is added [85]
  --isobath-omp-memory-limit=PERCENT        used memory above which data accesses are taken away [85]
  --isobath-omp-log=FILE                    what was measured and decided, as comma-separated values
Each is also an environment variable, such as ISOBATH_OMP_MODE; the command line comes first.
";

/// How compute and data accesses run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One compute thread, one data channel.
    Seq,
    /// Parallel compute, one data channel for all threads.
    Pc,
    /// Parallel compute, and parallel data access of each thread.
    PdaPc,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Seq => "seq",
            Mode::Pc => "pc",
            Mode::PdaPc => "pda_pc",
        }
    }
}

/// All settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    pub(super) kind: Kind,
    pub(super) bounds: Bounds,
    /// Milliseconds.
    pub(super) interval_ms: u64,
    pub(super) log: Option<PathBuf>,
}

impl Settings {
    pub(super) fn new(processors: u32) -> Settings {
        Settings {
            mode: Mode::PdaPc,
            kind: Kind::Ins,
            bounds: Bounds {
                pc_max: processors,
                pda_max: 64,
                processors,
                cpu_limit: 0.85,
                memory_limit: 0.85,
                pc: None,
                pda: None,
            },
            interval_ms: 50,
            log: None,
        }
    }

    /// Reads all of `variables`, then takes the options of this library out of `arguments`, which
    /// come first. An option that does not exist, or whose value is wrong, is an error with a
    /// message.
    pub(super) fn read(
        processors: u32,
        variables: impl Iterator<Item = (String, String)>,
        arguments: &[String],
    ) -> Result<(Settings, Vec<usize>), String> {
        let mut settings = Settings::new(processors);
        for (name, value) in variables {
            if let Some(rest) = name.strip_prefix(VARIABLE) {
                settings
                    .set(&rest.to_lowercase().replace('_', "-"), &value)
                    .map_err(|reason| format!("{name}: {reason}"))?;
            }
        }
        let mut others = Vec::new();
        for (at, argument) in arguments.iter().enumerate() {
            let Some(option) = argument.strip_prefix(OPTION) else {
                others.push(at);
                continue;
            };
            let set = match option.split_once('=') {
                Some((name, value)) => settings.set(name, value),
                None => Err("= and a value must follow".to_owned()),
            };
            set.map_err(|reason| format!("{argument}: {reason}"))?;
        }
        settings.apply_mode();
        Ok((settings, others))
    }

    /// Applies a mode to the numbers of threads.
    fn apply_mode(&mut self) {
        let bounds = &mut self.bounds;
        match self.mode {
            Mode::Seq => (bounds.pc, bounds.pda) = (Some(1), Some(1)),
            Mode::Pc => bounds.pda = Some(1),
            Mode::PdaPc => {}
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let bounds = &mut self.bounds;
        match name {
            "mode" => {
                self.mode = match value {
                    "seq" => Mode::Seq,
                    "pc" => Mode::Pc,
                    "pda_pc" => Mode::PdaPc,
                    _ => return Err(format!("{value:?} is none of seq, pc, pda_pc")),
                }
            }
            "controller" => {
                self.kind = match value {
                    "kv-ins" => Kind::Ins,
                    "kv-mod" => Kind::Mod,
                    "kv-mod-printed" => Kind::ModPrinted,
                    _ => {
                        return Err(format!(
                            "{value:?} is none of kv-ins, kv-mod, kv-mod-printed"
                        ));
                    }
                }
            }
            "pc" => bounds.pc = Some(number(value, 1, 4096)?),
            "pda" => bounds.pda = Some(number(value, 1, 1024)?),
            "pc-max" => bounds.pc_max = number(value, 1, 4096)?,
            "pda-max" => bounds.pda_max = number(value, 1, 1024)?,
            "interval-ms" => self.interval_ms = u64::from(number(value, 1, 60_000)?),
            "cpu-limit" => bounds.cpu_limit = f64::from(number(value, 1, 100)?) / 100.0,
            "memory-limit" => bounds.memory_limit = f64::from(number(value, 1, 100)?) / 100.0,
            "log" if !value.is_empty() => self.log = Some(PathBuf::from(value)),
            "log" => return Err("a file's name must follow".to_owned()),
            _ => return Err("there is no such setting".to_owned()),
        }
        Ok(())
    }

    pub(super) fn controller_name(&self) -> &'static str {
        match (self.bounds.pc, self.bounds.pda, self.kind) {
            (Some(_), Some(_), _) => "fixed",
            (_, _, Kind::Ins) => "kv-ins",
            (_, _, Kind::Mod) => "kv-mod",
            (_, _, Kind::ModPrinted) => "kv-mod-printed",
        }
    }
}

fn number(text: &str, low: u32, high: u32) -> Result<u32, String> {
    let found = text.parse().ok().filter(|n| (low..=high).contains(n));
    found.ok_or_else(|| format!("{text:?} is no number from {low} to {high}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<(Settings, Vec<usize>), String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        Settings::read(8, variables, &arguments)
    }

    #[test]
    fn the_command_line_comes_before_the_environment() {
        let variables = [
            ("ISOBATH_OMP_MODE", "seq"),
            ("ISOBATH_OMP_PDA_MAX", "7"),
            ("PATH", "/bin"),
        ];
        let arguments = ["program", "-k", "--isobath-omp-mode=pda_pc", "5"];
        let (settings, others) = read(&variables, &arguments).unwrap();
        assert_eq!(settings.mode, Mode::PdaPc);
        assert_eq!(settings.bounds.pda_max, 7);
        assert_eq!((settings.bounds.pc, settings.bounds.pda), (None, None));
        assert_eq!(others, [0, 1, 3]);
        assert_eq!(settings.controller_name(), "kv-ins");
    }

    #[test]
    fn modes_fix_what_they_are_named_after() {
        let bounds = |arguments: &[&str]| {
            let (settings, _) = read(&[], arguments).unwrap();
            (settings.bounds.pc, settings.bounds.pda)
        };
        assert_eq!(bounds(&["--isobath-omp-mode=seq"]), (Some(1), Some(1)));
        assert_eq!(bounds(&["--isobath-omp-mode=pc"]), (None, Some(1)));
        let fixed = ["--isobath-omp-pda=9", "--isobath-omp-pc=3"];
        assert_eq!(bounds(&fixed), (Some(3), Some(9)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (argument, said) in [
            ("--isobath-omp-mode=fast", "none of seq"),
            ("--isobath-omp-controller=pid", "none of kv-ins"),
            ("--isobath-omp-pda=0", "1 to 1024"),
            ("--isobath-omp-pc=many", "1 to 4096"),
            ("--isobath-omp-cpu-limit=101", "1 to 100"),
            ("--isobath-omp-speed=9", "no such setting"),
            ("--isobath-omp-pda", "a value must follow"),
            ("--isobath-omp-log=", "a file's name"),
        ] {
            let error = read(&[], &[argument]).unwrap_err();
            assert!(error.contains(said) && error.contains(argument), "{error}");
        }
        let error = read(&[("ISOBATH_OMP_PC", "x")], &[]).unwrap_err();
        assert!(error.starts_with("ISOBATH_OMP_PC"), "{error}");
    }
}
