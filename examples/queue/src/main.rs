//! A job queue that survives crashes.
//!
//! A worker takes a job for some time. It finishes the job, or the job goes back to the queue when
//! the time is over: a worker that crashes loses nothing. So a job may run twice, and never gets
//! lost.
//!
//!     cargo run -p isobath-example-queue
#![allow(clippy::big_endian_bytes, reason = "keys sort as their bytes do")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isobath::{Error, Options, Store, TransactionOptions, Tree};

/// Jobs in three trees of one store. Numbers are in keys in big-endian order, so that keys sort as
/// the numbers do.
struct Queue {
    store: Store,
    /// Number -> payload.
    waiting: Tree,
    /// Number -> deadline and payload.
    taken: Tree,
    /// Deadline and number -> nothing: which job is due first.
    deadlines: Tree,
    /// The number of the newest job, under the key "newest".
    numbers: Tree,
}

#[derive(Debug, PartialEq, Eq)]
struct Job {
    number: u64,
    /// Until when, in milliseconds since 1970.
    deadline: u64,
    payload: Vec<u8>,
}

impl Queue {
    fn on(store: Store) -> Result<Queue, Error> {
        Ok(Queue {
            waiting: store.open_or_create_tree("waiting")?,
            taken: store.open_or_create_tree("taken")?,
            deadlines: store.open_or_create_tree("deadlines")?,
            numbers: store.open_or_create_tree("numbers")?,
            store,
        })
    }

    /// Adds a job; it is durable when this returns.
    fn push(&self, payload: &[u8]) -> Result<u64, Error> {
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                let newest = transaction.get(&self.numbers, "newest")?;
                let number = newest.map_or(0, |newest| number(&newest)) + 1;
                transaction.insert(&self.numbers, "newest", number.to_be_bytes())?;
                transaction.insert(&self.waiting, number.to_be_bytes(), payload)?;
                Ok(number)
            })
    }

    /// The oldest job, for `time`; each caller gets another one.
    fn take(&self, now: u64, time: Duration) -> Result<Option<Job>, Error> {
        let deadline = now + millis(time);
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                let Some((key, payload)) =
                    transaction.range(&self.waiting, ..)?.next().transpose()?
                else {
                    return Ok(None);
                };
                transaction.remove(&self.waiting, &key)?;
                let record = [&deadline.to_be_bytes()[..], &payload].concat();
                transaction.insert(&self.taken, &key, record)?;
                let due = [&deadline.to_be_bytes()[..], &key].concat();
                transaction.insert(&self.deadlines, due, "")?;
                let number = number(&key);
                Ok(Some(Job {
                    number,
                    deadline,
                    payload,
                }))
            })
    }

    /// Ends a job; `false` if its time was over, and it went back to the queue or to another
    /// worker.
    fn finish(&self, job: &Job) -> Result<bool, Error> {
        let key = job.number.to_be_bytes();
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                let due = [job.deadline.to_be_bytes(), key].concat();
                if !transaction.remove(&self.deadlines, due)? {
                    return Ok(false);
                }
                transaction.remove(&self.taken, key)
            })
    }

    /// Puts jobs whose time is over back; answers how many.
    fn put_back(&self, now: u64) -> Result<usize, Error> {
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                let due: Vec<Vec<u8>> = transaction
                    .range(&self.deadlines, ..now.to_be_bytes())?
                    .map(|record| Ok(record?.0))
                    .collect::<Result<_, Error>>()?;
                for due_key in &due {
                    let key = &due_key[8..];
                    if let Some(record) = transaction.get(&self.taken, key)? {
                        transaction.insert(&self.waiting, key, &record[8..])?;
                    }
                    transaction.remove(&self.taken, key)?;
                    transaction.remove(&self.deadlines, due_key)?;
                }
                Ok(due.len())
            })
    }
}

fn number(key: &[u8]) -> u64 {
    key.try_into().map_or(0, u64::from_be_bytes)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    millis(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

fn main() -> Result<(), Error> {
    let options = Options::new().pool_bytes(64 << 20);
    let queue = Queue::on(Store::open_or_create("queue.isobath", &options)?)?;
    for job in ["paint", "sand", "varnish"] {
        println!("job {}: {job}", queue.push(job.as_bytes())?);
    }
    println!("{} jobs of workers that crashed", queue.put_back(now())?);
    while let Some(job) = queue.take(now(), Duration::from_secs(60))? {
        println!(
            "doing {}: {}",
            job.number,
            String::from_utf8_lossy(&job.payload)
        );
        queue.finish(&job)?;
    }
    queue.store.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const MINUTE: Duration = Duration::from_secs(60);

    fn queue() -> Queue {
        let options = Options::new().pool_bytes(16 << 20).workers(1);
        Queue::on(Store::in_memory(&options).unwrap()).unwrap()
    }

    #[test]
    fn jobs_come_in_order_and_go_back_when_their_time_is_over() {
        let queue = queue();
        assert_eq!(queue.push(b"a").unwrap(), 1);
        assert_eq!(queue.push(b"b").unwrap(), 2);
        let a = queue.take(1000, MINUTE).unwrap().unwrap();
        let b = queue.take(2000, MINUTE).unwrap().unwrap();
        assert_eq!((a.number, &b.payload[..]), (1, &b"b"[..]));
        assert_eq!(queue.take(3000, MINUTE).unwrap(), None);
        assert_eq!(queue.push(b"c").unwrap(), 3);
        // Its minute is over for the first one only.
        assert_eq!(queue.put_back(61_500).unwrap(), 1);
        assert!(!queue.finish(&a).unwrap());
        assert!(queue.finish(&b).unwrap());
        let again = queue.take(62_000, MINUTE).unwrap().unwrap();
        assert_eq!((again.number, &again.payload), (a.number, &a.payload));
        assert!(!queue.finish(&a).unwrap(), "another worker has it");
        assert!(queue.finish(&again).unwrap());
        assert_eq!(queue.put_back(u64::MAX).unwrap(), 0);
        assert_eq!(queue.waiting.count(..).unwrap(), 1);
        assert!(queue.taken.is_empty().unwrap() && queue.deadlines.is_empty().unwrap());
    }

    #[test]
    fn each_of_many_workers_gets_another_job() {
        let queue = queue();
        for n in 0..100u32 {
            queue.push(&n.to_be_bytes()).unwrap();
        }
        let taken: Vec<u64> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut taken = Vec::new();
                        while let Some(job) = queue.take(0, MINUTE).unwrap() {
                            taken.push(job.number);
                        }
                        taken
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap())
                .collect()
        });
        let different: BTreeSet<u64> = taken.iter().copied().collect();
        assert_eq!((taken.len(), different.len()), (100, 100));
    }

    #[test]
    fn jobs_are_there_after_opening_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("queue.isobath");
        let options = Options::new().pool_bytes(16 << 20).workers(1);
        let queue = Queue::on(Store::open_or_create(&path, &options).unwrap()).unwrap();
        queue.push(b"a").unwrap();
        queue.take(0, MINUTE).unwrap().unwrap();
        queue.store.close().unwrap();
        let queue = Queue::on(Store::open_or_create(&path, &options).unwrap()).unwrap();
        assert_eq!(queue.put_back(u64::MAX).unwrap(), 1);
        assert_eq!(queue.take(0, MINUTE).unwrap().unwrap().payload, b"a");
        queue.store.close().unwrap();
    }
}
