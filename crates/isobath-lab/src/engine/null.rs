//! No engine, and nothing below: a run over it costs as much as the benchmark itself.

use std::path::PathBuf;

use super::baseline::{Below, BelowIo};
use crate::LabError;
use crate::bench::Records;

/// Nothing.
pub(super) struct Nothing;

impl Below for Nothing {
    const NAME: &'static str = "null";
    type Io<'b> = Nothing;

    fn settings(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    fn load(&self, _: &Records) -> Result<(), LabError> {
        Ok(())
    }

    fn io<'b>(&'b self, _: &'b Records) -> Nothing {
        Nothing
    }

    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn close(&self) -> Result<(), LabError> {
        Ok(())
    }
}

impl BelowIo for Nothing {
    fn read(&mut self, _: u64, _: Option<u64>) -> Result<(), LabError> {
        Ok(())
    }

    fn write(&mut self, index: u64, value: &[u8]) -> Result<(), LabError> {
        std::hint::black_box((index, value));
        Ok(())
    }
}
