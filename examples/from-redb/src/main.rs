//! Copies a table of a redb database into a tree of a store, as docs/migration.md says.
//!
//!     cargo run -p isobath-example-from-redb -- DATABASE TABLE STORE

use std::error::Error;
use std::ops::ControlFlow;

use isobath::{Options, Store};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

fn copy(database: &str, table: &str, store: &str) -> Result<u64, Box<dyn Error>> {
    // The types that the table was made with; numbers would be copied with `to_be_bytes`, which
    // sorts as they do.
    let definition: TableDefinition<&[u8], &[u8]> = TableDefinition::new(table);
    let database = Database::open(database)?;
    let records = database.begin_read()?.open_table(definition)?;

    let store = Store::open_or_create(store, &Options::new().pool_bytes(256 << 20))?;
    let mut loader = store.open_or_create_tree(table)?.loader()?;
    for record in records.iter()? {
        let (key, value) = record?;
        loader.push(key.value(), value.value())?;
    }
    let copied = loader.finish(&mut |_, _, _| ControlFlow::Continue(()))?;
    store.close()?;
    Ok(copied)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, table, store] = &arguments[..] else {
        return Err("usage: from-redb DATABASE TABLE STORE".into());
    };
    println!("{} records", copy(database, table, store)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let definition: TableDefinition<&[u8], &[u8]> = TableDefinition::new("people");
        let database = Database::create(at("a.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut table = transaction.open_table(definition).unwrap();
            table
                .insert(&b"ada"[..], &b"Analytical Engine"[..])
                .unwrap();
            table.insert(&[0, 255][..], &[][..]).unwrap();
        }
        transaction.commit().unwrap();
        drop(database);

        assert_eq!(copy(&at("a.redb"), "people", &at("a.isobath")).unwrap(), 2);
        let options = Options::new().pool_bytes(64 << 20).read_only(true);
        let store = Store::open(at("a.isobath"), &options).unwrap();
        let people = store.tree("people").unwrap();
        assert_eq!(
            people.get("ada").unwrap(),
            Some(b"Analytical Engine".to_vec())
        );
        assert_eq!(people.get([0, 255]).unwrap(), Some(Vec::new()));
        assert_eq!(people.count(..).unwrap(), 2);
        store.close().unwrap();
        assert!(copy(&at("a.redb"), "other", &at("a.isobath")).is_err());
    }
}
