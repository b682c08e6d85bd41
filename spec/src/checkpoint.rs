//! Checkpoints, step by step.

use crate::{Checkpoint, Lsn, Rule, State, Superblock};

impl State {
    /// The next step of the checkpoint that is being written (`Checkpoints::checkpoint`,
    /// `Checkpoints::write`).
    pub(super) fn checkpoint(&mut self, broken: Option<Rule>) -> Option<()> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            self.left.checkpoints = self.left.checkpoints.checked_sub(1)?;
            let (start, words) = (self.end(), self.superblock.words);
            self.checkpoint = Some(Checkpoint {
                done: 0,
                start,
                words,
                provisional: Vec::new(),
            });
            return Some(());
        };
        let step = match (checkpoint.done, broken == Some(Rule::OrderOfReads)) {
            (1, true) => 3,
            (3, true) => 1,
            (done, _) => done,
        };
        match step {
            0 => self.start_at(
                &mut checkpoint,
                self.unapplied,
                broken == Some(Rule::UnappliedCommits),
            ),
            1 => {
                let dirty = self.pages.iter().filter(|page| page.exists && !page.freed);
                let oldest = dirty.filter_map(|page| page.oldest).min();
                self.start_at(&mut checkpoint, oldest, broken == Some(Rule::DirtyPages));
            }
            2 => {
                let oldest = self
                    .batches
                    .iter()
                    .flatten()
                    .filter_map(|batch| batch.oldest)
                    .min();
                self.start_at(
                    &mut checkpoint,
                    oldest,
                    broken == Some(Rule::PagesBeingWritten),
                );
            }
            3 => {
                let durable = self.durable;
                self.records_in_flight.retain(|entry| entry.1 >= durable);
                let oldest = self.records_in_flight.iter().map(|entry| entry.0).min();
                self.start_at(&mut checkpoint, oldest, false);
            }
            4 => {
                // A structure modification frees pages before it releases its latches; the log does
                // not start behind one that has not (`oldest_structure`).
                self.start_at(&mut checkpoint, self.freeing.map(|entry| entry.1), false);
                self.before_out_of_order(&mut checkpoint);
                let early = self.recovered.is_some_and(|end| checkpoint.start < end);
                if early && broken != Some(Rule::RecoveredCovered) {
                    return Some(());
                }
            }
            5 => checkpoint.provisional = self.provisional.clone(),
            6..=8 => {
                let page = usize::from(step - 6);
                if std::mem::take(&mut self.changed[page]) {
                    checkpoint.words[page] = self.word(page);
                }
            }
            _ => {
                if self.durable < self.end() && broken != Some(Rule::LogBeforeSuperblock) {
                    return None;
                }
                let Checkpoint {
                    start,
                    words,
                    provisional,
                    ..
                } = checkpoint;
                self.superblock = Superblock {
                    words,
                    provisional,
                    start,
                    next_seq: self.next_seq,
                };
                self.log_start = start;
                self.recovered = None;
                return Some(());
            }
        }
        checkpoint.done += 1;
        self.checkpoint = Some(checkpoint);
        Some(())
    }

    pub(super) fn start_at(
        &self,
        checkpoint: &mut Checkpoint,
        oldest: Option<Lsn>,
        is_broken: bool,
    ) {
        if !is_broken {
            checkpoint.start = oldest.map_or(checkpoint.start, |lsn| lsn.min(checkpoint.start));
        }
    }

    /// Moves the start before the frees that out-of-order records came behind
    /// (`before_late_records`).
    pub(super) fn before_out_of_order(&mut self, checkpoint: &mut Checkpoint) {
        let log_start = self.log_start;
        self.out_of_order.retain(|entry| entry.1 >= log_start);
        while let Some(since) = self
            .out_of_order
            .iter()
            .filter(|entry| entry.1 >= checkpoint.start && entry.0 < checkpoint.start)
            .map(|entry| entry.0)
            .min()
        {
            checkpoint.start = since;
        }
    }
}
