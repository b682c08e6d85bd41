//! Blocks of a page's size for records that are in no page yet.

use std::sync::Arc;

use super::Words;

/// Lends the frames of a pool.
pub(crate) trait Lend: Send + Sync {
    /// The bytes of a lent frame, which no other task reaches.
    fn words(&self, frame: u32) -> &Words;

    /// Takes a lent frame back; called by any thread.
    fn take_back(&self, frame: u32);
}

/// One page's bytes, for their owner alone.
pub(crate) struct Block(Place);

enum Place {
    Lent(Arc<dyn Lend>, u32),
    Own(Box<Words>),
}

impl Block {
    /// A frame that `lender` has lent.
    pub(crate) fn lent(lender: Arc<dyn Lend>, frame: u32) -> Block {
        Block(Place::Lent(lender, frame))
    }

    /// One that is no frame.
    pub(crate) fn own() -> Block {
        Block(Place::Own(Words::zeroed()))
    }

    /// Its bytes, which are any at first.
    #[inline]
    pub(crate) fn words(&self) -> &Words {
        match &self.0 {
            Place::Lent(lender, frame) => lender.words(*frame),
            Place::Own(words) => words,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Place::Lent(lender, frame) = &self.0 {
            lender.take_back(*frame);
        }
    }
}
