//! Write-back, cleaning, flushes, and the reuse of places.

use crate::{Batch, Lsn, Purpose, Record, Rule, Stage, State};

impl State {
    /// A dirty page is copied and its write begins (`copy_for_write`, `write_placed`).
    pub(super) fn write_back(&mut self, page: usize, broken: Option<Rule>) -> Option<()> {
        self.left.writes = self.left.writes.checked_sub(1)?;
        let current = self.pages[page];
        let may_write = current.version < self.durable || broken == Some(Rule::WriteAhead);
        let ready =
            current.exists && current.oldest.is_some() && !current.freed && !current.writing;
        if self.batches[0].is_some() || !ready || !may_write {
            return None;
        }
        self.issue(Purpose::WriteBack, page, current.address)?;
        self.pages[page].oldest = None;
        self.pages[page].writing = true;
        Some(())
    }

    /// A clean page is copied out of its segment (`relocate`).
    pub(super) fn relocate(&mut self, page: usize) -> Option<()> {
        self.left.relocations = self.left.relocations.checked_sub(1)?;
        let current = self.pages[page];
        let clean =
            current.exists && current.oldest.is_none() && !current.freed && !current.writing;
        let from = current
            .address
            .filter(|_| clean && self.batches[1].is_none())?;
        self.issue(Purpose::Relocation, page, Some(from))
    }

    /// The volume's cache is flushed (`flush_volume`).
    pub(super) fn flush_volume(&mut self) -> Option<()> {
        let mut any = false;
        for batch in self.batches.iter_mut().flatten() {
            any |= batch.stage == Stage::Issued;
            if batch.stage == Stage::Issued {
                batch.stage = Stage::Flushed;
            }
        }
        for place in &mut self.places {
            place.durable = place.cached.take().or(place.durable);
        }
        any.then_some(())
    }

    /// The copy is installed and its mapping record appended (`install_copies`, `log_copies`).
    pub(super) fn log_batch(&mut self, at: usize, broken: Option<Rule>) -> Option<()> {
        let mut batch = self.batches[at]?;
        // What nothing names before another record does may be flushed with its mapping record
        // (`names_unflushed`).
        let unflushed =
            batch.stage == Stage::Issued && matches!(batch.purpose, Purpose::Load { .. });
        let flushed = batch.stage == Stage::Flushed
            || batch.stage == Stage::Issued && broken == Some(Rule::FlushBeforeMapping);
        if !flushed && !unflushed {
            return None;
        }
        let page = usize::from(batch.page);
        let current = self.pages[page];
        let same = current.life == batch.life && !current.freed;
        let unchanged =
            same && current.address == batch.from && current.oldest.is_none() && !current.writing;
        if batch.purpose == Purpose::Relocation
            && !unchanged
            && broken != Some(Rule::CompareAndSwap)
        {
            self.places[usize::from(batch.to.place)].in_use = false;
            self.batches[at] = None;
            return Some(());
        }
        let Batch {
            version,
            to: address,
            ..
        } = batch;
        let record = self.append(Record::Mapping {
            page: batch.page,
            version,
            address,
            unflushed,
        });
        if same {
            self.pages[page].exists = true;
            self.pages[page].address = Some(address);
            self.free_after(record, batch.from);
            self.mark(page, broken);
        } else {
            self.free_after(record, batch.from);
            self.free_after(record, Some(address));
            if broken != Some(Rule::OutOfOrderRecords) {
                self.out_of_order.push((batch.claimed_at, record));
            }
        }
        if batch.purpose == Purpose::WriteBack && current.life == batch.life {
            self.pages[page].writing = false;
            // The page's place is freed by this write, not by the change that freed the page.
            if current.freed {
                self.pages[page].address = None;
            }
        }
        batch.stage = Stage::Logged(record);
        self.batches[at] = Some(batch);
        Some(())
    }

    /// The batch no longer holds back the log's start; its record does until it is durable
    /// (`release`).
    pub(super) fn release(&mut self, at: usize, broken: Option<Rule>) -> Option<()> {
        let batch = self.batches[at]?;
        let Stage::Logged(record) = batch.stage else {
            return None;
        };
        if matches!(batch.purpose, Purpose::Load { .. }) {
            return None;
        }
        if let Some(oldest) = batch
            .oldest
            .filter(|_| broken != Some(Rule::RecordsInFlight))
        {
            self.records_in_flight.push((oldest, record));
        }
        self.batches[at] = None;
        Some(())
    }

    /// The log is flushed up to its end, and with it the volume if a record names a copy that
    /// was not (`LogTasks::run_writer`).
    pub(super) fn flush_log(&mut self, broken: Option<Rule>) -> Option<()> {
        let news = &self.log[usize::from(self.durable)..];
        let more = !news.is_empty();
        let names_unflushed =
            |record: &Record| matches!(record, Record::Mapping { unflushed, .. } if *unflushed);
        if news.iter().any(names_unflushed) && broken != Some(Rule::FlushWithRecord) {
            let _ = self.flush_volume();
        }
        self.durable = self.end();
        more.then_some(())
    }

    /// Addresses whose records are durable are free (`drain_pending_frees`).
    pub(super) fn release_address(&mut self, broken: Option<Rule>) -> Option<()> {
        let durable = self.durable;
        let may = |record: Lsn| record < durable || broken == Some(Rule::ReuseAfterDurable);
        let at = self.pending_frees.iter().position(|entry| may(entry.0))?;
        let (_, address) = self.pending_frees.remove(at);
        self.places[usize::from(address.place)].in_use = false;
        Some(())
    }
}
