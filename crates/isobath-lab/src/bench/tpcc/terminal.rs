//! A terminal: draws transactions' inputs and runs them (clauses 2.4 to 2.8).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::check::each;
use super::rows::{
    NAME_BYTES, add, customer, customer_order_key, district, item, key, name_key, number,
    order_line, orders, part, row, set, stock, warehouse,
};
use super::{DISTRICTS, Table, Tpcc};
use crate::LabError;
use crate::bench::workload::Operation;
use crate::engine::{Access, Decision, Ended, IsolationLevel, Key, Session, Tables};

/// Attempts at a transaction that others are in the way of.
const ATTEMPTS_MAX: u32 = 100_000;
/// Longest pause between two of them, in microseconds.
const PAUSE_US_MAX: u64 = 5_000;
/// Orders that Stock-Level looks at.
const RECENT_ORDERS: u32 = 20;

/// One client of the workload.
pub(in crate::bench) struct Terminal {
    tpcc: Arc<Tpcc>,
    pub(in crate::bench) rng: Rng,
    /// Number of the client, from 1: the loader's history has 0.
    client: u32,
    payments: u64,
    date: i64,
}

/// The customer that a transaction is about.
enum Customer {
    Number(u32),
    Name([u8; NAME_BYTES]),
}

struct Line {
    item: u32,
    supplier: u32,
    quantity: i64,
}

impl Terminal {
    /// Terminal `index`; equal for equal seeds.
    pub(in crate::bench) fn new(tpcc: &Arc<Tpcc>, index: usize) -> Terminal {
        let seed = tpcc.seed.wrapping_mul(1_000_003).wrapping_add(index as u64);
        Terminal {
            tpcc: Arc::clone(tpcc),
            rng: Rng::with_seed(seed),
            client: u32::try_from(index).unwrap_or(u32::MAX - 1) + 1,
            payments: 0,
            date: 1,
        }
    }

    /// Runs a transaction to its end; answers how many bytes of keys and values it has written.
    pub(in crate::bench) fn perform(
        &mut self,
        operation: Operation,
        session: &mut dyn Session,
    ) -> Result<u64, LabError> {
        self.date += 1;
        let w = self.rng.u32(1..=self.tpcc.warehouses);
        let d = self.rng.u32(1..=DISTRICTS);
        match operation {
            Operation::Payment => self.payment(w, d, session),
            Operation::OrderStatus => self.order_status(w, d, session),
            Operation::Delivery => self.delivery(w, session),
            Operation::StockLevel => self.stock_level(w, d, session),
            _ => self.new_order(w, d, session),
        }
    }

