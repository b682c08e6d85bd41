//! Reading the contents of a single page outside its tree, for corrupt stores.

use super::{TreeId, ValueKind};
use crate::node::{Image, MalformedNode, Node};
use crate::page::{PAGE_SIZE, PageId};

/// One record of a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PageRecord {
    pub(crate) key: Vec<u8>,
    pub(crate) kind: ValueKind,
    /// The value, or the descriptor of an extent.
    pub(crate) value: Vec<u8>,
}

/// A page's contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Records, in order of their keys.
    Leaf(Vec<PageRecord>),
    /// One more child than separators.
    Inner {
        separators: Vec<Vec<u8>>,
        children: Vec<PageId>,
    },
}

/// Reads a page of `tree`.
///
/// # Errors
///
/// Which rule of a node it breaks.
pub(crate) fn read_content(bytes: &[u8; PAGE_SIZE], tree: TreeId) -> Result<Content, &'static str> {
    let mut image = Image::zeroed();
    image.0.copy_from_slice(bytes);
    parse(&image, tree).map_err(|why| why.0)
}

fn parse(image: &Image, tree: TreeId) -> Result<Content, MalformedNode> {
    let node = Node::open(image, tree)?;
    node.check()?;
    let key = |position| {
        let mut key = Vec::new();
        node.key(position, &mut key).map(|()| key)
    };
    if !node.is_leaf() {
        return Ok(Content::Inner {
            separators: (0..node.count()).map(key).collect::<Result<_, _>>()?,
            children: (0..=node.count())
                .map(|position| node.child(position))
                .collect::<Result<_, _>>()?,
        });
    }
    let mut records = Vec::with_capacity(node.count());
    for position in 0..node.count() {
        let value = node.value(position)?;
        let bytes = image.0.get(value.at..value.at + value.len);
        records.push(PageRecord {
            key: key(position)?,
            kind: value.kind,
            value: bytes.ok_or(MalformedNode("a value lies outside"))?.to_vec(),
        });
    }
    Ok(Content::Leaf(records))
}
