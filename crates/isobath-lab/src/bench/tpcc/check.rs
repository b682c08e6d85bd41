//! Consistency conditions 1 to 4 (clauses 3.3.2.1 to 3.3.2.4), and the agreement of the secondary
//! indexes with their tables.

use std::sync::Mutex;
use std::sync::PoisonError;

use super::rows::{district, key, number, orders, part, warehouse};
use super::{DISTRICTS, Table, Tpcc};
use crate::LabError;
use crate::engine::{Access, Decision, Ended, Session, Tables};

/// Attempts to read a warehouse in one transaction.
const ATTEMPTS_MAX: usize = 100;

/// The result of the check of all warehouses.
#[derive(Debug, Default)]
pub(in crate::bench) struct Checked {
    pub(in crate::bench) warehouses: u64,
    pub(in crate::bench) violations: Vec<String>,
}

/// One client's part of the check: every warehouse whose number leaves `client` when it is divided
/// by `clients`.
pub(in crate::bench) fn check(
    tpcc: &Tpcc,
    client: usize,
    clients: usize,
    session: &mut dyn Session,
    found: &Mutex<Checked>,
) -> Result<(), LabError> {
    for w in (1..=tpcc.warehouses).filter(|w| *w as usize % clients == client) {
        let violations = violations_of(w, tpcc, session)?;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        found.warehouses += 1;
        found.violations.extend(violations);
    }
    Ok(())
}

fn violations_of(w: u32, tpcc: &Tpcc, session: &mut dyn Session) -> Result<Vec<String>, LabError> {
    for _ in 0..ATTEMPTS_MAX {
        let mut violations = Vec::new();
        let ended = session.transact(Access::Read, &mut |transaction| {
            violations = conditions(w, tpcc, transaction)?;
            Ok(Decision::Commit)
        })?;
        if ended == Ended::Committed {
            return Ok(violations);
        }
    }
    Err(LabError::Verify(format!(
        "warehouse {w} could not be read in one transaction"
    )))
}

fn conditions(w: u32, tpcc: &Tpcc, transaction: &mut dyn Tables) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let mut expect = |holds: bool, text: String| {
        if !holds {
            violations.push(format!("warehouse {w}: {text}"));
        }
    };
    let mut row = Vec::new();
    let mut read = |transaction: &mut dyn Tables, table: Table, ids: &[u32], at| match transaction
        .get(
        table as usize,
        &key(ids),
        &mut row,
    )? {
        true => number(&row, at),
        false => Err(LabError::Verify(format!("row {ids:?} is missing"))),
    };
    let w_ytd = read(transaction, Table::Warehouse, &[w], warehouse::YTD)?;
    let mut d_ytd = 0;
    for d in 1..=DISTRICTS {
        d_ytd += read(transaction, Table::District, &[w, d], district::YTD)?;
        let next = read(transaction, Table::District, &[w, d], district::NEXT_ORDER)?;
        let district = District::read(transaction, [w, d])?;
        expect(
            next - 1 == i64::from(district.order_max)
                && (district.open_count == 0 || district.open_max == district.order_max),
            format!(
                "condition 2 in district {d}: the next order is {next}, the last one {}, the last new one {}",
                district.order_max, district.open_max
            ),
        );
        expect(
            district.open_count == 0
                || u64::from(district.open_max - district.open_min) + 1 == district.open_count,
            format!("condition 3 in district {d}: the new orders have gaps"),
        );
        expect(
            district.lines_sum == district.lines_count,
            format!(
                "condition 4 in district {d}: orders name {} lines, there are {}",
                district.lines_sum, district.lines_count
            ),
        );
        expect(
            district.order_count == district.index_count
                && district.names_count == u64::from(tpcc.scale.customers),
            format!("the secondary indexes of district {d} are not complete"),
        );
    }
    expect(
        w_ytd == d_ytd,
        format!("condition 1: it took {w_ytd} cents, its districts {d_ytd}"),
    );
    Ok(violations)
}

/// A district's values in the tables.
#[derive(Default)]
struct District {
    order_max: u32,
    order_count: u64,
    lines_sum: u64,
    lines_count: u64,
    open_min: u32,
    open_max: u32,
    open_count: u64,
    index_count: u64,
    names_count: u64,
}

impl District {
    fn read(transaction: &mut dyn Tables, id: [u32; 2]) -> Result<District, LabError> {
        let mut found = District::default();
        each(transaction, Table::Orders, &id, |key, row| {
            found.order_max = part(key, 2)?;
            found.order_count += 1;
            found.lines_sum += u64::try_from(number(row, orders::LINES)?).unwrap_or(0);
            Ok(())
        })?;
        each(transaction, Table::NewOrder, &id, |key, _| {
            found.open_max = part(key, 2)?;
            if found.open_count == 0 {
                found.open_min = found.open_max;
            }
            found.open_count += 1;
            Ok(())
        })?;
        let counts = [
            (Table::OrderLine, &mut found.lines_count),
            (Table::OrdersByCustomer, &mut found.index_count),
            (Table::CustomerByName, &mut found.names_count),
        ];
        for (table, count) in counts {
            each(transaction, table, &id, |_, _| {
                *count += 1;
                Ok(())
            })?;
        }
        Ok(found)
    }
}

/// Visits all records whose keys begin with these numbers.
pub(super) fn each(
    transaction: &mut dyn Tables,
    table: Table,
    prefix: &[u32],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), LabError> + Send,
) -> Result<(), LabError> {
    let prefix = key(prefix);
    let mut result = Ok(());
    transaction.scan(table as usize, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        result = visit(key, value);
        result.is_ok()
    })?;
    result
}