    /// Runs `body` in transactions until one ends.
    fn run(
        &mut self,
        access: Access,
        session: &mut dyn Session,
        body: &dyn Fn(&mut Within<'_>) -> Result<Decision, LabError>,
    ) -> Result<u64, LabError> {
        for attempt in 0..ATTEMPTS_MAX {
            let mut bytes = 0;
            let ended = session.transact(access, &mut |transaction| {
                let mut within = Within {
                    transaction,
                    bytes: 0,
                };
                let decision = body(&mut within)?;
                bytes = within.bytes;
                Ok(decision)
            })?;
            match ended {
                Ended::Committed => return Ok(bytes),
                Ended::RolledBack => {
                    self.tpcc.rolled_back.fetch_add(1, Ordering::Relaxed);
                    return Ok(0);
                }
                Ended::Conflict => {
                    self.tpcc.conflicts.fetch_add(1, Ordering::Relaxed);
                    let longest = (10 << attempt.min(9)).min(PAUSE_US_MAX);
                    let pause = Duration::from_micros(self.rng.u64(..longest));
                    session.wait_until(Instant::now() + pause);
                }
            }
        }
        Err(LabError::Verify(format!(
            "a transaction was rolled back {ATTEMPTS_MAX} times because of others"
        )))
    }

    /// Another warehouse than `w`, if there is one.
    fn other_warehouse(&mut self, w: u32) -> u32 {
        match self.tpcc.warehouses {
            1 => w,
            count => (w + self.rng.u32(..count - 1)) % count + 1,
        }
    }

    /// By last name in 60 of 100.
    fn customer(&mut self) -> Customer {
        let (constants, scale) = (self.tpcc.constants, self.tpcc.scale);
        match self.rng.u32(..100) < 60 {
            true => Customer::Name(constants.last_name(&mut self.rng, scale)),
            false => Customer::Number(constants.customer(&mut self.rng, scale)),
        }
    }

    fn new_order(&mut self, w: u32, d: u32, session: &mut dyn Session) -> Result<u64, LabError> {
        let (constants, scale) = (self.tpcc.constants, self.tpcc.scale);
        let customer = constants.customer(&mut self.rng, scale);
        let count = self.rng.usize(5..=15);
        let mut lines: Vec<Line> = (0..count)
            .map(|_| Line {
                item: constants.item(&mut self.rng, scale),
                supplier: match self.rng.u32(..100) {
                    0 => self.other_warehouse(w),
                    _ => w,
                },
                quantity: self.rng.i64(1..=10),
            })
            .collect();
        if self.rng.u32(..100) == 0
            && let Some(last) = lines.last_mut()
        {
            // An item that does not exist: the whole order is rolled back.
            last.item = scale.items + 1;
        }
        let date = self.date;
        let checks_first = self.tpcc.isolation == IsolationLevel::Least;
        self.run(Access::Write, session, &|within| {
            new_order(within, [w, d, customer], &lines, date, checks_first)
        })
    }

    fn payment(&mut self, w: u32, d: u32, session: &mut dyn Session) -> Result<u64, LabError> {
        let amount = self.rng.i64(100..=500_000);
        let (cw, cd) = match self.rng.u32(..100) < 85 {
            true => (w, d),
            false => (self.other_warehouse(w), self.rng.u32(1..=DISTRICTS)),
        };
        let customer = self.customer();
        self.payments += 1;
        let number = self.payments;
        let history = key(&[self.client, (number >> 32) as u32, number as u32]);
        let date = self.date;
        self.run(Access::Write, session, &|within| {
            payment(within, [w, d], [cw, cd], &customer, amount, &history, date)
        })
    }

    fn order_status(&mut self, w: u32, d: u32, session: &mut dyn Session) -> Result<u64, LabError> {
        let customer = self.customer();
        let verifies = self.tpcc.isolation == IsolationLevel::Snapshot;
        self.run(Access::Read, session, &|within| {
            order_status(within, [w, d], &customer, verifies)
        })
    }

    fn delivery(&mut self, w: u32, session: &mut dyn Session) -> Result<u64, LabError> {
        let (carrier, date) = (self.rng.i64(1..=10), self.date);
        self.run(Access::Write, session, &|within| {
            (1..=DISTRICTS).try_for_each(|d| deliver(within, [w, d], carrier, date))?;
            Ok(Decision::Commit)
        })
    }

    fn stock_level(&mut self, w: u32, d: u32, session: &mut dyn Session) -> Result<u64, LabError> {
        let threshold = self.rng.i64(10..=20);
        self.run(Access::Read, session, &|within| {
            std::hint::black_box(stock_level(within, [w, d], threshold)?);
            Ok(Decision::Commit)
        })
    }
}

/// A transaction's rows.
struct Within<'t> {
    transaction: &'t mut dyn Tables,
    /// Bytes of keys and values written.
    bytes: u64,
}

