//! What the tree of objects has of each path, as bytes.

use chrono::{DateTime, Utc};
use isobath::Error;
use object_store::path::Path;
use object_store::{Attribute, AttributeValue, Attributes, ObjectMeta};

use crate::id::Id;

/// The first byte of each record.
const FORMAT: u8 = 1;

/// An object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObjectRecord {
    pub(crate) id: Id,
    pub(crate) modified: DateTime<Utc>,
    /// Bytes of each part of the contents.
    pub(crate) parts: Vec<u64>,
    pub(crate) attributes: Attributes,
}

impl ObjectRecord {
    /// Bytes of the object.
    pub(crate) fn size(&self) -> u64 {
        self.parts.iter().sum()
    }

    pub(crate) fn meta(&self, location: Path) -> ObjectMeta {
        ObjectMeta {
            location,
            last_modified: self.modified,
            size: self.size(),
            e_tag: Some(self.id.e_tag()),
            version: None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.id.key());
        let modified = self.modified.timestamp_nanos_opt().unwrap_or(i64::MAX);
        bytes.extend(modified.to_le_bytes());
        bytes.extend((self.parts.len() as u32).to_le_bytes());
        for part in &self.parts {
            bytes.extend(part.to_le_bytes());
        }
        encode_attributes(&self.attributes, &mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ObjectRecord, Error> {
        let mut rest = Rest(bytes);
        rest.format()?;
        let id = Id::of_key(rest.take(16)?)?;
        let modified = DateTime::from_timestamp_nanos(rest.u64()?.cast_signed());
        let parts = rest.u32()?;
        // Fewer than the bytes that are left: no length makes it reserve memory.
        let parts = (0..parts).map(|_| rest.u64()).collect::<Result<_, _>>()?;
        let attributes = rest.attributes()?;
        Ok(ObjectRecord {
            id,
            modified,
            parts,
            attributes,
        })
    }
}

/// An upload under way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Upload {
    /// It outlives the process that has begun it.
    pub(crate) lasts: bool,
    pub(crate) attributes: Attributes,
}

impl Upload {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, u8::from(self.lasts)];
        encode_attributes(&self.attributes, &mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Upload, Error> {
        let mut rest = Rest(bytes);
        rest.format()?;
        Ok(Upload {
            lasts: rest.take(1)? != [0],
            attributes: rest.attributes()?,
        })
    }
}

/// Kinds of attributes; that of those with a name of their own is 0.
const KINDS: &[(u8, Attribute)] = &[
    (1, Attribute::ContentDisposition),
    (2, Attribute::ContentEncoding),
    (3, Attribute::ContentLanguage),
    (4, Attribute::ContentType),
    (5, Attribute::CacheControl),
    (6, Attribute::StorageClass),
];

/// Whether each attribute is of a kind that records have.
pub(crate) fn are_known(attributes: &Attributes) -> bool {
    attributes
        .iter()
        .all(|(attribute, _)| kind(attribute).is_some())
}

/// The number of a kind, and the name.
fn kind(attribute: &Attribute) -> Option<(u8, &str)> {
    if let Attribute::Metadata(name) = attribute {
        return Some((0, name));
    }
    let known = KINDS.iter().find(|(_, known)| known == attribute)?;
    Some((known.0, ""))
}

fn encode_attributes(attributes: &Attributes, into: &mut Vec<u8>) {
    let mut text = |text: &str| {
        into.extend((text.len() as u32).to_le_bytes());
        into.extend(text.as_bytes());
    };
    for (attribute, value) in attributes {
        // Others were refused (`are_known`).
        if let Some((number, name)) = kind(attribute) {
            text(&char::from(number).to_string());
            text(name);
            text(value);
        }
    }
}

/// Bytes of a record that are still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (first, rest) = self.0.split_at_checked(count).ok_or_else(unreadable)?;
        self.0 = rest;
        Ok(first)
    }

    fn format(&mut self) -> Result<(), Error> {
        match self.take(1)? {
            [FORMAT] => Ok(()),
            _ => Err(unreadable()),
        }
    }

    fn u64(&mut self) -> Result<u64, Error> {
        let bytes = self.take(8)?.try_into().map_err(|_| unreadable())?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?.try_into().map_err(|_| unreadable())?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Result<&'a str, Error> {
        let length = self.u32()? as usize;
        std::str::from_utf8(self.take(length)?).map_err(|_| unreadable())
    }

    fn attributes(&mut self) -> Result<Attributes, Error> {
        let mut attributes = Attributes::new();
        // Bound: each round takes bytes.
        while !self.0.is_empty() {
            let (number, name) = (self.text()?, self.text()?.to_owned());
            let attribute = match number.as_bytes() {
                [0] => Attribute::Metadata(name.into()),
                [number] => KINDS
                    .iter()
                    .find(|(known, _)| known == number)
                    .map(|(_, attribute)| attribute.clone())
                    .ok_or_else(unreadable)?,
                _ => return Err(unreadable()),
            };
            let value = AttributeValue::from(self.text()?.to_owned());
            attributes.insert(attribute, value);
        }
        Ok(attributes)
    }
}

/// Records have checksums: another program has written this one, or a newer version.
fn unreadable() -> Error {
    Error::Structure {
        page: 0,
        reason: "a record of the object store is none that this version has written",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> Attributes {
        let mut attributes: Attributes = KINDS
            .iter()
            .map(|(_, attribute)| (attribute.clone(), "some value"))
            .collect();
        attributes.insert(Attribute::Metadata("owner".into()), "ada".into());
        attributes.insert(Attribute::Metadata("".into()), "".into());
        attributes
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = ObjectRecord {
            id: Id::new(),
            modified: DateTime::from_timestamp_nanos(1_700_000_000_123_456_789),
            parts: vec![0, 1 << 40, 7],
            attributes: attributes(),
        };
        assert_eq!(ObjectRecord::decode(&record.encode()).unwrap(), record);
        assert_eq!(record.size(), (1 << 40) + 7);
        let upload = Upload {
            lasts: true,
            attributes: attributes(),
        };
        assert_eq!(Upload::decode(&upload.encode()).unwrap(), upload);
    }

    #[test]
    fn other_bytes_are_refused_or_another_record() {
        let record = ObjectRecord {
            id: Id::new(),
            modified: DateTime::from_timestamp_nanos(-1),
            parts: vec![1, 2, 3],
            attributes: attributes(),
        };
        let bytes = record.encode();
        for length in 0..bytes.len() {
            if let Ok(shorter) = ObjectRecord::decode(&bytes[..length]) {
                assert_ne!(shorter, record, "{length}");
            }
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0xff;
            if let Ok(decoded) = ObjectRecord::decode(&other) {
                assert_ne!(decoded, record, "{at}");
            }
        }
        // A count that memory is not reserved for.
        let mut other = bytes;
        other[25..29].fill(0xff);
        assert!(ObjectRecord::decode(&other).is_err());
    }

    #[test]
    fn names_of_ids_are_read_back() {
        let id = Id::new();
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        assert_eq!(Id::of_key(&id.key()).unwrap(), id);
        assert_ne!(Id::new(), id);
        assert_eq!(Id::parse("test"), None);
    }
}
