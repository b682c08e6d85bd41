//! The bodies of the log's records, and their layout (docs/format.md).
//!
//! Bodies only: the header with length, checksum and LSN is the log's own.

use crate::page::{HEADER_SIZE, Lsn, PAGE_SIZE, PageId, get_u16, get_u32, get_u64};
use crate::shared::Address;
use crate::types::{Tree, TreeId, ValueKind, ValueRef};

/// A record's kind; the byte in its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The writes of one transaction.
    Commit = 1,
    /// New images of pages, and freed pages.
    Structure = 2,
    /// Places of copies of pages and chunks.
    Mapping = 3,
    /// Freed chunks, and cancelled tokens.
    Free = 4,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Commit,
            2 => Kind::Structure,
            3 => Kind::Mapping,
            4 => Kind::Free,
            _ => return None,
        })
    }
}

/// Names pages and chunks that exist before anything reachable names them; the
/// LSN of a stamp, so that none is given twice.
pub(crate) type Token = u64;

/// One write of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) tree: Tree,
    pub(crate) key: &'a [u8],
    /// The key's new value; `None` if none.
    pub(crate) value: Option<ValueRef<'a>>,
}

/// The kind of an entry of a mapping record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Copied {
    /// A page of a tree; `version` orders it among all that is known of the page.
    Page = 0,
    /// A chunk that did not exist before, which is on the drive.
    NewChunk = 1,
    /// A chunk that was moved.
    MovedChunk = 2,
    /// No copy yet: a page that belongs to the record's token until that is confirmed.
    Provisional = 3,
    /// A chunk that did not exist before, which was written and is on the drive once this record
    /// counts as durable (docs/decisions/0086).
    UnflushedChunk = 4,
}

/// One entry of a mapping record: a copy, which is on the drive but for [`Copied::UnflushedChunk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapped {
    pub(crate) what: Copied,
    pub(crate) page: PageId,
    /// The page's LSN in that copy.
    pub(crate) version: Lsn,
    pub(crate) address: Address,
    /// Sequence number of the segment.
    pub(crate) seq: u64,
}

/// Bytes of a mapping record's body beside its copies, and of each of these.
pub(crate) const MAPPING_BYTES: usize = 8;
pub(crate) const MAPPED_BYTES: usize = 32;
/// Above the bits of a page id.
const WHAT_SHIFT: u32 = 56;

/// The body of a commit record under construction.
#[derive(Default)]
pub(crate) struct CommitBody(Vec<u8>);

impl CommitBody {
    /// A commit that confirms `tokens` and frees `chunks`.
    pub(crate) fn new(tokens: &[Token], chunks: &[PageId]) -> CommitBody {
        let mut bytes = Vec::with_capacity(256);
        put_list(&mut bytes, tokens.iter().copied());
        put_list(&mut bytes, chunks.iter().map(|id| id.0));
        CommitBody(bytes)
    }