impl Within<'_> {
    fn find(&mut self, table: Table, key: &Key) -> Result<Option<Vec<u8>>, LabError> {
        let mut row = Vec::new();
        let found = self.transaction.get(table as usize, key, &mut row)?;
        Ok(found.then_some(row))
    }

    /// A row that must be there.
    fn read(&mut self, table: Table, key: &Key) -> Result<Vec<u8>, LabError> {
        self.find(table, key)?
            .ok_or_else(|| LabError::Verify(format!("row {key:?} of table {table:?} is missing")))
    }

    fn write(&mut self, table: Table, key: &Key, row: &[u8]) -> Result<(), LabError> {
        self.bytes += (key.len() + row.len()) as u64;
        self.transaction.put(table as usize, key, row)
    }

    /// The customer's number; of several with the name, the one in the middle by first name.
    fn customer(&mut self, [w, d]: [u32; 2], customer: &Customer) -> Result<u32, LabError> {
        let name = match customer {
            Customer::Number(number) => return Ok(*number),
            Customer::Name(name) => *name,
        };
        let prefix = name_key([w, d], name, None);
        let mut numbers = Vec::new();
        let table = Table::CustomerByName as usize;
        self.transaction.scan(table, &prefix, &mut |key, _| {
            let is_one = key.starts_with(&prefix);
            if is_one {
                numbers.push(part(key, 10));
            }
            is_one
        })?;
        let middle = numbers.len().saturating_sub(1) / 2;
        match numbers.into_iter().nth(middle) {
            Some(number) => number,
            None => Err(LabError::Verify(format!(
                "district {w}, {d} has no customer of a name that was stored"
            ))),
        }
    }
}

fn new_order(
    within: &mut Within<'_>,
    [w, d, c]: [u32; 3],
    lines: &[Line],
    date: i64,
    checks_first: bool,
) -> Result<Decision, LabError> {
    if checks_first {
        for line in lines {
            if within.find(Table::Item, &key(&[line.item]))?.is_none() {
                return Ok(Decision::RollBack);
            }
        }
    }
    let w_tax = number(&within.read(Table::Warehouse, &key(&[w]))?, warehouse::TAX)?;
    let mut district_row = within.read(Table::District, &key(&[w, d]))?;
    let d_tax = number(&district_row, district::TAX)?;
    let order = number(&district_row, district::NEXT_ORDER)?;
    set(&mut district_row, district::NEXT_ORDER, order + 1)?;
    within.write(Table::District, &key(&[w, d]), &district_row)?;
    let discount = number(
        &within.read(Table::Customer, &key(&[w, d, c]))?,
        customer::DISCOUNT,
    )?;
    let o = u32::try_from(order)
        .map_err(|_| LabError::Verify(format!("district {w}, {d} has order {order}")))?;
    let all_local = i64::from(lines.iter().all(|line| line.supplier == w));
    let order_row = row(&[c.into(), date, 0, lines.len() as i64, all_local]);
    within.write(Table::Orders, &key(&[w, d, o]), &order_row)?;
    let by_customer = customer_order_key([w, d, c], o);
    within.write(Table::OrdersByCustomer, &by_customer, &[])?;
    within.write(Table::NewOrder, &key(&[w, d, o]), &[])?;
    let mut total = 0;
    for (line, at) in lines.iter().zip(1..) {
        let Some(item_row) = within.find(Table::Item, &key(&[line.item]))? else {
            return Ok(Decision::RollBack);
        };
        let amount = number(&item_row, item::PRICE)? * line.quantity;
        total += amount;
        let info = take_stock(within, line, [w, d])?;
        let ids = [line.item, line.supplier].map(i64::from);
        let mut line_row = row(&[ids[0], ids[1], 0, line.quantity, amount]);
        line_row.extend_from_slice(&info);
        within.write(Table::OrderLine, &key(&[w, d, o, at]), &line_row)?;
    }
    // The terminal's output.
    std::hint::black_box(total * (10_000 - discount) * (10_000 + w_tax + d_tax));
    Ok(Decision::Commit)
}

