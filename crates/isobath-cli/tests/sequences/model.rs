//! What a store must hold.

use std::collections::{BTreeMap, BTreeSet};

/// The records of one tree.
pub(crate) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The trees of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) trees: BTreeMap<String, Records>,
}

/// Tree and key, and all that effects make of that record.
type Choices<'e> = BTreeMap<(&'e String, &'e Vec<u8>), Vec<Option<&'e Vec<u8>>>>;

/// What one step does, in this order.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    Create(String),
    Drop(String),
    /// The tree is made if it is missing.
    Put(String, Vec<u8>, Vec<u8>),
    Delete(String, Vec<u8>),
}

impl Model {
    pub(crate) fn get(&self, tree: &str, key: &[u8]) -> Option<&Vec<u8>> {
        self.trees.get(tree)?.get(key)
    }

    pub(crate) fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Create(tree) => {
                    self.trees.entry(tree.clone()).or_default();
                }
                Effect::Drop(tree) => {
                    self.trees.remove(tree);
                }
                Effect::Put(tree, key, value) => {
                    let records = self.trees.entry(tree.clone()).or_default();
                    records.insert(key.clone(), value.clone());
                }
                Effect::Delete(tree, key) => {
                    if let Some(records) = self.trees.get_mut(tree) {
                        records.remove(key);
                    }
                }
            }
        }
    }

    /// Whether `found` may be what a process left that was killed at some moment of these effects:
    /// of each record what it was, or any that the effects gave it; a dropped tree whole or gone.
    pub(crate) fn may_become(&self, found: &Model, effects: &[Effect]) -> Result<(), String> {
        let mut before: BTreeSet<&String> = self.trees.keys().collect();
        let mut optional = BTreeSet::new();
        let mut choices = Choices::new();
        for effect in effects {
            match effect {
                Effect::Create(tree) | Effect::Drop(tree) => {
                    optional.insert(tree);
                }
                Effect::Put(tree, key, value) => {
                    optional.insert(tree);
                    choices.entry((tree, key)).or_default().push(Some(value));
                }
                Effect::Delete(tree, key) => choices.entry((tree, key)).or_default().push(None),
            }
        }
        let drops = effects.iter().any(|e| matches!(e, Effect::Drop(_)));
        let empty = Records::new();
        for (tree, records) in &found.trees {
            let was = self.trees.get(tree);
            if was.is_none() && !optional.contains(tree) {
                return Err(format!("tree {tree:?} was never made"));
            }
            before.remove(tree);
            let was = was.unwrap_or(&empty);
            let keys: BTreeSet<&Vec<u8>> = was.keys().chain(records.keys()).collect();
            for key in keys {
                let (old, new) = (was.get(key), records.get(key));
                let given = choices.get(&(tree, key));
                if old != new && !given.is_some_and(|given| given.contains(&new)) {
                    return Err(format!(
                        "tree {tree:?}, key {}: {}",
                        short(key),
                        difference(old.map(Vec::as_slice), new.map(Vec::as_slice))
                    ));
                }
            }
        }
        match before
            .iter()
            .find(|tree| !(drops && optional.contains(*tree)))
        {
            Some(tree) => Err(format!("tree {tree:?} is gone")),
            None => Ok(()),
        }
    }
}

/// A key for a person.
pub(crate) fn short(key: &[u8]) -> String {
    let text = isobath_lab::escape(&key[..key.len().min(12)]);
    format!("{text} ({} bytes)", key.len())
}

/// The problem of a value.
pub(crate) fn difference(expected: Option<&[u8]>, found: Option<&[u8]>) -> String {
    match (expected, found) {
        (None, Some(found)) => format!("absent, but {} bytes were found", found.len()),
        (Some(expected), None) => format!("{} bytes, but it is absent", expected.len()),
        (Some(expected), Some(found)) => {
            let at = expected.iter().zip(found).position(|(a, b)| a != b);
            format!(
                "{} bytes, but {} were found, which differ from byte {}",
                expected.len(),
                found.len(),
                at.unwrap_or(expected.len().min(found.len()))
            )
        }
        (None, None) => "nothing is wrong".to_owned(),
    }
}

/// What one record has and the other has not.
pub(crate) fn compare(expected: &Records, found: &Records) -> Result<(), String> {
    let keys: BTreeSet<&Vec<u8>> = expected.keys().chain(found.keys()).collect();
    let mut wrong = keys
        .into_iter()
        .filter(|key| expected.get(*key) != found.get(*key))
        .peekable();
    let Some(first) = wrong.peek().copied() else {
        return Ok(());
    };
    Err(format!(
        "{} records are wrong; the first has key {}: {}",
        wrong.count(),
        short(first),
        difference(
            expected.get(first).map(Vec::as_slice),
            found.get(first).map(Vec::as_slice)
        )
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Effect {
        Effect::Put("t".to_owned(), key.into(), value.into())
    }

    fn model(effects: &[Effect]) -> Model {
        let mut model = Model::default();
        model.apply(effects);
        model
    }

    #[test]
    fn a_killed_step_leaves_each_record_old_or_new() {
        let before = model(&[put("a", "1"), put("b", "1")]);
        let step = [
            put("a", "2"),
            put("c", "3"),
            Effect::Delete("t".into(), "b".into()),
        ];
        let ok = |found: &[Effect]| before.may_become(&model(found), &step).is_ok();
        assert!(ok(&[put("a", "1"), put("b", "1")]));
        assert!(ok(&[put("a", "2"), put("c", "3")]));
        assert!(ok(&[put("a", "1"), put("c", "3")]));
        assert!(!ok(&[put("b", "1")]), "a record that was not removed");
        assert!(
            !ok(&[put("a", "9"), put("b", "1")]),
            "a value that was never put"
        );
        assert!(!ok(&[put("a", "1"), put("b", "1"), put("d", "1")]));
        assert!(!ok(&[]), "a tree that was not dropped");
        assert!(
            before
                .may_become(&model(&[]), &[Effect::Drop("t".into())])
                .is_ok()
        );
        let half = model(&[put("a", "1")]);
        assert!(
            before
                .may_become(&half, &[Effect::Drop("t".into())])
                .is_err()
        );
    }

    #[test]
    fn differences_are_found() {
        let one = model(&[put("a", "12")]).trees["t"].clone();
        let other = model(&[put("a", "13")]).trees["t"].clone();
        assert!(compare(&one, &one).is_ok());
        assert!(compare(&one, &other).is_err_and(|e| e.contains("from byte 1")));
        assert!(compare(&one, &Records::new()).is_err_and(|e| e.contains("absent")));
    }
}