    /// Adds a write.
    pub(crate) fn push(&mut self, operation: &Operation<'_>) {
        let (kind, value) = match operation.value {
            None => (0u8, &[][..]),
            Some(value) if value.kind == ValueKind::Inline => (1, value.bytes),
            Some(value) => (2, value.bytes),
        };
        let bytes = &mut self.0;
        bytes.extend_from_slice(&operation.tree.root.0.to_le_bytes());
        bytes.extend_from_slice(&operation.tree.id.0.to_le_bytes());
        bytes.extend_from_slice(&(operation.key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(operation.key);
        bytes.extend_from_slice(value);
    }

    /// The body's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes that one operation takes in a commit's body.
pub(crate) fn operation_bytes(key: usize, value: usize) -> usize {
    17 + key + value
}

fn put_list(bytes: &mut Vec<u8>, items: impl ExactSizeIterator<Item = u64>) {
    bytes.extend_from_slice(&(items.len() as u32).to_le_bytes());
    items.for_each(|item| bytes.extend_from_slice(&item.to_le_bytes()));
}

/// The body of a structure record. `loaded` is the lower bound of a bulk load that the
/// record makes part of the tree.
pub(crate) fn structure_body<'a>(
    tree: TreeId,
    images: impl ExactSizeIterator<Item = (PageId, &'a [u8; PAGE_SIZE])>,
    ended: impl ExactSizeIterator<Item = PageId>,
    tokens: &[Token],
    loaded: Option<&[u8]>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + images.len() * 2048);
    bytes.extend_from_slice(&tree.0.to_le_bytes());
    put_list(&mut bytes, tokens.iter().copied());
    put_list(&mut bytes, ended.map(|id| id.0));
    bytes.extend_from_slice(&(images.len() as u32).to_le_bytes());
    for (id, image) in images {
        let (hole, length) = longest_zeros(image);
        bytes.extend_from_slice(&id.0.to_le_bytes());
        bytes.extend_from_slice(&(hole as u16).to_le_bytes());
        bytes.extend_from_slice(&(length as u16).to_le_bytes());
        bytes.extend_from_slice(&image[..hole]);
        bytes.extend_from_slice(&image[hole + length..]);
    }
    if let Some(lower) = loaded {
        // Not 0, which padding is.
        bytes.extend_from_slice(&(lower.len() as u32 + 1).to_le_bytes());
        bytes.extend_from_slice(lower);
    }
    bytes
}

/// The longest run of zero words of a page behind its header: start and length in bytes.
fn longest_zeros(image: &[u8; PAGE_SIZE]) -> (usize, usize) {
    let (mut best, mut start) = ((HEADER_SIZE, 0), HEADER_SIZE);
    for at in (HEADER_SIZE..PAGE_SIZE).step_by(8) {
        if get_u64(image, at) != 0 {
            start = at + 8;
        } else if at + 8 - start > best.1 {
            best = (start, at + 8 - start);
        }
    }
    best
}

/// The body of a mapping record; `token` is 0 if the copies belong to nothing that could still
/// be cancelled.
pub(crate) fn mapping_body(token: Token, copies: &[Mapped]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + copies.len() * MAPPED_BYTES);
    bytes.extend_from_slice(&token.to_le_bytes());
    for copy in copies {
        let page = copy.page.0 | (copy.what as u64) << WHAT_SHIFT;
        bytes.extend_from_slice(&page.to_le_bytes());
        bytes.extend_from_slice(&copy.version.0.to_le_bytes());
        bytes.extend_from_slice(&copy.address.to_raw().to_le_bytes());
        bytes.extend_from_slice(&copy.seq.to_le_bytes());
    }
    bytes
}

/// The body of a free record: freed chunks, cancelled tokens.
pub(crate) fn free_body(tokens: &[Token], chunks: &[PageId]) -> Vec<u8> {
    CommitBody::new(tokens, chunks).0
}

/// A record read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Body<'a> {
    Commit {
        tokens: Vec<Token>,
        chunks: Vec<PageId>,
        operations: Vec<Operation<'a>>,
    },
    Structure {
        tree: TreeId,
        tokens: Vec<Token>,
        ended: Vec<PageId>,
        images: Vec<PageImage<'a>>,
        /// The lower bound of a bulk load that this makes part of the tree.
        loaded: Option<&'a [u8]>,
    },
    Mapping {
        token: Token,
        copies: Vec<Mapped>,
    },
    Free {
        tokens: Vec<Token>,
        chunks: Vec<PageId>,
    },
}

/// A page's image in a structure record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageImage<'a> {
    pub(crate) page: PageId,
    hole: usize,
    length: usize,
    bytes: &'a [u8],
}

impl PageImage<'_> {
    /// The whole page.
    pub(crate) fn expand(&self, into: &mut [u8; PAGE_SIZE]) {
        into[..self.hole].copy_from_slice(&self.bytes[..self.hole]);
        into[self.hole..self.hole + self.length].fill(0);
        into[self.hole + self.length..].copy_from_slice(&self.bytes[self.hole..]);
    }
}

/// Takes fields off the front of a body; `None` once it is too short.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn u16(&mut self) -> Option<usize> {
        self.bytes(2).map(|bytes| usize::from(get_u16(bytes, 0)))
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4).map(|bytes| get_u32(bytes, 0))
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8).map(|bytes| get_u64(bytes, 0))
    }

    fn list(&mut self) -> Option<Vec<u64>> {
        let count = self.u32()? as usize;
        let bytes = self.bytes(count.checked_mul(8)?)?;
        Some(bytes.chunks_exact(8).map(|word| get_u64(word, 0)).collect())
    }

    fn pages(&mut self) -> Option<Vec<PageId>> {
        Some(self.list()?.into_iter().map(PageId).collect())
    }
}