/// Takes an order line from the supplier's stock; answers the district's text.
fn take_stock(within: &mut Within<'_>, line: &Line, [w, d]: [u32; 2]) -> Result<Vec<u8>, LabError> {
    let id = key(&[line.supplier, line.item]);
    let mut stock_row = within.read(Table::Stock, &id)?;
    let left = number(&stock_row, stock::QUANTITY)? - line.quantity;
    let refill = if left >= 10 { 0 } else { 91 };
    set(&mut stock_row, stock::QUANTITY, left + refill)?;
    add(&mut stock_row, stock::YTD, line.quantity)?;
    add(&mut stock_row, stock::ORDERS, 1)?;
    add(&mut stock_row, stock::REMOTE, (line.supplier != w).into())?;
    within.write(Table::Stock, &id, &stock_row)?;
    let at = stock::NUMBERS * 8 + (d as usize - 1) * stock::DISTRICT_BYTES;
    let text = stock_row.get(at..at + stock::DISTRICT_BYTES);
    text.map(<[u8]>::to_vec)
        .ok_or_else(|| LabError::Verify(format!("stock {id:?} is shorter than it was stored")))
}

fn payment(
    within: &mut Within<'_>,
    [w, d]: [u32; 2],
    [cw, cd]: [u32; 2],
    who: &Customer,
    amount: i64,
    history: &Key,
    date: i64,
) -> Result<Decision, LabError> {
    let mut warehouse_row = within.read(Table::Warehouse, &key(&[w]))?;
    add(&mut warehouse_row, warehouse::YTD, amount)?;
    within.write(Table::Warehouse, &key(&[w]), &warehouse_row)?;
    let mut district_row = within.read(Table::District, &key(&[w, d]))?;
    add(&mut district_row, district::YTD, amount)?;
    within.write(Table::District, &key(&[w, d]), &district_row)?;
    let c = within.customer([cw, cd], who)?;
    let id = key(&[cw, cd, c]);
    let mut customer_row = within.read(Table::Customer, &id)?;
    add(&mut customer_row, customer::BALANCE, -amount)?;
    add(&mut customer_row, customer::YTD_PAYMENT, amount)?;
    add(&mut customer_row, customer::PAYMENTS, 1)?;
    if number(&customer_row, customer::GOOD_CREDIT)? == 0 {
        // Bad credit: the payment goes in front of C_DATA, which keeps its most bytes.
        let note = format!("{c} {cd} {cw} {d} {w} {amount}|");
        let at = (customer::NUMBERS * 8 + customer::TEXT_BYTES).min(customer_row.len());
        customer_row.splice(at..at, note.bytes());
        customer_row.truncate(at + customer::DATA_BYTES);
    }
    within.write(Table::Customer, &id, &customer_row)?;
    let ids = [c, cd, cw, d, w].map(i64::from);
    let mut history_row = row(&ids);
    history_row.extend_from_slice(&row(&[date, amount]));
    // W_NAME, four blanks, D_NAME.
    let name = |row: &[u8], at: usize| row.get(at..at + 10).unwrap_or_default().to_vec();
    let names = [name(&warehouse_row, 2 * 8), name(&district_row, 3 * 8)];
    history_row.extend_from_slice(&names.join(&b"    "[..]));
    within.write(Table::History, history, &history_row)?;
    Ok(Decision::Commit)
}

fn order_status(
    within: &mut Within<'_>,
    [w, d]: [u32; 2],
    who: &Customer,
    verifies: bool,
) -> Result<Decision, LabError> {
    let c = within.customer([w, d], who)?;
    let balance = number(
        &within.read(Table::Customer, &key(&[w, d, c]))?,
        customer::BALANCE,
    )?;
    let prefix = key(&[w, d, c]);
    let mut newest = None;
    let table = Table::OrdersByCustomer as usize;
    within.transaction.scan(table, &prefix, &mut |key, _| {
        if key.starts_with(&prefix) {
            newest = Some(part(key, 3));
        }
        false
    })?;
    // Every customer has an order from the load on.
    let newest = newest.ok_or_else(|| {
        LabError::Verify(format!("customer {w}, {d}, {c} has no order in the index"))
    })??;
    let o = u32::MAX - newest;
    let order_row = within.read(Table::Orders, &key(&[w, d, o]))?;
    let (mut count, mut total) = (0, 0);
    each(
        within.transaction,
        Table::OrderLine,
        &[w, d, o],
        |_, line| {
            count += 1;
            total += number(line, order_line::AMOUNT)?;
            Ok(())
        },
    )?;
    let named = number(&order_row, orders::LINES)?;
    if verifies && (named != count || number(&order_row, orders::CUSTOMER)? != i64::from(c)) {
        return Err(LabError::Verify(format!(
            "order {w}, {d}, {o} of customer {c} names {named} lines, there are {count}"
        )));
    }
    std::hint::black_box(balance + total);
    Ok(Decision::Commit)
}

