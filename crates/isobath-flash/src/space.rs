//! The place of every page: page → slot, slot → page, and which slots hold current pages.

/// Not written, or trimmed.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// Marks a place in the sort buffer.
pub(crate) const BUFFERED: u32 = 1 << 31;

/// The mapping of a space whose segments have `1 << shift` slots.
#[derive(Debug)]
pub(crate) struct Space {
    /// Page → slot, `BUFFERED | index in the buffer`, or `NOWHERE`.
    map: Vec<u32>,
    /// Slot → page last written there.
    slots: Vec<u32>,
    /// One bit per slot: holds a current page. Small enough to stay in cache.
    valid: Vec<u64>,
    shift: u32,
}

impl Space {
    pub(crate) fn new(pages: u32, segments: u32, slots_per_segment: u32) -> Self {
        // At least one whole word of the bitmap per segment.
        let stride = slots_per_segment.next_power_of_two().max(64);
        let slots = segments as usize * stride as usize;
        Self {
            map: vec![NOWHERE; pages as usize],
            slots: vec![0; slots],
            valid: vec![0; slots / 64],
            shift: stride.trailing_zeros(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, page: u32) -> u32 {
        self.map[page as usize]
    }

    #[inline]
    pub(crate) fn set(&mut self, page: u32, place: u32) {
        self.map[page as usize] = place;
    }

    #[inline]
    pub(crate) fn segment_of(&self, slot: u32) -> u32 {
        slot >> self.shift
    }

    #[inline]
    pub(crate) fn first_slot(&self, segment: u32) -> u32 {
        segment << self.shift
    }

    /// Writes a current page.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32, page: u32) {
        self.slots[slot as usize] = page;
        self.valid[(slot / 64) as usize] |= 1 << (slot % 64);
        self.map[page as usize] = slot;
    }

    /// Writes current pages, which are nowhere else, to consecutive slots of a segment.
    #[inline]
    pub(crate) fn put_run(&mut self, first: u32, pages: &[u32]) {
        let from = first as usize;
        self.slots[from..from + pages.len()].copy_from_slice(pages);
        self.set_valid(first, pages.len() as u32);
        for (slot, &page) in (first..).zip(pages) {
            self.map[page as usize] = slot;
        }
    }

    /// Writes new versions of pages to consecutive slots of a segment; `died` is called with the
    /// segment of every version that was current in a slot until then.
    #[inline]
    pub(crate) fn overwrite_run(
        &mut self,
        first: u32,
        pages: impl ExactSizeIterator<Item = u32>,
        mut died: impl FnMut(u32),
    ) {
        let (from, count) = (first as usize, pages.len());
        // All at once, before any of them is overwritten in the same run.
        self.set_valid(first, count as u32);
        let slots = &mut self.slots[from..from + count];
        for ((slot, place), page) in (first..).zip(slots).zip(pages) {
            *place = page;
            let old = std::mem::replace(&mut self.map[page as usize], slot);
            if old < BUFFERED {
                self.valid[(old / 64) as usize] &= !(1 << (old % 64));
                died(old >> self.shift);
            }
        }
    }

    /// Marks `count` slots from `first` on as current.
    fn set_valid(&mut self, first: u32, count: u32) {
        let (mut slot, end) = (first, first + count);
        while slot < end {
            let stop = end.min((slot / 64 + 1) * 64);
            let ones = u64::MAX >> (64 - (stop - slot));
            self.valid[(slot / 64) as usize] |= ones << (slot % 64);
            slot = stop;
        }
    }

    #[inline]
    pub(crate) fn invalidate(&mut self, slot: u32) {
        self.valid[(slot / 64) as usize] &= !(1 << (slot % 64));
    }

    /// The page last written to `slot`.
    pub(crate) fn page_at(&self, slot: u32) -> u32 {
        self.slots[slot as usize]
    }

    /// Appends the slots of `segment` that hold current pages to `out`.
    pub(crate) fn valid_slots(&self, segment: u32, out: &mut Vec<u32>) {
        let first = self.first_slot(segment);
        let slots = first..first + (1 << self.shift);
        out.extend(slots.filter(|slot| self.valid[(slot / 64) as usize] >> (slot % 64) & 1 == 1));
    }

    /// Appends the current pages of `segment` to `out`, in slot order, and forgets them.
    pub(crate) fn drain(&mut self, segment: u32, out: &mut Vec<u32>) {
        let words = 1usize << (self.shift - 6);
        let first = segment as usize * words;
        for word in first..first + words {
            let mut bits = std::mem::take(&mut self.valid[word]);
            let slots = &self.slots[word * 64..word * 64 + 64];
            while bits != 0 {
                out.push(slots[bits.trailing_zeros() as usize]);
                bits &= bits - 1;
            }
        }
    }

    /// Reads the map entries of `pages`, which lie all over memory: the loads overlap, and what
    /// follows finds them in cache. The sum only keeps the compiler from dropping the loads.
    #[inline]
    pub(crate) fn touch(&self, pages: impl Iterator<Item = u32>) {
        let sum = pages.fold(0u32, |sum, page| sum.wrapping_add(self.map[page as usize]));
        std::hint::black_box(sum);
    }
}
