//! Accounts and the transfers between them, in an Isobath store. The tutorial (docs/tutorial.md)
//! builds this program.
#![allow(clippy::big_endian_bytes, reason = "keys sort as their bytes do")]

use std::collections::BTreeMap;
use std::error::Error;

use isobath::{Options, Store, TransactionOptions, Tree};

/// Why a transfer was not made.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("there is no account {0}")]
    NoAccount(String),
    #[error("{name} has only {balance}")]
    TooLittle { name: String, balance: u64 },
    #[error(transparent)]
    Store(#[from] isobath::Error),
}

struct Ledger {
    store: Store,
    /// Name -> balance.
    accounts: Tree,
    /// Number, from 1 -> who paid whom how much.
    transfers: Tree,
}

impl Ledger {
    fn open(path: &str) -> Result<Ledger, isobath::Error> {
        let options = Options::new().pool_bytes(64 << 20);
        let store = Store::open_or_create(path, &options)?;
        Ok(Ledger {
            accounts: store.open_or_create_tree("accounts")?,
            transfers: store.open_or_create_tree("transfers")?,
            store,
        })
    }

    /// Moves `amount` from an account to another, which is opened if need be; answers the
    /// transfer's number. Money that comes from outside comes from the account "".
    fn pay(&self, from: &str, to: &str, amount: u64) -> Result<u64, Refused> {
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                if !from.is_empty() {
                    let balance = transaction.get(&self.accounts, from)?.map(number);
                    let balance = balance.ok_or_else(|| Refused::NoAccount(from.to_owned()))?;
                    let rest = balance.checked_sub(amount).ok_or_else(|| {
                        let name = from.to_owned();
                        Refused::TooLittle { name, balance }
                    })?;
                    transaction.insert(&self.accounts, from, rest.to_be_bytes())?;
                }
                let balance = transaction.get(&self.accounts, to)?.map_or(0, number);
                transaction.insert(&self.accounts, to, (balance + amount).to_be_bytes())?;

                let last = transaction
                    .range(&self.transfers, ..)?
                    .next_back()
                    .transpose()?;
                let next = last.map_or(1, |(key, _)| number(key) + 1);
                let line = format!("{from}\t{to}\t{amount}");
                transaction.insert(&self.transfers, next.to_be_bytes(), line)?;
                Ok(next)
            })
    }

    /// Whether every balance is what the transfers make it; answers how many transfers there are.
    fn audit(&self) -> Result<u64, Box<dyn Error>> {
        let snapshot = self.store.snapshot()?;
        let mut balances: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut count = 0;
        for transfer in snapshot.range(&self.transfers, ..)? {
            let (key, line) = transfer?;
            count += 1;
            if number(key) != count {
                return Err(format!("transfer {count} is missing").into());
            }
            let line = String::from_utf8(line)?;
            let fields: Vec<&str> = line.split('\t').collect();
            let [from, to, amount] = fields[..] else {
                return Err(format!("transfer {count} is {line:?}").into());
            };
            let amount: u64 = amount.parse()?;
            if !from.is_empty() {
                *balances.entry(from.into()).or_default() -= amount;
            }
            *balances.entry(to.into()).or_default() += amount;
        }
        for account in snapshot.range(&self.accounts, ..)? {
            let (name, balance) = account?;
            if balances.remove(&name) != Some(number(balance)) {
                let name = String::from_utf8_lossy(&name);
                return Err(format!("the balance of {name} is wrong").into());
            }
        }
        if !balances.is_empty() {
            return Err("an account is missing".into());
        }
        Ok(count)
    }

    /// Pays at random, from several threads, until the process is killed. Says the number of each
    /// transfer once it is durable.
    fn work(&self) -> Result<(), Refused> {
        let names = ["ada", "grace", "hedy", "mary"];
        for name in names {
            self.pay("", name, 1000)?;
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        loop {
                            let from = names[fastrand::usize(..names.len())];
                            let to = names[fastrand::usize(..names.len())];
                            match self.pay(from, to, fastrand::u64(1..100)) {
                                Ok(number) => println!("{number}"),
                                Err(Refused::TooLittle { .. }) => {}
                                Err(error) => return Err::<(), Refused>(error),
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }
}

/// The number in eight bytes of a key or a value.
fn number(bytes: Vec<u8>) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [path, command @ ..] = &arguments[..] else {
        return Err("usage: ledger FILE pay FROM TO AMOUNT | audit | work".into());
    };
    let ledger = Ledger::open(path)?;
    match command {
        ["pay", from, to, amount] => {
            let number = ledger.pay(from, to, amount.parse()?)?;
            println!("transfer {number}");
        }
        ["audit"] => println!("{} transfers, all balances are right", ledger.audit()?),
        ["work"] => ledger.work()?,
        _ => return Err("the commands are: pay FROM TO AMOUNT, audit, work".into()),
    }
    ledger.store.close()?;
    Ok(())
}
