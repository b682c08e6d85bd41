//! The log of measurements and decisions: comma-separated values, one line per sample.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use isobath::OutputFile;

use super::controller::{Decision, Sample};

/// The first line. `pc` and `pda` were in force; `next_pc` and `next_pda` were decided.
pub(super) const HEAD: &str = "at_s,region,mode,controller,pc,pda,length_s,requests,bytes,items,requests_per_s,mib_per_s,\
     cpu,memory,next_pc,next_pda,reason";

/// The log file, which gets its name when it is finished, and never replaces a file of a store.
#[derive(Debug)]
pub(super) struct Log {
    file: BufWriter<OutputFile>,
}

impl Log {
    pub(super) fn create(path: &Path) -> Result<Log, String> {
        let output = OutputFile::create(path, true).map_err(|error| error.to_string())?;
        let mut file = BufWriter::new(output);
        writeln!(file, "{HEAD}").map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Log { file })
    }

    /// Appends a line. `what` is the region, the mode and the controller.
    pub(super) fn add(
        &mut self,
        at_seconds: f64,
        what: [&str; 3],
        sample: &Sample,
        decision: &Decision,
    ) -> io::Result<()> {
        let [region, mode, controller] = what;
        let Sample {
            seconds,
            pc,
            pda,
            requests,
            bytes,
            items,
            cpu,
            memory,
            ..
        } = sample;
        let rate = *requests as f64 / seconds;
        let mib = *bytes as f64 / seconds / f64::from(1 << 20);
        writeln!(
            self.file,
            "{at_seconds:.4},{},{mode},{controller},{pc},{pda},{seconds:.4},{requests},{bytes},{items},{rate:.1},{mib:.3},\
             {cpu:.3},{memory:.3},{},{},{}",
            field(region),
            decision.pc,
            decision.pda,
            field(decision.reason)
        )
    }

    /// Writes the rest, and gives the file its name; whether all of that could be done.
    pub(super) fn finish(self) -> bool {
        let output = self.file.into_inner();
        output.is_ok_and(|output| output.finish().is_ok())
    }
}

/// A text as one field.
fn field(text: &str) -> String {
    text.replace([',', '\n', '\r', '"'], ";")
}
