//! A workload derived from TPC-C (Standard Specification, revision 5.11), on any engine that has
//! transactions.
//!
//! It is no TPC-C: its numbers are transactions per second and may not be called tpmC. It has the
//! nine tables with their columns, two secondary indexes, the five transactions in the standard
//! mix, the non-uniform random choices, remote warehouses, and New-Orders that roll back (1%). It
//! differs in this:
//!
//! - Terminals have no keying and thinking time, and draw their warehouse and district again for
//!   each transaction.
//! - Delivery runs at once, all ten districts in one transaction.
//! - Dates are a count of transactions, so that a run follows from its seed.
//! - A transaction that the engine rolls back because of another one is run again, with the same
//!   input.
//!
//! Where operations take effect one by one (the least isolation), a New-Order looks at all its
//! items before it writes, because nothing can be rolled back.

mod check;
mod load;
mod random;
mod rows;
mod terminal;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

pub(super) use self::check::{Checked, check};
pub(super) use self::load::{count, rows};
use self::random::Constants;
pub(super) use self::terminal::Terminal;
use super::workload::Operation;
use crate::engine::IsolationLevel;
use crate::names::named;

/// The standard mix (clause 5.2.3).
pub(super) const MIX: [(Operation, u32); 5] = [
    (Operation::NewOrder, 45),
    (Operation::Payment, 43),
    (Operation::OrderStatus, 4),
    (Operation::Delivery, 4),
    (Operation::StockLevel, 4),
];

/// Districts of a warehouse.
const DISTRICTS: u32 = 10;
/// Most warehouses.
pub(super) const WAREHOUSES_MAX: u64 = 65_535;

named! {
    /// The tables, in the order of an engine's schema.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Table {
        Warehouse = "warehouse",
        District = "district",
        Customer = "customer",
        History = "history",
        NewOrder = "new-order",
        Orders = "orders",
        OrderLine = "order-line",
        Item = "item",
        Stock = "stock",
        /// Secondary index: warehouse, district, last name, first name, customer.
        CustomerByName = "customer-by-name",
        /// Secondary index: warehouse, district, customer, order; the newest order first.
        OrdersByCustomer = "orders-by-customer",
    }
}

/// How many rows there are of what a warehouse has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Items, and so rows of the stock of a warehouse.
    pub items: u32,
    /// Customers of a district, and orders of it that are loaded.
    pub customers: u32,
}

impl Scale {
    /// Clause 4.3.3.
    pub(super) const FULL: Scale = Scale {
        items: 100_000,
        customers: 3_000,
    };
    /// A hundredth of it.
    pub(super) const SMALL: Scale = Scale {
        items: 1_000,
        customers: 30,
    };

    /// Bytes of keys and values that are loaded for a warehouse, within a few percent.
    pub(super) const fn warehouse_bytes(self) -> usize {
        let (items, customers) = (self.items as usize, self.customers as usize);
        let stock = 8 + 32 + 240 + 38;
        // Row, name index, and 10 lines of 77 bytes, an order, its index and history for each
        // customer.
        let customer = (12 + 56 + 123 + 400) + 44 + 10 * (16 + 40 + 24) + (12 + 40) + 16 + 100;
        items * stock + DISTRICTS as usize * customers * customer + 2000
    }

    /// Orders of a district that are loaded and delivered: seven of ten.
    const fn delivered(self) -> u32 {
        self.customers / 10 * 7
    }
}

/// State shared by all terminals of a run.
#[derive(Debug)]
pub(super) struct Tpcc {
    scale: Scale,
    warehouses: u32,
    constants: Constants,
    isolation: IsolationLevel,
    seed: u64,
    conflicts: AtomicU64,
    rolled_back: AtomicU64,
}

/// Counts other than committed transactions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Transactions that the engine rolled back because of others, and that were run again.
    pub conflicts_count: u64,
    /// New-Orders that rolled back by themselves.
    pub rolled_back_count: u64,
    /// Warehouses whose consistency conditions were checked after the run.
    pub warehouses_checked: u64,
    /// Conditions that did not hold; only under the least isolation is that no error.
    pub violations: Vec<String>,
}

impl Tpcc {
    pub(super) fn new(
        scale: Scale,
        warehouses: u64,
        isolation: IsolationLevel,
        seed: u64,
    ) -> Arc<Tpcc> {
        Arc::new(Tpcc {
            scale,
            warehouses: u32::try_from(warehouses).unwrap_or(u32::MAX),
            constants: Constants::new(seed),
            isolation,
            seed,
            conflicts: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
        })
    }

    /// The report, with the check's result.
    pub(super) fn report(&self, checked: Checked) -> Report {
        Report {
            conflicts_count: self.conflicts.load(Ordering::Relaxed),
            rolled_back_count: self.rolled_back.load(Ordering::Relaxed),
            warehouses_checked: checked.warehouses,
            violations: checked.violations,
        }
    }

    pub(super) fn isolation(&self) -> IsolationLevel {
        self.isolation
    }
}

#[cfg(test)]
mod tests;
