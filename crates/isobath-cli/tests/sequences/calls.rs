//! Calls of the API that read and change in one step, and those that change without reading.

use std::ops::Bound;

use isobath::WriteBatch;

use crate::data::Value;
use crate::model::{Effect, short};
use crate::plan::{Call, Change, TREES};
use crate::steps::{agree, all_trees, name, put};
use crate::world::{World, Wrong, engine};

impl World {
    /// A call that reads and changes in one step, or removes what it finds.
    pub(crate) fn call(&mut self, tree: usize, call: &Call) -> Result<(), Wrong> {
        let Some(records) = self.model.trees.get(TREES[tree]) else {
            return Ok(());
        };
        let write = |key: Vec<u8>, new: Option<Vec<u8>>| match new {
            Some(value) => put(tree, key, value),
            None => Effect::Delete(name(tree), key),
        };
        let effects = self.with_own(|store| {
            let tree = store.tree(TREES[tree]).map_err(engine("a tree"))?;
            match call {
                Call::Update(key, value) => {
                    let (key, new) = (key.bytes(), value.map(Value::bytes));
                    let mut found = None;
                    let changed = tree.update(&key, |old| {
                        found = old.map(<[u8]>::to_vec);
                        new.clone()
                    });
                    changed.map_err(engine("update"))?;
                    agree(&key, records.get(&key).map(Vec::as_slice), found.as_deref())?;
                    Ok(vec![write(key, new)])
                }
                Call::Swap {
                    key,
                    expected,
                    value,
                } => {
                    let (key, new) = (key.bytes(), value.map(Value::bytes));
                    let there = records.get(&key).map(Vec::as_slice);
                    let other = there.map_or(Some(&b"other"[..]), |_| None);
                    let old = if *expected { there } else { other };
                    let swapped = tree.compare_and_swap(&key, old, new.as_deref());
                    match swapped.map_err(engine("compare_and_swap"))? {
                        Ok(()) if *expected => Ok(vec![write(key, new)]),
                        Ok(()) => Err(format!("{} was swapped", short(&key))),
                        Err(found) => {
                            agree(&key, there, found.current.as_deref())?;
                            match expected {
                                true => Err(format!("{} was not swapped", short(&key))),
                                false => Ok(Vec::new()),
                            }
                        }
                    }
                }
                Call::Pop { first } => {
                    let (expected, popped) = match first {
                        true => (records.first_key_value(), tree.pop_first()),
                        false => (records.last_key_value(), tree.pop_last()),
                    };
                    match (expected, popped.map_err(engine("pop"))?) {
                        (None, None) => Ok(Vec::new()),
                        (Some((key, value)), Some((other, found))) if *key == other => {
                            agree(key, Some(value), Some(&found))?;
                            Ok(vec![write(other, None)])
                        }
                        (expected, popped) => Err(format!(
                            "pop answers {:?} instead of {:?}",
                            popped.map(|record| short(&record.0)),
                            expected.map(|record| short(record.0))
                        )),
                    }
                }
                Call::RemoveRange(from, to) => {
                    let (from, to) = (from.bytes(), to.bytes());
                    let (from, to) = if from <= to { (from, to) } else { (to, from) };
                    let within = records.range(from.clone()..to.clone());
                    let keys: Vec<_> = within.map(|(key, _)| key.clone()).collect();
                    let bounds = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
                    let counted = tree.count(bounds).map_err(engine("count"))?;
                    let removed = tree.remove_range(bounds).map_err(engine("remove_range"))?;
                    if counted != keys.len() as u64 || removed != counted {
                        return Err(format!(
                            "{} records are counted as {counted} and removed as {removed}",
                            keys.len()
                        ));
                    }
                    Ok(keys.into_iter().map(|key| write(key, None)).collect())
                }
                Call::Clear => match tree.clear().map_err(engine("clear"))? {
                    removed if removed == records.len() as u64 => {
                        let keys = records.keys().cloned();
                        Ok(keys.map(|key| write(key, None)).collect())
                    }
                    removed => Err(format!(
                        "clear removes {removed} records of {}",
                        records.len()
                    )),
                },
            }
        })?;
        self.model.apply(&effects);
        Ok(())
    }

    /// Several changes at once, of whatever there is.
    pub(crate) fn batch(&mut self, changes: &[Change]) -> Result<(), Wrong> {
        let mut effects: Vec<Effect> = TREES.map(|tree| Effect::Create(tree.to_owned())).into();
        self.with_own(|store| {
            let trees = all_trees(store)?;
            let mut batch = WriteBatch::new();
            for change in changes {
                match *change {
                    Change::Put(tree, key, value) | Change::Stream(tree, key, value) => {
                        batch.insert(&trees[tree], key.bytes(), value.bytes());
                        effects.push(put(tree, key.bytes(), value.bytes()));
                    }
                    Change::Delete(tree, key) => {
                        batch.remove(&trees[tree], key.bytes());
                        effects.push(Effect::Delete(name(tree), key.bytes()));
                    }
                    Change::Rollback | Change::Mark => {}
                }
            }
            store.write(&batch).map_err(engine("a batch"))
        })?;
        self.model.apply(&effects);
        Ok(())
    }
}