/// Reads a record's body; `None` if it makes no sense, which a record with a
/// matching checksum never does.
pub(crate) fn decode(kind: Kind, body: &[u8]) -> Option<Body<'_>> {
    let mut fields = Fields(body);
    match kind {
        Kind::Commit => {
            let tokens = fields.list()?;
            let chunks = fields.pages()?;
            let mut operations = Vec::new();
            // A body is padded to a multiple of 8 bytes; an operation is longer.
            while fields.0.len() >= 17 {
                operations.push(operation(&mut fields)?);
            }
            Some(Body::Commit {
                tokens,
                chunks,
                operations,
            })
        }
        Kind::Structure => {
            let tree = TreeId(fields.u32()?);
            let tokens = fields.list()?;
            let ended = fields.pages()?;
            let count = fields.u32()?;
            let images = (0..count)
                .map(|_| image(&mut fields))
                .collect::<Option<Vec<_>>>()?;
            let loaded = match fields.u32() {
                None | Some(0) => None,
                Some(length) => Some(fields.bytes(length as usize - 1)?),
            };
            Some(Body::Structure {
                tree,
                tokens,
                ended,
                images,
                loaded,
            })
        }
        Kind::Mapping => {
            let token = fields.u64()?;
            let mut copies = Vec::with_capacity(fields.0.len() / MAPPED_BYTES);
            while fields.0.len() >= MAPPED_BYTES {
                copies.push(mapped(&mut fields)?);
            }
            Some(Body::Mapping { token, copies })
        }
        Kind::Free => Some(Body::Free {
            tokens: fields.list()?,
            chunks: fields.pages()?,
        }),
    }
}

fn operation<'a>(fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    let root = PageId(fields.u64()?);
    let id = TreeId(fields.u32()?);
    let (key_len, value_len) = (fields.u16()?, fields.u16()?);
    if key_len > crate::MAX_KEY_BYTES {
        return None;
    }
    let kind = fields.bytes(1)?[0];
    let key = fields.bytes(key_len)?;
    let value = fields.bytes(value_len)?;
    let value = match kind {
        0 => None,
        1 => Some(ValueRef::inline(value)),
        2 => Some(ValueRef::extent(value)),
        _ => return None,
    };
    Some(Operation {
        tree: Tree { root, id },
        key,
        value,
    })
}

fn image<'a>(fields: &mut Fields<'a>) -> Option<PageImage<'a>> {
    let page = PageId(fields.u64()?);
    let (hole, length) = (fields.u16()?, fields.u16()?);
    let stored = PAGE_SIZE.checked_sub(length)?;
    if hole > stored {
        return None;
    }
    Some(PageImage {
        page,
        hole,
        length,
        bytes: fields.bytes(stored)?,
    })
}

fn mapped(fields: &mut Fields<'_>) -> Option<Mapped> {
    let page = fields.u64()?;
    let what = match page >> WHAT_SHIFT {
        0 => Copied::Page,
        1 => Copied::NewChunk,
        2 => Copied::MovedChunk,
        3 => Copied::Provisional,
        4 => Copied::UnflushedChunk,
        _ => return None,
    };
    Some(Mapped {
        what,
        page: PageId(page & ((1 << WHAT_SHIFT) - 1)),
        version: Lsn(fields.u64()?),
        address: Address::from_raw(fields.u64()? & ((1 << 62) - 1)),
        seq: fields.u64()?,
    })
}