/// Delivers the oldest new order of a district, if there is one.
fn deliver(
    within: &mut Within<'_>,
    [w, d]: [u32; 2],
    carrier: i64,
    date: i64,
) -> Result<(), LabError> {
    let prefix = key(&[w, d]);
    let mut oldest = None;
    let table = Table::NewOrder as usize;
    within.transaction.scan(table, &prefix, &mut |key, _| {
        if key.starts_with(&prefix) {
            oldest = Some(part(key, 2));
        }
        false
    })?;
    let Some(o) = oldest.transpose()? else {
        return Ok(());
    };
    within.transaction.delete(table, &key(&[w, d, o]))?;
    let mut order_row = within.read(Table::Orders, &key(&[w, d, o]))?;
    set(&mut order_row, orders::CARRIER, carrier)?;
    within.write(Table::Orders, &key(&[w, d, o]), &order_row)?;
    let c = u32::try_from(number(&order_row, orders::CUSTOMER)?).unwrap_or(0);
    let mut lines = Vec::new();
    each(
        within.transaction,
        Table::OrderLine,
        &[w, d, o],
        |key, line| {
            lines.push((part(key, 3)?, line.to_vec()));
            Ok(())
        },
    )?;
    let mut total = 0;
    for (at, mut line) in lines {
        total += number(&line, order_line::AMOUNT)?;
        set(&mut line, order_line::DELIVERED, date)?;
        within.write(Table::OrderLine, &key(&[w, d, o, at]), &line)?;
    }
    let id = key(&[w, d, c]);
    let mut customer_row = within.read(Table::Customer, &id)?;
    add(&mut customer_row, customer::BALANCE, total)?;
    add(&mut customer_row, customer::DELIVERIES, 1)?;
    within.write(Table::Customer, &id, &customer_row)
}

