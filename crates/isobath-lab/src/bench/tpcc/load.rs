//! The rows of the first day (clause 4.3.3), table by table in the order of their keys.

use std::borrow::Cow;

use fastrand::Rng;

use super::random::{data, rng_of, text};
use super::rows::{customer, customer_order_key, key, name_key, row, stock};
use super::{DISTRICTS, Table, Tpcc};
use crate::engine::Key;

type Row = (Key, Cow<'static, [u8]>);
type Rows<'t> = Box<dyn Iterator<Item = Row> + Send + 't>;

/// How many rows a table has, about: order lines are random.
pub(in crate::bench) fn count(tpcc: &Tpcc, table: Table) -> u64 {
    let warehouses = u64::from(tpcc.warehouses);
    let districts = warehouses * u64::from(DISTRICTS);
    let customers = districts * u64::from(tpcc.scale.customers);
    match table {
        Table::Warehouse => warehouses,
        Table::District => districts,
        Table::Item => tpcc.scale.items.into(),
        Table::Stock => warehouses * u64::from(tpcc.scale.items),
        Table::NewOrder => districts * u64::from(tpcc.scale.customers - tpcc.scale.delivered()),
        Table::OrderLine => customers * 10,
        _ => customers,
    }
}

/// The rows of a table, in the order of their keys.
pub(in crate::bench) fn rows(tpcc: &Tpcc, table: Table) -> Rows<'_> {
    let warehouses = 1..=tpcc.warehouses;
    let customers = 1..=tpcc.scale.customers;
    let districts = warehouses
        .clone()
        .flat_map(|w| (1..=DISTRICTS).map(move |d| [w, d]));
    let of_customers = districts
        .clone()
        .flat_map(move |[w, d]| customers.clone().map(move |c| [w, d, c]));
    match table {
        Table::Warehouse => Box::new(warehouses.map(|w| warehouse(tpcc, w))),
        Table::District => Box::new(districts.map(|d| district(tpcc, d))),
        Table::Customer => Box::new(of_customers.map(|c| customer_row(tpcc, c))),
        Table::History => Box::new(of_customers.zip(0..).map(|(c, n)| history(tpcc, c, n))),
        Table::NewOrder => Box::new(
            of_customers
                .filter(|[.., o]| *o > tpcc.scale.delivered())
                .map(|o| (key(&o), Cow::Borrowed(&[][..]))),
        ),
        Table::Orders => Box::new(districts.flat_map(|d| orders(tpcc, d))),
        Table::OrderLine => Box::new(of_customers.flat_map(|o| order_lines(tpcc, o))),
        Table::Item => Box::new((1..=tpcc.scale.items).map(|i| item(tpcc, i))),
        Table::Stock => {
            let items = 1..=tpcc.scale.items;
            let all = warehouses.flat_map(move |w| items.clone().map(move |i| [w, i]));
            Box::new(all.map(|s| stock_row(tpcc, s)))
        }
        Table::CustomerByName => Box::new(districts.flat_map(|d| by_name(tpcc, d))),
        Table::OrdersByCustomer => Box::new(districts.flat_map(|d| by_customer(tpcc, d))),
    }
}

/// Streets, city, state and postcode: 71 bytes.
fn address(rng: &mut Rng, row: &mut Vec<u8>) {
    text(rng, row, 71);
}

fn rate(rng: &mut Rng, most: i64) -> i64 {
    rng.i64(0..=most)
}

fn warehouse(tpcc: &Tpcc, w: u32) -> Row {
    let mut rng = rng_of(tpcc.seed, Table::Warehouse, &[w]);
    let mut value = row(&[rate(&mut rng, 2000), 30_000_000]);
    text(&mut rng, &mut value, 10);
    address(&mut rng, &mut value);
    (key(&[w]), value.into())
}

fn district(tpcc: &Tpcc, district: [u32; 2]) -> Row {
    let mut rng = rng_of(tpcc.seed, Table::District, &district);
    let next_order = i64::from(tpcc.scale.customers) + 1;
    let mut value = row(&[rate(&mut rng, 2000), 3_000_000, next_order]);
    text(&mut rng, &mut value, 10);
    address(&mut rng, &mut value);
    (key(&district), value.into())
}

fn customer_row(tpcc: &Tpcc, id: [u32; 3]) -> Row {
    let mut rng = rng_of(tpcc.seed, Table::Customer, &id);
    let good_credit = i64::from(rng.u32(..10) != 0);
    // Credit limit, discount, balance, payments, number of payments, of deliveries, credit.
    let discount = rate(&mut rng, 5000);
    let mut value = row(&[5_000_000, discount, -1000, 1000, 1, 0, good_credit]);
    debug_assert_eq!(value.len(), customer::NUMBERS * 8);
    let [first, last] = tpcc.constants.names(tpcc.seed, id);
    value.extend_from_slice(&first);
    value.extend_from_slice(b"OE");
    value.extend_from_slice(&last);
    address(&mut rng, &mut value);
    text(&mut rng, &mut value, 16);
    value.extend_from_slice(if good_credit == 1 { b"GC" } else { b"BC" });
    debug_assert_eq!(value.len(), customer::NUMBERS * 8 + customer::TEXT_BYTES);
    let data_bytes = rng.usize(300..=customer::DATA_BYTES);
    text(&mut rng, &mut value, data_bytes);
    (key(&id), value.into())
}