/// Pads a body to the multiple of 8 bytes that records are laid out in.
pub(crate) fn padding(body: usize) -> usize {
    body.next_multiple_of(8) - body
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn padded(body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        bytes.resize(body.len() + padding(body.len()), 0);
        bytes
    }

    #[test]
    fn a_key_longer_than_keys_can_be_is_in_no_record() {
        let tree = Tree {
            root: PageId(77),
            id: TreeId(3),
        };
        for (length, is_read) in [
            (crate::MAX_KEY_BYTES, true),
            (crate::MAX_KEY_BYTES + 1, false),
        ] {
            let mut body = CommitBody::new(&[], &[]);
            body.push(&Operation {
                tree,
                key: &vec![1; length],
                value: None,
            });
            let bytes = padded(body.bytes());
            assert_eq!(decode(Kind::Commit, &bytes).is_some(), is_read);
        }
    }

    proptest! {
        #[test]
        fn commits_read_back(
            writes in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), prop::option::of(prop::collection::vec(any::<u8>(), 0..60)), any::<bool>()), 0..20),
            tokens in prop::collection::vec(any::<u64>(), 0..3),
            chunks in prop::collection::vec(any::<u64>().prop_map(PageId), 0..5),
        ) {
            let tree = Tree { root: PageId(77), id: TreeId(3) };
            let mut body = CommitBody::new(&tokens, &chunks);
            let expected: Vec<Operation<'_>> = writes.iter().map(|(key, value, extent)| Operation {
                tree,
                key,
                value: value.as_deref().map(|value| if *extent { ValueRef::extent(value) } else { ValueRef::inline(value) }),
            }).collect();
            expected.iter().for_each(|operation| body.push(operation));
            let bytes = padded(body.bytes());
            prop_assert_eq!(decode(Kind::Commit, &bytes), Some(Body::Commit { tokens, chunks, operations: expected }));
        }

        #[test]
        fn images_read_back(filled in prop::collection::vec((0usize..PAGE_SIZE, 1usize..200, 1u8..), 0..12)) {
            let mut page = [0u8; PAGE_SIZE];
            for (at, length, byte) in filled {
                let end = (at + length).min(PAGE_SIZE);
                page[at..end].fill(byte);
            }
            let body = structure_body(TreeId(9), [(PageId(5), &page)].into_iter(), [PageId(6), PageId(7)].into_iter(), &[1], Some(b"from"));
            let bytes = padded(&body);
            let Some(Body::Structure { tree, tokens, ended, images, loaded: Some(b"from") }) = decode(Kind::Structure, &bytes) else {
                return Err(TestCaseError::fail("no structure"));
            };
            prop_assert_eq!((tree, tokens, ended), (TreeId(9), vec![1], vec![PageId(6), PageId(7)]));
            let mut back = [1u8; PAGE_SIZE];
            images[0].expand(&mut back);
            prop_assert_eq!(back, page);
            prop_assert_eq!(images[0].page, PageId(5));
        }

        #[test]
        fn any_bytes_decode_to_something_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 1u8..5) {
            if let Some(kind) = Kind::from_byte(kind) {
                let _ = decode(kind, &bytes);
            }
        }
    }

    #[test]
    fn mapping_records_read_back() {
        let copies = [
            Mapped {
                what: Copied::Page,
                page: PageId(1),
                version: Lsn(88),
                address: Address::new(3, 4096, 4096),
                seq: 12,
            },
            Mapped {
                what: Copied::MovedChunk,
                page: PageId(1 << 40),
                version: Lsn(0),
                address: Address::new(9, 0, 65536),
                seq: 13,
            },
            Mapped {
                what: Copied::UnflushedChunk,
                page: PageId(3),
                version: Lsn(96),
                address: Address::new(9, 65536, 4096),
                seq: 13,
            },
        ];
        let body = mapping_body(5, &copies);
        assert_eq!(
            decode(Kind::Mapping, &body),
            Some(Body::Mapping {
                token: 5,
                copies: copies.to_vec()
            })
        );
        let body = padded(&free_body(&[4], &[PageId(8), PageId(9)]));
        assert_eq!(
            decode(Kind::Free, &body),
            Some(Body::Free {
                tokens: vec![4],
                chunks: vec![PageId(8), PageId(9)]
            })
        );
    }

    #[test]
    fn sizes_of_operations_are_as_computed() {
        let mut body = CommitBody::new(&[], &[]);
        let empty = body.bytes().len();
        body.push(&Operation {
            tree: Tree {
                root: PageId(1),
                id: TreeId(0),
            },
            key: b"key",
            value: Some(ValueRef::inline(b"value")),
        });
        assert_eq!(body.bytes().len() - empty, operation_bytes(3, 5));
    }
}
