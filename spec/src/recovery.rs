//! The recovery of a drive (`Scan::read`, `Scan::apply` and `replay::run` of the engine).

use crate::{Address, Lsn, PAGES, PLACES, Page, Place, ROOT, Record, Rule, State};

/// The newest that the log says of a page.
#[derive(Clone, Copy)]
enum Newest {
    Image(u8),
    Copy(Address),
    Freed,
}

/// A store after recovery.
pub(crate) struct Recovered {
    /// How many records of the log count.
    pub(crate) records: Lsn,
    pub(crate) pages: [Option<Page>; PAGES],
    /// Commits to apply, in order.
    pub(crate) commits: Vec<Lsn>,
    /// Provisional allocations that nothing confirmed, and their tokens.
    pub(crate) orphaned: Vec<(u8, Lsn)>,
    /// Pages whose mapping words differ from the checkpoint's.
    pub(crate) touched: [bool; PAGES],
    pub(crate) places: [Place; PLACES],
    pub(crate) next_seq: u8,
}

/// The log's contents, from the superblock's start on.
struct Scan {
    newest: [Option<(Lsn, Newest)>; PAGES],
    provisional: [Option<Lsn>; PAGES],
    confirmed: Vec<Lsn>,
    commits: Vec<Lsn>,
    next_seq: u8,
    /// Copies that were not flushed before their records.
    unflushed: Vec<(Lsn, u8, Address)>,
}

impl Scan {
    /// Reads the first `records` of the log.
    fn read(state: &State, records: Lsn) -> Scan {
        let superblock = &state.superblock;
        let mut scan = Scan {
            newest: [None; PAGES],
            provisional: [None; PAGES],
            confirmed: Vec::new(),
            commits: Vec::new(),
            next_seq: superblock.next_seq,
            unflushed: Vec::new(),
        };
        for &(token, page) in &superblock.provisional {
            scan.provisional[usize::from(page)] = Some(token);
        }
        for lsn in superblock.start..records {
            scan.note(lsn, state.log[usize::from(lsn)]);
        }
        scan
    }

    /// The first record of a copy that was not flushed and is not there, though something has
    /// confirmed it and nothing says that it is gone (`UnflushedChunks::first_missing`).
    fn first_missing(&self, places: &[Place; PLACES], broken: Option<Rule>) -> Option<Lsn> {
        let is_missing = |&&(_, page, address): &&(Lsn, u8, Address)| {
            let page = usize::from(page);
            let is_newest =
                matches!(self.newest[page], Some((_, Newest::Copy(at))) if at == address);
            let is_orphan =
                self.provisional[page].is_some_and(|token| !self.confirmed.contains(&token));
            (is_newest || broken == Some(Rule::EndedNotVerified))
                && (!is_orphan || broken == Some(Rule::OrphansNotVerified))
                && read(places, page, address).is_err()
        };
        let missing = self.unflushed.iter().find(is_missing);
        let found = missing.map(|entry| entry.0);
        found.filter(|_| broken != Some(Rule::MissingEndsLog))
    }

    fn note(&mut self, lsn: Lsn, record: Record) {
        match record {
            Record::Stamp => {}
            Record::Commit => self.commits.push(lsn),
            Record::Structure {
                leaf,
                image,
                freed,
                token,
            } => {
                self.newest(ROOT, lsn, Newest::Image(leaf));
                if let Some(content) = image {
                    self.newest(usize::from(leaf), lsn, Newest::Image(content));
                }
                self.confirmed.extend(token);
                self.free(freed, lsn);
            }
            Record::Mapping {
                page,
                version,
                address,
                unflushed,
            } => {
                if unflushed {
                    self.unflushed.push((lsn, page, address));
                }
                self.next_seq = self.next_seq.max(address.seq + 1);
                self.newest(usize::from(page), version, Newest::Copy(address));
            }
            Record::Provisional { page } => self.provisional[usize::from(page)] = Some(lsn),
            Record::Free { page, token } => {
                self.confirmed.push(token);
                self.free(page, lsn);
            }
        }
    }

    fn free(&mut self, page: u8, lsn: Lsn) {
        self.provisional[usize::from(page)] = None;
        self.newest[usize::from(page)] = Some((lsn, Newest::Freed));
    }

