//! The members of a volume together: which there are, and what their labels say.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::VolumeError;
use crate::file::label::Label;
use crate::file::member::Member;
use crate::file::stripe::StripeMap;
use crate::options::MAX_MEMBERS;

pub(super) fn map_of(label: &Label) -> StripeMap {
    StripeMap {
        members: label.count,
        unit: label.stripe_unit,
        data_offset: label.data_offset,
    }
}

pub(super) fn read_labels(members: &[Member]) -> Result<Vec<Label>, VolumeError> {
    members.iter().map(Member::read_label).collect()
}

/// What the labels of all members say together. After a crash during growth some are newer; what
/// was not acknowledged does not count.
pub(super) fn common_label(labels: &[Label]) -> Label {
    Label {
        len: labels.iter().map(|label| label.len).min().unwrap_or(0),
        ..labels[0]
    }
}

/// The members that are shorter than `label` says.
pub(super) fn find_truncated(
    members: &[Member],
    label: &Label,
) -> Result<Vec<VolumeError>, VolumeError> {
    let map = map_of(label);
    let mut truncated = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let expected = match map.share_len(index as u32, label.len) {
            0 => 0,
            share => map.data_offset + share,
        };
        let found = member.size()?;
        if found < expected {
            truncated.push(VolumeError::Truncated {
                path: member.path.clone(),
                expected,
                found,
            });
        }
    }
    Ok(truncated)
}

pub(super) fn check_count(paths: &[PathBuf]) -> Result<(), VolumeError> {
    if paths.is_empty() || paths.len() > MAX_MEMBERS {
        return Err(VolumeError::BadOption {
            option: "number of devices",
            must: "1 to 256",
            found: paths.len() as u64,
        });
    }
    Ok(())
}

/// Refuses the same path twice, or two names of one file.
pub(super) fn check_distinct(paths: &[PathBuf]) -> Result<(), VolumeError> {
    let mut seen: HashMap<(u64, u64), &Path> = HashMap::new();
    for (i, path) in paths.iter().enumerate() {
        let twin = match fs::metadata(path) {
            Ok(meta) => seen.insert((meta.dev(), meta.ino()), path),
            Err(_) => paths[..i].iter().find(|p| *p == path).map(PathBuf::as_path),
        };
        if let Some(twin) = twin {
            return Err(VolumeError::Duplicate {
                a: twin.to_owned(),
                b: path.clone(),
            });
        }
    }
    Ok(())
}

/// Checks that the labels make up one whole volume in its order.
pub(super) fn check_set(paths: &[PathBuf], labels: &[Label]) -> Result<(), VolumeError> {
    let first = &labels[0];
    for (label, path) in labels.iter().zip(paths) {
        if label.uuid != first.uuid {
            return Err(VolumeError::DifferentVolumes {
                a: paths[0].clone(),
                b: path.clone(),
            });
        }
        let same = (label.count, label.stripe_unit, label.data_offset)
            == (first.count, first.stripe_unit, first.data_offset);
        if !same {
            return Err(VolumeError::LabelCorrupt { path: path.clone() });
        }
    }
    let mut owner: Vec<Option<usize>> = vec![None; first.count as usize];
    for (given, label) in labels.iter().enumerate() {
        if let Some(other) = owner[label.index as usize].replace(given) {
            return Err(VolumeError::Duplicate {
                a: paths[other].clone(),
                b: paths[given].clone(),
            });
        }
    }
    if labels.len() != first.count as usize {
        let missing = (0..first.count).filter(|i| owner[*i as usize].is_none());
        return Err(VolumeError::WrongCount {
            path: paths[0].clone(),
            expected: first.count,
            given: labels.len() as u32,
            missing: missing.collect(),
        });
    }
    let misplaced = labels
        .iter()
        .enumerate()
        .find(|(i, l)| l.index as usize != *i);
    if let Some((given, label)) = misplaced {
        let order = owner.iter().flatten().map(|given| paths[*given].clone());
        return Err(VolumeError::WrongOrder {
            path: paths[given].clone(),
            given: given as u32,
            found: label.index,
            right_order: order.collect(),
        });
    }
    Ok(())
}
