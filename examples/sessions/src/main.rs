//! Sessions of a web server, with tokio: created, renewed, ended, and removed when they expire.
//!
//! No call blocks tokio's threads: reads and transactions run as tasks of the store's own workers,
//! and futures complete when they are done.
//!
//!     cargo run -p isobath-example-sessions
#![allow(clippy::big_endian_bytes, reason = "keys sort as their bytes do")]

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::TryStreamExt;
use isobath::{Error, Options, Store, TransactionOptions, Tree};

/// How long a session lives after its last use.
const LIFE: Duration = Duration::from_secs(30 * 60);

/// Clones share the store.
#[derive(Debug, Clone)]
struct Sessions {
    store: Store,
    /// Token -> when it expires (8 bytes), and the user.
    sessions: Tree,
    /// When it expires, and the token -> nothing.
    expiry: Tree,
}

type Token = [u8; 16];

impl Sessions {
    fn on(store: Store) -> Result<Sessions, Error> {
        Ok(Sessions {
            sessions: store.open_or_create_tree("sessions")?,
            expiry: store.open_or_create_tree("expiry")?,
            store,
        })
    }

    /// Begins a session of `user`; durable when the token is answered.
    async fn begin(&self, user: &str, now: u64) -> Result<Token, Box<dyn std::error::Error>> {
        let mut token = Token::default();
        File::open("/dev/urandom")?.read_exact(&mut token)?;
        self.set(token, user.as_bytes().to_vec(), now).await?;
        Ok(token)
    }

    async fn set(&self, token: Token, user: Vec<u8>, now: u64) -> Result<(), Error> {
        let this = self.clone();
        let expires = (now + LIFE.as_secs()).to_be_bytes();
        let work = move |transaction: &mut isobath::Transaction| {
            if let Some(old) = transaction.get(&this.sessions, token)? {
                transaction.remove(&this.expiry, [&old[..8], &token].concat())?;
            }
            transaction.insert(&this.sessions, token, [&expires[..], &user].concat())?;
            transaction.insert(&this.expiry, [&expires[..], &token].concat(), "")
        };
        self.store
            .transact_async(TransactionOptions::new(), work)
            .await
    }

    /// The user of a session that has not expired.
    async fn user(&self, token: Token, now: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(mut record) = self.sessions.get_async(token).await? else {
            return Ok(None);
        };
        let user = record.split_off(8);
        Ok((seconds(&record) > now).then_some(user))
    }

    /// Lets a session live on from now; `false` if there is none any more.
    async fn renew(&self, token: Token, now: u64) -> Result<bool, Error> {
        let Some(user) = self.user(token, now).await? else {
            return Ok(false);
        };
        self.set(token, user, now).await?;
        Ok(true)
    }

    /// Removes expired sessions; answers how many.
    async fn sweep(&self, now: u64) -> Result<u64, Error> {
        let mut removed = 0;
        let mut expired = self.expiry.range_async(..now.to_be_bytes());
        while let Some((key, _)) = expired.try_next().await? {
            let this = self.clone();
            let work = move |transaction: &mut isobath::Transaction| {
                // It may have been renewed since: then this entry is gone.
                if transaction.remove(&this.expiry, &key)? {
                    transaction.remove(&this.sessions, &key[8..])?;
                    return Ok::<u64, Error>(1);
                }
                Ok(0)
            };
            removed += self
                .store
                .transact_async(TransactionOptions::new(), work)
                .await?;
        }
        Ok(removed)
    }
}

fn seconds(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Opening and closing block: at the program's beginning and end, if nothing else waits.
    let options = Options::new().pool_bytes(64 << 20);
    let sessions = Sessions::on(Store::open_or_create("sessions.isobath", &options)?)?;

    let sweeper = {
        let sessions = sessions.clone();
        tokio::spawn(async move {
            let mut minute = tokio::time::interval(Duration::from_secs(60));
            loop {
                minute.tick().await;
                match sessions.sweep(now()).await {
                    Ok(removed) => println!("{removed} sessions expired"),
                    Err(error) => eprintln!("{error}"),
                }
            }
        })
    };
    let token = sessions.begin("ada", now()).await?;
    let user = sessions.user(token, now()).await?.unwrap_or_default();
    println!("a session of {}", String::from_utf8_lossy(&user));
    sessions.renew(token, now()).await?;

    sweeper.abort();
    let store = sessions.store.clone();
    tokio::task::spawn_blocking(|| store.close()).await??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        let options = Options::new().pool_bytes(16 << 20).workers(1);
        Sessions::on(Store::in_memory(&options).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_session_lives_as_long_as_it_is_used() {
        let sessions = sessions();
        let life = LIFE.as_secs();
        let token = sessions.begin("ada", 1000).await.unwrap();
        assert_eq!(
            sessions.user(token, 1000).await.unwrap(),
            Some(b"ada".to_vec())
        );
        assert!(sessions.renew(token, 1000 + life - 1).await.unwrap());
        assert_eq!(sessions.sweep(1000 + life + 1).await.unwrap(), 0);
        assert!(
            sessions
                .user(token, 1000 + life + 1)
                .await
                .unwrap()
                .is_some()
        );
        assert_eq!(sessions.user(token, 1000 + 2 * life).await.unwrap(), None);
        assert!(!sessions.renew(token, 1000 + 2 * life).await.unwrap());
        assert_eq!(sessions.sweep(1000 + 2 * life).await.unwrap(), 1);
        assert!(sessions.sessions.is_empty().unwrap() && sessions.expiry.is_empty().unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_sessions_begin_and_expire_together() {
        let sessions = sessions();
        let begun: Vec<_> = (0..200)
            .map(|n| {
                let sessions = sessions.clone();
                tokio::spawn(async move {
                    let user = format!("user {n}");
                    let token = sessions.begin(&user, n).await.unwrap();
                    assert_eq!(
                        sessions.user(token, n).await.unwrap(),
                        Some(user.into_bytes())
                    );
                })
            })
            .collect();
        for session in begun {
            session.await.unwrap();
        }
        let half = LIFE.as_secs() + 100;
        assert_eq!(sessions.sweep(half).await.unwrap(), 100);
        assert_eq!(sessions.sessions.count(..).unwrap(), 100);
    }
}
