//! What the model's commands do.
#![allow(unsafe_code)]

use super::queues::{CompletionQueue, Running, SubmissionQueue};
use super::{ModelFault, State};
use crate::command::{Command, Status, admin, nvm};
use crate::identify::PAGE;

const INVALID_NAMESPACE: Status = Status(0x400b);
const INVALID_QUEUE: Status = Status(0x4101);
const INVALID_QUEUE_SIZE: Status = Status(0x4102);

fn words(command: &Command, low: usize) -> u64 {
    u64::from(command.0[low]) | u64::from(command.0[low + 1]) << 32
}

impl State {
    /// Executes a command whose time has come, and completes it.
    pub(super) fn end(&mut self, running: Running) {
        let (queue, id) = (running.queue, running.id());
        let failed = match running.fault {
            Some(ModelFault::Media) => match running.command.0[0] as u8 {
                nvm::READ => Some(Status::UNRECOVERED_READ),
                _ => Some(Status::WRITE_FAULT),
            },
            Some(ModelFault::Aborted) => Some(Status::ABORTED),
            Some(ModelFault::Fatal) => {
                self.is_fatal = true;
                return;
            }
            Some(ModelFault::Hang) => {
                self.is_hung = true;
                return;
            }
            _ => None,
        };
        let (status, result) = match (failed, queue) {
            (Some(status), _) => (status, 0),
            (None, 0) => self.execute_admin(&running.command),
            (None, _) => (self.execute(&running.command), 0),
        };
        match running.fault {
            Some(ModelFault::Garbage) => {
                let (a, b) = (self.chance.next(), self.chance.next());
                self.lost.push((queue, id));
                self.post(
                    queue,
                    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32],
                );
            }
            Some(ModelFault::WrongId) => {
                self.lost.push((queue, id));
                // Another generation of the same slot.
                self.complete(queue, id ^ 0x8000, status, result);
            }
            Some(ModelFault::Duplicated) => {
                self.complete(queue, id, status, result);
                self.complete(queue, id, status, result);
            }
            _ => self.complete(queue, id, status, result),
        }
    }

    fn execute_admin(&mut self, command: &Command) -> (Status, u32) {
        let (w10, w11) = (command.0[10], command.0[11]);
        let id = w10 as u16;
        let entries = (w10 >> 16) + 1;
        let address = words(command, 6);
        let opcode = command.0[0] as u8;
        let status = match opcode {
            refused if self.refused == Some(refused) => {
                self.refused = None;
                INVALID_QUEUE
            }
            admin::IDENTIFY => self.answer(command, w10 & 0xff),
            admin::GET_LOG_PAGE if w10 & 0xff == admin::LOG_SMART => {
                let mut page = [0; PAGE];
                page[1..3].copy_from_slice(&310u16.to_le_bytes());
                page[3] = 100;
                page[64..72].copy_from_slice(&self.reads.to_le_bytes());
                page[80..88].copy_from_slice(&self.writes.to_le_bytes());
                self.hand_back(command, &page[..512])
            }
            admin::SET_FEATURES if w10 & 0xff == admin::NUMBER_OF_QUEUES => {
                let given = u32::from(self.options.queue_pairs - 1).min(w11 & 0xffff);
                return (Status::SUCCESS, given | given << 16);
            }
            admin::CREATE_CQ | admin::CREATE_SQ if id == 0 || id > self.options.queue_pairs => {
                INVALID_QUEUE
            }
            admin::CREATE_CQ | admin::CREATE_SQ
                if entries < 2 || entries > self.options.max_entries =>
            {
                INVALID_QUEUE_SIZE
            }
            admin::CREATE_CQ if !self.completions.contains_key(&id) => {
                self.completions
                    .insert(id, CompletionQueue::new(address, entries));
                Status::SUCCESS
            }
            admin::CREATE_SQ
                if !self.submissions.contains_key(&id)
                    && self.completions.contains_key(&((w11 >> 16) as u16)) =>
            {
                let queue = SubmissionQueue {
                    address,
                    entries,
                    head: 0,
                    tail: 0,
                    completions: (w11 >> 16) as u16,
                };
                self.submissions.insert(id, queue);
                Status::SUCCESS
            }
            admin::DELETE_SQ if id != 0 && self.submissions.remove(&id).is_some() => {
                self.running.retain(|_, running| running.queue != id);
                self.lost.retain(|(queue, _)| *queue != id);
                Status::SUCCESS
            }
            admin::DELETE_CQ if id != 0 && self.completions.remove(&id).is_some() => {
                Status::SUCCESS
            }
            admin::CREATE_CQ | admin::CREATE_SQ | admin::DELETE_CQ | admin::DELETE_SQ => {
                INVALID_QUEUE
            }
            admin::ABORT => return (Status::SUCCESS, self.abort(w10)),
            _ => Status::INVALID_OPCODE,
        };
        (status, 0)
    }

    /// Ends a command; 1 if it did not.
    fn abort(&mut self, which: u32) -> u32 {
        let (queue, id) = (which as u16, (which >> 16) as u16);
        if !self.options.aborts {
            return 1;
        }
        let before = self.running.len() + self.lost.len();
        self.lost.retain(|lost| *lost != (queue, id));
        self.running
            .retain(|_, running| (running.queue, running.id()) != (queue, id));
        if self.running.len() + self.lost.len() == before {
            return 1;
        }
        self.complete(queue, id, Status::ABORTED, 0);
        0
    }

    fn answer(&mut self, command: &Command, what: u32) -> Status {
        if let Some(page) = self.identify.get(&what) {
            let page = page.clone();
            return self.hand_back(command, &page[..]);
        }
        let mut page = [0; PAGE];
        match what {
            admin::CNS_CONTROLLER => {
                page[4..24].copy_from_slice(b"0001                ");
                page[24..64].copy_from_slice(b"Isobath model of a controller           ");
                page[64..72].copy_from_slice(b"1       ");
                page[77] = self.options.transfer_shift;
                page[512] = 0x66;
                page[513] = 0x44;
                // Numbers up to 4, of which only 1 is there.
                page[516] = 4;
                page[520] = if self.options.optional_commands {
                    0x0c
                } else {
                    0
                };
                page[525] = u8::from(self.options.volatile_cache);
            }
            admin::CNS_NAMESPACE if command.0[1] == 1 => {
                page[..8].copy_from_slice(&self.options.blocks.to_le_bytes());
                page[128..130].copy_from_slice(&self.options.metadata_bytes.to_le_bytes());
                page[130] = self.options.block_shift;
            }
            _ => return INVALID_NAMESPACE,
        }
        self.hand_back(command, &page)
    }

    /// The bytes that a write would write, and the first block.
    pub(super) fn data_to_write(&self, command: &Command) -> Option<(u64, Vec<u8>)> {
        if command.0[0] as u8 != nvm::WRITE {
            return None;
        }
        let blocks = (command.0[12] & 0xffff) as usize + 1;
        let bytes = blocks << self.options.block_shift;
        let pieces = self.pieces(command, bytes).ok()?;
        let mut data = Vec::with_capacity(bytes);
        for (pointer, count) in pieces {
            // SAFETY: mapped memory, and the state is locked; the driver's callers do not change
            // what is being written.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(pointer, count) });
        }
        Some((words(command, 10), data))
    }

    fn execute(&mut self, command: &Command) -> Status {
        if command.0[1] != 1 {
            return INVALID_NAMESPACE;
        }
        let opcode = command.0[0] as u8;
        let first = words(command, 10);
        let blocks = u64::from(command.0[12] & 0xffff) + 1;
        let is_inside = |first: u64, blocks: u64| {
            first
                .checked_add(blocks)
                .is_some_and(|end| end <= self.options.blocks)
        };
        let transfers = matches!(opcode, nvm::READ | nvm::WRITE);
        if (transfers || opcode == nvm::WRITE_ZEROES) && !is_inside(first, blocks) {
            return Status::OUT_OF_RANGE;
        }
        let block_bytes = self.block_bytes();
        let bytes = (blocks as usize) * block_bytes;
        let limit = PAGE << self.options.transfer_shift;
        if transfers && self.options.transfer_shift > 0 && bytes > limit {
            self.violate("a command transfers more than the controller allows");
            return Status::INVALID_FIELD;
        }
        let is_durable = !self.options.volatile_cache || command.0[12] & nvm::FUA != 0;
        match opcode {
            nvm::READ => {
                self.reads += 1;
                let mut data = vec![0; bytes];
                match self.disk.read(first, &mut data, block_bytes) {
                    true => self.hand_back(command, &data),
                    false => Status::UNRECOVERED_READ,
                }
            }
            nvm::WRITE => {
                self.writes += 1;
                match self.data_to_write(command) {
                    Some((_, data)) => {
                        self.disk.write(first, &data, block_bytes, is_durable);
                        Status::SUCCESS
                    }
                    None => {
                        self.violate("a write's data is not in mapped memory");
                        Status::DATA_TRANSFER_ERROR
                    }
                }
            }
            nvm::FLUSH => {
                self.disk.flush();
                Status::SUCCESS
            }
            nvm::WRITE_ZEROES if self.options.optional_commands => {
                self.disk
                    .write(first, &vec![0; bytes], block_bytes, is_durable);
                Status::SUCCESS
            }
            nvm::DATASET_MANAGEMENT if self.options.optional_commands => {
                let mut range = [0u8; 16];
                let Ok(pieces) = self.pieces(command, range.len()) else {
                    return Status::DATA_TRANSFER_ERROR;
                };
                let mut at = 0;
                for (pointer, count) in pieces {
                    // SAFETY: mapped memory, and the state is locked.
                    let piece = unsafe { std::slice::from_raw_parts(pointer, count) };
                    range[at..at + count].copy_from_slice(piece);
                    at += count;
                }
                let number = |at: usize, bytes: usize| {
                    let digits = range[at..at + bytes].iter().rev();
                    digits.fold(0u64, |number, digit| number << 8 | u64::from(*digit))
                };
                let (blocks, first) = (number(4, 4), number(8, 8));
                if !is_inside(first, blocks) {
                    return Status::OUT_OF_RANGE;
                }
                let zeros = vec![0; blocks as usize * block_bytes];
                self.disk.write(first, &zeros, block_bytes, is_durable);
                Status::SUCCESS
            }
            _ => Status::INVALID_OPCODE,
        }
    }

    /// Copies what a command answers to where it says.
    fn hand_back(&mut self, command: &Command, data: &[u8]) -> Status {
        let pieces = match self.pieces(command, data.len()) {
            Ok(pieces) => pieces,
            Err(what) => {
                self.violate(what);
                return Status::DATA_TRANSFER_ERROR;
            }
        };
        let mut at = 0;
        for (pointer, count) in pieces {
            // SAFETY: mapped memory, and the state is locked; the driver's callers leave it alone
            // until the command has ended.
            unsafe { std::ptr::copy_nonoverlapping(data[at..].as_ptr(), pointer, count) };
            at += count;
        }
        Status::SUCCESS
    }

    /// Follows a command's PRP entries.
    fn pieces(&self, command: &Command, bytes: usize) -> Result<Vec<(*mut u8, usize)>, String> {
        let (first, second) = (words(command, 6), words(command, 8));
        let unmapped = |what| format!("{what} is not in mapped memory");
        let page = PAGE as u64;
        let count = bytes.min((page - first % page) as usize);
        let pointer = self.memory(first, count).ok_or_else(|| unmapped("data"))?;
        let mut pieces = vec![(pointer, count)];
        let mut left = bytes - count;
        let has_list = left > PAGE;
        if has_list && left > PAGE * PAGE / 8 {
            return Err("a PRP list has more than a page".to_owned());
        }
        let mut entry = second;
        while left > 0 {
            let mut address = second;
            if has_list {
                let list = self
                    .memory(entry, 8)
                    .ok_or_else(|| unmapped("a PRP list"))?;
                // SAFETY: mapped memory, and the state is locked.
                address = u64::from_le(unsafe { list.cast::<u64>().read_unaligned() });
                entry += 8;
            }
            if address % page != 0 {
                return Err("a PRP entry behind the first begins within a page".to_owned());
            }
            let count = left.min(PAGE);
            let pointer = self
                .memory(address, count)
                .ok_or_else(|| unmapped("data"))?;
            pieces.push((pointer, count));
            left -= count;
        }
        Ok(pieces)
    }
}
