//! Where a page or chunk goes: the stream that the policy says, an open segment with room, the next
//! place in it.

use super::*;

impl SegmentAllocator {
    /// Gives places to `requests`, in order, until one finds no segment.
    ///
    /// Each segment that receives something is busy once more until
    /// [`SegmentAllocator::written`]. Segments that became full are added to `closing`;
    /// each is busy until its summary is written, too.
    pub(crate) fn place(
        &mut self,
        content: Content,
        requests: &[Request],
        seqs: &ReservedWords,
        placed: &mut Vec<Placement>,
        closing: &mut Vec<SealedSegment>,
    ) -> Result<(), NoSegment> {
        let mut behind = None;
        for request in requests {
            debug_assert!(
                content == Content::Chunks || !is_chunk(request.write.bytes),
                "a chunk among pages"
            );
            let stream = self.policy.place(&request.write, self.now);
            let slot = match content {
                Content::Pages if request.is_run => self.chunk_slots().end,
                Content::Pages => stream.index(),
                Content::Chunks => stream.index() + self.chunk_slots().start,
            };
            let address = self.append((slot, stream), request, behind, seqs, closing)?;
            behind = Some(address.segment());
            match request.write.cause {
                Cause::User => {
                    self.now += 1;
                    self.restart_progress();
                }
                Cause::Relocated => self.progress.moved(request.write.bytes),
            }
            placed.push(Placement {
                token: request.write.token,
                page: request.page,
                address,
                history: request.write.history,
            });
        }
        Ok(())
    }

    /// Gives a place to `request`, right behind the one before it if that was
    /// `behind` in the same segment: the two are written together.
    fn append(
        &mut self,
        (slot, stream): (usize, StreamId),
        request: &Request,
        behind: Option<u32>,
        seqs: &ReservedWords,
        closing: &mut Vec<SealedSegment>,
    ) -> Result<Address, NoSegment> {
        let length = request.write.bytes;
        if let Some(open) = &self.open[slot]
            && !self.has_room(open, length)
        {
            self.close(slot, true, closing);
        }
        let slot = self.slot_for(slot, request)?;
        if self.open[slot].is_none() {
            let segment = self.take_segment(request.write.cause)?;
            self.table.open(SegmentId(segment), stream);
            self.busy[segment as usize] = 1;
            self.summaries[segment as usize] = 0;
            seqs.at(u64::from(segment))
                .store(self.next_seq, crate::sync::atomic::Ordering::Release);
            self.next_seq += 1;
            self.open[slot] = Some(OpenSegment {
                segment,
                cursor: 0,
                entries: Vec::new(),
                cause: request.write.cause,
            });
        }
        let block = self.block;
        let Some(open) = &mut self.open[slot] else {
            return Err(NoSegment);
        };
        let segment = open.segment;
        let offset = match behind == Some(segment) {
            true => open.cursor,
            false => open.cursor.next_multiple_of(block),
        };
        open.cursor = offset + length;
        open.entries.push(Entry {
            page: request.page,
            offset,
            length,
        });
        self.busy[segment as usize] += 1;
        self.table
            .append(SegmentId(segment), length, request.write.history);
        self.policy.appended(SegmentId(segment), &request.write);
        self.histories.set(request.page, request.write.history);
        self.count_live(length);
        Ok(Address::new(segment, offset, length))
    }

    /// The stream that takes `request`: its own, or the nearest one whose open segment has space,
    /// if as many are open as may be, or where the cleaner needs what is free for the victims under
    /// way.
    ///
    /// While nothing is free but the cleaner's reserve, changed pages fill the segments that they
    /// opened themselves and no others: where many streams share their segments, others would use
    /// up the reserve, and a page in the wrong stream costs more than its wait.
    fn slot_for(&self, slot: usize, request: &Request) -> Result<usize, NoSegment> {
        let user = request.write.cause == Cause::User;
        let scarce = match user {
            true => self.spare_segments() == 0,
            false => self.free_segments() <= self.cleaning,
        };
        match &self.open[slot] {
            Some(open) if !(user && scarce) || open.cause == Cause::User => return Ok(slot),
            None if !scarce && self.opened() < self.open_limit => return Ok(slot),
            _ if user && scarce => return Err(NoSegment),
            _ => {}
        }
        let chunks = self.chunk_slots();
        let alike = match chunks.contains(&slot) {
            true => chunks,
            // Where no more can be open pages of runs go to others.
            false => 0..chunks.start,
        };
        let has_room = |open: &OpenSegment| self.has_room(open, request.write.bytes);
        Ok(alike
            .filter(|&other| self.open[other].as_ref().is_some_and(has_room))
            .min_by_key(|&other| other.abs_diff(slot))
            .unwrap_or(slot))
    }

    /// Whether `length` bytes more fit into an open segment, in blocks of their own, and
    /// with its summary.
    fn has_room(&self, open: &OpenSegment, length: u32) -> bool {
        let end = open.cursor.next_multiple_of(self.block) + length.next_multiple_of(self.block);
        end + summary::size(open.entries.len() + 1) <= self.sizes.bytes
    }

    /// The slots of streams of chunks: behind those of pages, before the one of runs.
    pub(super) fn chunk_slots(&self) -> Range<usize> {
        let streams = usize::from(self.policy.streams());
        streams..2 * streams
    }

    fn opened(&self) -> u32 {
        self.open.iter().flatten().count() as u32
    }

    fn take_segment(&mut self, cause: Cause) -> Result<u32, NoSegment> {
        if cause == Cause::User && self.spare_segments() == 0 {
            return Err(NoSegment);
        }
        self.pop_free().ok_or(NoSegment)
    }
}
