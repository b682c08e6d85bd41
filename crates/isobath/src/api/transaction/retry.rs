//! Options of transactions, and running one until it commits.

use std::sync::Arc;
use std::time::Duration;

use super::view::rest;
use super::{Isolation, Transaction};
use crate::engine::Runtime;
use crate::runtime::{Urgency, clock};
use crate::{Durability, Error};

/// Attempts that are made unless an option says otherwise.
const ATTEMPTS: u32 = 64;
/// Attempts that follow each other with no more than a yield between them.
const QUICK_ATTEMPTS: u32 = 3;
/// The first longer pause, which doubles with each attempt, and the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How a transaction runs, for [`Store::begin_with`](crate::Store::begin_with)
/// and [`Store::transact`](crate::Store::transact).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionOptions {
    isolation: Isolation,
    pub(super) durability: Option<Durability>,
    read_only: bool,
    attempts: u32,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        TransactionOptions::new()
    }
}

impl TransactionOptions {
    /// Snapshot isolation, the store's durability, reading and writing.
    #[must_use]
    pub fn new() -> TransactionOptions {
        TransactionOptions {
            isolation: Isolation::Snapshot,
            durability: None,
            read_only: false,
            attempts: ATTEMPTS,
        }
    }

    /// The transaction's isolation; by default [`Isolation::Snapshot`].
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> TransactionOptions {
        self.isolation = isolation;
        self
    }

    /// When its commit is acknowledged; by default as
    /// [`Options::durability`](crate::Options::durability) says.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> TransactionOptions {
        self.durability = Some(durability);
        self
    }

    /// Refuses changes. Such a transaction needs no validation, and commits always.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> TransactionOptions {
        self.read_only = read_only;
        self
    }

    /// How often [`Store::transact`](crate::Store::transact) tries, at least once;
    /// by default 64 times.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> TransactionOptions {
        self.attempts = attempts.max(1);
        self
    }

    pub(super) fn isolation_level(&self) -> Isolation {
        self.isolation
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// Runs `work` in a transaction until that commits, `work` fails permanently, or
/// the attempts are used up.
pub(crate) fn transact<T, E: From<Error>>(
    runtime: &Arc<Runtime>,
    options: TransactionOptions,
    mut work: impl FnMut(&mut Transaction) -> Result<T, E>,
) -> Result<T, E> {
    let mut attempt = 1;
    loop {
        let mut transaction = Transaction::begin(runtime, options).map_err(Error::from)?;
        let number = transaction.view.registered().number();
        let (error, may_retry) = match work(&mut transaction) {
            // Whatever error of its own `work` has made of that.
            Err(error) => (error, transaction.view.was_too_old()),
            Ok(value) => match transaction.commit_if(true) {
                Ok(()) => return Ok(value),
                Err(error) => {
                    let may_retry = error.is_retryable();
                    (E::from(error.into()), may_retry)
                }
            },
        };
        if !may_retry || attempt >= options.attempts {
            return Err(error);
        }
        await_winner(runtime)?;
        pause(runtime, attempt, number);
        attempt += 1;
    }
}

/// Where commits are seen late, waits until one is seen that was in flight a moment ago: before
/// that the next attempt would meet it again.
fn await_winner(runtime: &Runtime) -> Result<(), Error> {
    let transactions = &runtime.engine()?.transactions;
    if !transactions.is_late || !transactions.unseen.is_any() {
        return Ok(());
    }
    runtime.run(Urgency::Ordinary, |local| {
        Ok(transactions.await_durable(local)?)
    })
}

/// Lets the transactions go first that this one was in conflict with. Pauses
/// differ between transactions, so that two do not meet without end.
fn pause(runtime: &Runtime, attempt: u32, number: u64) {
    if attempt <= QUICK_ATTEMPTS || runtime.is_simulated() {
        // In a simulation time does not pass by itself.
        let times = number % u64::from(attempt + 1) + 1;
        if let Ok(engine) = runtime.engine() {
            (0..times).for_each(|_| rest(engine));
        }
        return;
    }
    let doublings = (attempt - QUICK_ATTEMPTS - 1).min(16);
    let longest = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
    let share = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let part = longest * share as u32 / (1 << 16);
    crate::runtime::sleep_until(clock::now() + longest / 4 + part * 3 / 4);
}
