//! Records that are found by other fields than their key.
//!
//! An index is a tree whose keys begin with the field and end with the record's own key. A
//! transaction changes record and indexes together, so that they always agree.
//!
//!     cargo run -p isobath-example-secondary-index
#![allow(clippy::big_endian_bytes, reason = "keys sort as their bytes do")]

use isobath::{Options, Store, Transaction, TransactionOptions, Tree};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Person {
    id: u64,
    email: String,
    city: String,
}

/// Why a change is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0} belongs to another person")]
    EmailTaken(String),
    #[error("a field must not have a zero byte")]
    ZeroByte,
    #[error("the record of {0} is corrupt")]
    Corrupt(u64),
    #[error(transparent)]
    Store(isobath::Error),
}

/// Whatever a store fails with, of any kind.
impl<E: Into<isobath::Error>> From<E> for Refused {
    fn from(error: E) -> Refused {
        Refused::Store(error.into())
    }
}

struct People {
    store: Store,
    /// Id -> email and city, with a zero byte between.
    people: Tree,
    /// Email -> id: a unique index.
    by_email: Tree,
    /// City, zero byte, id -> nothing: an index with many records for one value. The zero byte
    /// keeps "York" apart from "Yorkshire".
    by_city: Tree,
}

fn city_key(city: &str, id: u64) -> Vec<u8> {
    [city.as_bytes(), &[0], &id.to_be_bytes()].concat()
}

fn id(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

impl Person {
    fn encode(&self) -> Result<Vec<u8>, Refused> {
        if self.email.contains('\0') || self.city.contains('\0') {
            return Err(Refused::ZeroByte);
        }
        Ok([self.email.as_bytes(), &[0], self.city.as_bytes()].concat())
    }

    fn decode(id: u64, value: Vec<u8>) -> Result<Person, Refused> {
        let text = String::from_utf8(value).map_err(|_| Refused::Corrupt(id))?;
        let (email, city) = text.split_once('\0').ok_or(Refused::Corrupt(id))?;
        let (email, city) = (email.to_owned(), city.to_owned());
        Ok(Person { id, email, city })
    }
}

impl People {
    fn on(store: Store) -> Result<People, isobath::Error> {
        Ok(People {
            people: store.open_or_create_tree("people")?,
            by_email: store.open_or_create_tree("people by email")?,
            by_city: store.open_or_create_tree("people by city")?,
            store,
        })
    }

    /// Stores a person, new or changed.
    fn put(&self, person: &Person) -> Result<(), Refused> {
        let record = person.encode()?;
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                let owner = transaction.get(&self.by_email, &person.email)?;
                if owner.is_some_and(|owner| id(&owner) != person.id) {
                    return Err(Refused::EmailTaken(person.email.clone()));
                }
                self.take_out(transaction, person.id)?;
                let key = person.id.to_be_bytes();
                transaction.insert(&self.people, key, &record)?;
                transaction.insert(&self.by_email, &person.email, key)?;
                transaction.insert(&self.by_city, city_key(&person.city, person.id), "")?;
                Ok(())
            })
    }

    fn remove(&self, id: u64) -> Result<bool, Refused> {
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                self.take_out(transaction, id)
            })
    }

    /// Removes a person's record and what the indexes have of it.
    fn take_out(&self, transaction: &mut Transaction, id: u64) -> Result<bool, Refused> {
        let key = id.to_be_bytes();
        let Some(value) = transaction.get(&self.people, key)? else {
            return Ok(false);
        };
        let old = Person::decode(id, value)?;
        transaction.remove(&self.people, key)?;
        transaction.remove(&self.by_email, &old.email)?;
        transaction.remove(&self.by_city, city_key(&old.city, id))?;
        Ok(true)
    }

    fn by_email(&self, email: &str) -> Result<Option<Person>, Refused> {
        // Index and record are read from the same state of the store.
        let snapshot = self.store.snapshot()?;
        let Some(key) = snapshot.get(&self.by_email, email)? else {
            return Ok(None);
        };
        let value = snapshot.get(&self.people, &key)?;
        value
            .map(|value| Person::decode(id(&key), value))
            .transpose()
    }

    /// The people of a city by id.
    fn by_city(&self, city: &str) -> Result<Vec<Person>, Refused> {
        let snapshot = self.store.snapshot()?;
        let prefix = [city.as_bytes(), &[0]].concat();
        let mut keys = Vec::new();
        for entry in snapshot.prefix(&self.by_city, &prefix)? {
            keys.push(entry?.0.split_off(prefix.len()));
        }
        // One call for all: their page faults overlap.
        let values = snapshot.get_many(&self.people, &keys)?;
        let people = keys.iter().zip(values);
        people
            .filter_map(|(key, value)| Some(Person::decode(id(key), value?)))
            .collect()
    }
}

fn main() -> Result<(), Refused> {
    let options = Options::new().pool_bytes(64 << 20);
    let people = People::on(Store::open_or_create("people.isobath", &options)?)?;
    for (id, email, city) in [
        (1, "ada@example.org", "London"),
        (2, "grace@example.org", "New York"),
    ] {
        let (email, city) = (email.to_owned(), city.to_owned());
        people.put(&Person { id, email, city })?;
    }
    println!("{:?}", people.by_email("ada@example.org")?);
    println!("{:?}", people.by_city("New York")?);
    println!("removed: {}", people.remove(2)?);
    Ok(people.store.close()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(id: u64, email: &str, city: &str) -> Person {
        let (email, city) = (email.to_owned(), city.to_owned());
        Person { id, email, city }
    }

    fn people() -> People {
        let options = Options::new().pool_bytes(16 << 20).workers(1);
        People::on(Store::in_memory(&options).unwrap()).unwrap()
    }

    #[test]
    fn indexes_follow_every_change() {
        let people = people();
        people.put(&person(1, "a@x", "York")).unwrap();
        people.put(&person(2, "b@x", "Yorkshire")).unwrap();
        people.put(&person(3, "c@x", "York")).unwrap();
        let ids = |city| {
            people
                .by_city(city)
                .unwrap()
                .iter()
                .map(|p| p.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids("York"), [1, 3]);
        people.put(&person(1, "new@x", "Leeds")).unwrap();
        assert_eq!((ids("York"), ids("Leeds")), (vec![3], vec![1]));
        assert_eq!(people.by_email("a@x").unwrap(), None);
        assert_eq!(
            people.by_email("new@x").unwrap(),
            Some(person(1, "new@x", "Leeds"))
        );
        assert!(people.remove(3).unwrap() && !people.remove(3).unwrap());
        assert!(ids("York").is_empty());
        assert_eq!(people.by_email.count(..).unwrap(), 2);
    }

    #[test]
    fn an_email_belongs_to_one_person() {
        let people = people();
        people.put(&person(1, "a@x", "York")).unwrap();
        let taken = people.put(&person(2, "a@x", "Leeds"));
        assert!(matches!(taken, Err(Refused::EmailTaken(_))));
        // The refused change has left nothing.
        assert!(people.by_city("Leeds").unwrap().is_empty());
        assert_eq!(people.people.count(..).unwrap(), 1);
        assert!(matches!(
            people.put(&person(3, "z\0", "")),
            Err(Refused::ZeroByte)
        ));
    }
}