    fn newest(&mut self, page: usize, version: Lsn, what: Newest) {
        if self.newest[page].is_none_or(|(known, _)| known <= version) {
            self.newest[page] = Some((version, what));
        }
    }
}

/// The drive's places when the writes in its cache whose bit is set have survived.
fn surviving(state: &State, survivors: u8) -> [Place; PLACES] {
    let mut places = state.places;
    let mut bit = 1;
    for place in &mut places {
        let cached = place.cached.take();
        if cached.is_some() {
            place.durable = cached.filter(|_| survivors & bit != 0).or(place.durable);
            bit <<= 1;
        }
        *place = Place {
            durable: place.durable,
            ..Place::default()
        };
    }
    places
}

/// Recovers what a crash leaves of `state`: `records` of the log, and the writes that `survivors`
/// chooses.
///
/// # Errors
///
/// Lost pages, or pages without an owner.
pub(crate) fn recover(
    state: &State,
    mut records: Lsn,
    survivors: u8,
    broken: Option<Rule>,
) -> Result<Recovered, &'static str> {
    let superblock = &state.superblock;
    let places = surviving(state, survivors);
    let mut scan = Scan::read(state, records);
    while let Some(missing) = scan.first_missing(&places, broken) {
        records = missing;
        scan = Scan::read(state, records);
    }
    if superblock.start > records {
        return Err("the log ends before the checkpoint begins");
    }
    if state.durable > records {
        return Err("the log is cut off before what was durable");
    }
    let mut orphaned = Vec::new();
    for (page, token) in scan.provisional.iter().enumerate() {
        if let Some(token) = token.filter(|token| !scan.confirmed.contains(token)) {
            scan.newest[page] = Some((Lsn::MAX, Newest::Freed));
            orphaned.push((page as u8, token));
        }
    }
    let mut recovered = Recovered {
        records,
        pages: [None; PAGES],
        commits: scan.commits,
        orphaned,
        touched: scan.newest.map(|newest| newest.is_some()),
        places,
        next_seq: scan.next_seq,
    };
    for page in 0..PAGES {
        recovered.pages[page] = match (scan.newest[page], superblock.words[page]) {
            (Some((_, Newest::Freed)), _) | (None, None) => None,
            (Some((version, Newest::Image(content))), _) => Some(Page {
                exists: true,
                version,
                content,
                oldest: Some(version),
                ..Page::default()
            }),
            (Some((_, Newest::Copy(address))), _) | (None, Some(address)) => {
                Some(read(&places, page, address)?)
            }
        };
    }
    judge(state, records, &recovered)?;
    Ok(recovered)
}

/// Reads a page and verifies that it is the one that the mapping word means.
fn read(places: &[Place; PLACES], page: usize, address: Address) -> Result<Page, &'static str> {
    let image = places[usize::from(address.place)]
        .durable
        .ok_or("a page was never written")?;
    if usize::from(image.page) != page || image.seq != address.seq {
        return Err("a page was overwritten");
    }
    let (version, content) = (image.version, image.content);
    Ok(Page {
        exists: true,
        version,
        content,
        address: Some(address),
        ..Page::default()
    })
}

/// Whether the recovered store has all commits, and nothing without an owner.
fn judge(state: &State, records: Lsn, recovered: &Recovered) -> Result<(), &'static str> {
    let root = recovered.pages[ROOT].ok_or("the root is lost")?;
    let leaf = usize::from(root.content);
    let value = recovered.pages[leaf].ok_or("the leaf is lost")?.content;
    let value = recovered.commits.last().copied().unwrap_or(value);
    let is_commit = |lsn: &Lsn| state.log[usize::from(*lsn)] == Record::Commit;
    let expected = (0..records).rev().find(is_commit).unwrap_or(0);
    if value != expected {
        return Err("a commit is lost, or one is there that never became durable");
    }
    if recovered.pages[PAGES - leaf].is_some() {
        return Err("a page is there that nothing names");
    }
    let addresses = recovered
        .pages
        .iter()
        .flatten()
        .filter_map(|page| page.address);
    let mut owned: Vec<u8> = addresses.map(|address| address.place).collect();
    owned.sort_unstable();
    if owned.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a place has two owners");
    }
    Ok(())
}