/// The first client's history is that from before the run.
fn history(tpcc: &Tpcc, [w, d, c]: [u32; 3], number: u32) -> Row {
    let mut rng = rng_of(tpcc.seed, Table::History, &[w, d, c]);
    let ids = [c, d, w, d, w].map(i64::from);
    let mut value = row(&ids);
    value.extend_from_slice(&row(&[0, 1000]));
    let bytes = rng.usize(12..=24);
    text(&mut rng, &mut value, bytes);
    (key(&[0, 0, number]), value.into())
}

/// The customers of a district's orders: each has one, in random order.
fn customers_of_orders(tpcc: &Tpcc, district: [u32; 2]) -> Vec<u32> {
    let mut customers: Vec<u32> = (1..=tpcc.scale.customers).collect();
    rng_of(tpcc.seed, Table::Orders, &district).shuffle(&mut customers);
    customers
}

/// Lines of an order: 5 to 15.
fn lines(tpcc: &Tpcc, order: [u32; 3]) -> u32 {
    rng_of(tpcc.seed, Table::Orders, &order).u32(5..=15)
}

fn orders(tpcc: &Tpcc, [w, d]: [u32; 2]) -> impl Iterator<Item = Row> + use<'_> {
    let customers = customers_of_orders(tpcc, [w, d]);
    customers.into_iter().zip(1..).map(move |(c, o)| {
        let mut rng = rng_of(tpcc.seed, Table::NewOrder, &[w, d, o]);
        let carrier = match o <= tpcc.scale.delivered() {
            true => rng.i64(1..=10),
            false => 0,
        };
        let lines = lines(tpcc, [w, d, o]).into();
        // Customer, date, carrier, lines, whether all are local.
        let value = row(&[c.into(), 0, carrier, lines, 1]);
        (key(&[w, d, o]), value.into())
    })
}

fn order_lines(tpcc: &Tpcc, [w, d, o]: [u32; 3]) -> impl Iterator<Item = Row> + use<'_> {
    (1..=lines(tpcc, [w, d, o])).map(move |line| {
        let mut rng = rng_of(tpcc.seed, Table::OrderLine, &[w, d, o, line]);
        let item = rng.u32(1..=tpcc.scale.items);
        let (delivered, amount) = match o <= tpcc.scale.delivered() {
            true => (1, 0),
            false => (0, rng.i64(1..=999_999)),
        };
        // Item, warehouse, date of delivery (0: not yet), quantity, amount.
        let mut value = row(&[item.into(), w.into(), delivered, 5, amount]);
        text(&mut rng, &mut value, stock::DISTRICT_BYTES);
        (key(&[w, d, o, line]), value.into())
    })
}

fn item(tpcc: &Tpcc, item: u32) -> Row {
    let mut rng = rng_of(tpcc.seed, Table::Item, &[item]);
    let mut value = row(&[rng.i64(1..=10_000), rng.i64(100..=10_000)]);
    let bytes = rng.usize(14..=24);
    text(&mut rng, &mut value, bytes);
    data(&mut rng, &mut value);
    (key(&[item]), value.into())
}

fn stock_row(tpcc: &Tpcc, id: [u32; 2]) -> Row {
    let mut rng = rng_of(tpcc.seed, Table::Stock, &id);
    let mut value = row(&[rng.i64(10..=100), 0, 0, 0]);
    debug_assert_eq!(value.len(), stock::NUMBERS * 8);
    text(
        &mut rng,
        &mut value,
        DISTRICTS as usize * stock::DISTRICT_BYTES,
    );
    data(&mut rng, &mut value);
    (key(&id), value.into())
}

fn by_name(tpcc: &Tpcc, [w, d]: [u32; 2]) -> impl Iterator<Item = Row> + use<> {
    let customers = 1..=tpcc.scale.customers;
    let mut keys: Vec<Key> = customers
        .map(|c| {
            let [first, last] = tpcc.constants.names(tpcc.seed, [w, d, c]);
            name_key([w, d], last, Some((first, c)))
        })
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(|key| (key, Cow::Borrowed(&[][..])))
}

fn by_customer(tpcc: &Tpcc, [w, d]: [u32; 2]) -> impl Iterator<Item = Row> + use<> {
    let orders = customers_of_orders(tpcc, [w, d]).into_iter().zip(1..);
    let mut keys: Vec<Key> = orders
        .map(|(c, o)| customer_order_key([w, d, c], o))
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(|key| (key, Cow::Borrowed(&[][..])))
}