/// Items of the district's last orders of which the warehouse has less than `threshold`.
fn stock_level(
    within: &mut Within<'_>,
    [w, d]: [u32; 2],
    threshold: i64,
) -> Result<usize, LabError> {
    let district_row = within.read(Table::District, &key(&[w, d]))?;
    let next = u32::try_from(number(&district_row, district::NEXT_ORDER)?).unwrap_or(1);
    let from = key(&[w, d, next.saturating_sub(RECENT_ORDERS)]);
    let to = key(&[w, d, next]);
    let mut items = Vec::new();
    let table = Table::OrderLine as usize;
    within.transaction.scan(table, &from, &mut |key, line| {
        let is_recent = key < &to[..];
        if is_recent {
            items.push(number(line, order_line::ITEM));
        }
        is_recent
    })?;
    let mut items = items.into_iter().collect::<Result<Vec<_>, _>>()?;
    items.sort_unstable();
    items.dedup();
    let mut low = 0;
    for item in items {
        let id = key(&[w, u32::try_from(item).unwrap_or(0)]);
        let quantity = number(&within.read(Table::Stock, &id)?, stock::QUANTITY)?;
        low += usize::from(quantity < threshold);
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::tests::{Model, loaded, tpcc};
    use super::super::{Scale, Terminal, Tpcc, rows};
    use super::*;

    fn within(model: &mut Model) -> Within<'_> {
        Within {
            transaction: model,
            bytes: 0,
        }
    }

    #[test]
    fn another_warehouse_is_any_but_ones_own() {
        for warehouses in 2..=6 {
            let tpcc = Tpcc::new(Scale::SMALL, warehouses, IsolationLevel::Snapshot, 1);
            let mut terminal = Terminal::new(&tpcc, 0);
            let count = tpcc.warehouses;
            for w in 1..=count {
                let drawn = (0..300).map(|_| terminal.other_warehouse(w));
                let drawn: BTreeSet<u32> = drawn.collect();
                let others: BTreeSet<u32> = (1..=count).filter(|other| *other != w).collect();
                assert_eq!(drawn, others, "{w} of {count}");
            }
        }
    }

    #[test]
    fn a_customer_by_name_is_the_one_in_the_middle() {
        // A thousand names are in turn; those of more customers are drawn.
        let scale = Scale {
            items: 10,
            customers: 3000,
        };
        let tpcc = Tpcc::new(scale, 1, IsolationLevel::Snapshot, 3);
        let mut model = Model::default();
        model.0.resize(Table::ALL.len(), BTreeMap::new());
        let index = rows(&tpcc, Table::CustomerByName);
        model.0[Table::CustomerByName as usize] = index
            .map(|(key, value)| (key.to_vec(), value.into_owned()))
            .collect();
        // Customers by district and last name, in the order of their first names.
        let mut named: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
        for key in model.0[Table::CustomerByName as usize].keys() {
            let numbers = named.entry(key[..24].to_vec()).or_default();
            numbers.push(part(key, 10).unwrap());
        }
        assert!(named.values().any(|numbers| numbers.len() == 2));
        for (prefix, numbers) in named {
            let district = [0, 1].map(|at| part(&prefix, at).unwrap());
            let mut name = [0; NAME_BYTES];
            name.copy_from_slice(&prefix[8..]);
            let found = within(&mut model).customer(district, &Customer::Name(name));
            // Number n / 2, rounded up, of n (clause 2.5.2.2).
            let right = numbers[numbers.len().div_ceil(2) - 1];
            assert_eq!(found.unwrap(), right, "{numbers:?}");
        }
    }

    #[test]
    fn low_stock_is_below_the_threshold_in_the_last_twenty_orders() {
        let mut model = loaded(&tpcc(3));
        let mut all = 0;
        let districts = (1..=2).flat_map(|w| (1..=DISTRICTS).map(move |d| [w, d]));
        for district in districts {
            let mut items = BTreeSet::new();
            for (key, line) in &model.0[Table::OrderLine as usize] {
                let [w, d, o] = [0, 1, 2].map(|at| part(key, at).unwrap());
                if [w, d] == district && o > 30 - RECENT_ORDERS {
                    items.insert(number(line, order_line::ITEM).unwrap() as u32);
                }
            }
            for threshold in 10..=20 {
                let is_low = |item: &&u32| {
                    let id = key(&[district[0], **item]);
                    let row = &model.0[Table::Stock as usize][&id[..]];
                    number(row, stock::QUANTITY).unwrap() < threshold
                };
                let right = items.iter().filter(is_low).count();
                let found = stock_level(&mut within(&mut model), district, threshold);
                assert_eq!(found.unwrap(), right, "{district:?} {threshold}");
                all += right;
            }
        }
        assert!(all > 0);
    }

    #[test]
    fn bytes_written_are_those_of_committed_rows() {
        let tpcc = tpcc(3);
        let mut model = loaded(&tpcc);
        let mut one = within(&mut model);
        one.write(Table::Item, &key(&[1]), &[7; 30]).unwrap();
        one.write(Table::NewOrder, &key(&[1, 2, 3]), &[]).unwrap();
        assert_eq!(one.bytes, 4 + 30 + 12);
        let mut model = loaded(&tpcc);
        let mut terminal = Terminal::new(&tpcc, 0);
        let rolled_back = || tpcc.rolled_back.load(Ordering::Relaxed);
        for _ in 0..1000 {
            let before = rolled_back();
            let bytes = terminal.perform(Operation::NewOrder, &mut model).unwrap();
            assert_eq!(bytes == 0, rolled_back() > before);
        }
        assert!(rolled_back() > 0);
    }
}
