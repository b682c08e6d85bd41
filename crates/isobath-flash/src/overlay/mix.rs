//! A mix of record updates after TPC-C's tables; not a recording.

use std::collections::VecDeque;

use crate::rng::Rng;

/// Records per warehouse, and what follows of them; a new order's row lags this many behind.
const WAREHOUSE_RECORDS: u32 = 500_000;
const DISTRICTS: u32 = 10;
const ORDER_LINES: u32 = 10;
const PENDING_ORDERS: u32 = 900;

/// Tables, by their first record and number of records. Keys of a table begin with the district
/// where it has one, so that appends go to one place per district.
#[derive(Debug, Clone, Copy)]
struct Table {
    first: u32,
    records: u32,
}

impl Table {
    fn part(self, at: u32, of: u32) -> Table {
        let records = self.records / of;
        Table {
            first: self.first + at * records,
            records,
        }
    }

    /// The record of a number that counts up for ever.
    fn ring(self, number: u32) -> u32 {
        self.first + number % self.records
    }
}

pub(super) struct Mix {
    rng: Rng,
    stock: Table,
    customer: Table,
    lines: Table,
    orders: Table,
    new_orders: Table,
    history: Table,
    districts: Table,
    /// By district, its next order; and the next row of history.
    next_order: Vec<u32>,
    next_history: u32,
    /// Keys, and whether they are new.
    ready: VecDeque<(u32, bool)>,
}

impl Mix {
    /// A mix over `records` records, at least 1,000.
    pub(super) fn new(records: u32, seed: u64) -> Mix {
        let warehouses = records.div_ceil(WAREHOUSE_RECORDS);
        let mut first = 0;
        let mut table = |share: f64| {
            let records = (f64::from(records) * share) as u32;
            first += records;
            Table {
                first: first - records,
                records,
            }
        };
        Mix {
            rng: Rng::new(seed),
            stock: table(0.2),
            customer: table(0.06),
            lines: table(0.58),
            orders: table(0.06),
            new_orders: table(0.02),
            history: table(0.06),
            districts: table(0.02),
            next_order: vec![0; (warehouses * DISTRICTS) as usize],
            next_history: 0,
            ready: VecDeque::new(),
        }
    }

    /// TPC-C's NURand without its constant.
    fn skewed(&mut self, a: u32, table: Table) -> u32 {
        let skewed = self.rng.below(a + 1) | self.rng.below(table.records);
        table.ring(skewed)
    }

    /// The next record that is upserted, and whether its key is new.
    pub(super) fn next(&mut self) -> (u32, bool) {
        // Bound: an order has records.
        loop {
            match self.ready.pop_front() {
                Some(next) => return next,
                None => self.order(),
            }
        }
    }

    /// A new order, a payment and the delivery of an earlier order.
    fn order(&mut self) {
        let count = self.next_order.len() as u32;
        let at = self.rng.below(count);
        let number = self.next_order[at as usize];
        self.next_order[at as usize] = number + 1;
        let (lines, orders) = (self.lines.part(at, count), self.orders.part(at, count));
        let new_orders = self.new_orders.part(at, count);
        let (district, warehouse) = (
            self.districts.ring(at),
            self.districts.ring(count + at / DISTRICTS),
        );
        let old = number.wrapping_sub(PENDING_ORDERS.min(orders.records / 4));
        let line_of =
            |order: u32, line| lines.ring(order.wrapping_mul(ORDER_LINES).wrapping_add(line));
        let new = [
            orders.ring(number),
            new_orders.ring(number),
            self.history.ring(self.next_history),
        ];
        self.next_history += 1;
        let mut keys = Vec::from(new.map(|key| (key, true)));
        for line in 0..ORDER_LINES {
            keys.push((self.skewed(8191, self.stock), false));
            keys.push((line_of(number, line), true));
            keys.push((line_of(old, line), false));
        }
        let changed = [
            district,
            warehouse,
            district,
            self.skewed(1023, self.customer),
            new_orders.ring(old),
            orders.ring(old),
            self.skewed(1023, self.customer),
        ];
        keys.extend(changed.map(|key| (key, false)));
        self.ready.extend(keys);
    }
}
