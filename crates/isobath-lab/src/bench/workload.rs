//! Operations of the benchmark and their mixes.

use std::str::FromStr;

use crate::names::named;
use serde::{Deserialize, Serialize};

/// Number of operations.
pub(crate) const OPERATIONS: usize = Operation::ALL.len();

named! {
    /// An operation of the mix.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub(crate) enum Operation {
        Get = "get",
        GetMany = "get-many",
        Scan = "scan",
        Update = "update",
        Insert = "insert",
        /// Reads a record and replaces it.
        ReadModifyWrite = "rmw",
        /// The five transactions of the TPC-C-derived workload.
        NewOrder = "new-order",
        Payment = "payment",
        OrderStatus = "order-status",
        Delivery = "delivery",
        StockLevel = "stock-level",
    }
}

impl Operation {
    /// Whether it is a transaction over the tables of the TPC-C-derived workload.
    pub(crate) fn is_transaction(self) -> bool {
        self as usize >= Operation::NewOrder as usize
    }

    pub(crate) fn writes(self) -> bool {
        let transactions = [Operation::NewOrder, Operation::Payment, Operation::Delivery];
        self.replaces() || self == Operation::Insert || transactions.contains(&self)
    }

    /// Whether it changes a record that is there.
    pub(crate) fn replaces(self) -> bool {
        matches!(self, Operation::Update | Operation::ReadModifyWrite)
    }
}

/// Operations and their weights, as `get:50,update:50` says them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mix {
    weights: [u32; OPERATIONS],
    total: u32,
}

impl Mix {
    /// Lookups only.
    #[must_use]
    pub fn get() -> Mix {
        Mix::of(&[(Operation::Get, 1)])
    }

    /// Operations with these weights, at least one of them above 0.
    pub(crate) fn of(parts: &[(Operation, u32)]) -> Mix {
        let mut weights = [0; OPERATIONS];
        for (operation, weight) in parts {
            weights[*operation as usize] += weight;
        }
        Mix {
            weights,
            total: weights.iter().sum(),
        }
    }

    /// Draws an operation from `random`, uniform below [`Mix::total`].
    pub(crate) fn draw(&self, mut random: u32) -> Operation {
        for (operation, weight) in Operation::ALL.into_iter().zip(self.weights) {
            if random < weight {
                return operation;
            }
            random -= weight;
        }
        Operation::Get
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// The single operation, if there is one.
    pub(crate) fn only(&self) -> Option<Operation> {
        let mut present = self.present();
        let first = present.next()?;
        present.next().is_none().then_some(first)
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = Operation> + '_ {
        Operation::ALL
            .into_iter()
            .filter(|o| self.weights[*o as usize] > 0)
    }

    /// Whether any operation adds records.
    #[must_use]
    pub fn inserts(&self) -> bool {
        self.has(Operation::Insert)
    }

    /// Share of operations that are this one.
    pub(crate) fn share_of(&self, operation: Operation) -> f64 {
        f64::from(self.weights[operation as usize]) / f64::from(self.total)
    }

    pub(crate) fn has(&self, operation: Operation) -> bool {
        self.weights[operation as usize] > 0
    }

    /// Whether any operation replaces a value that was loaded.
    pub(crate) fn replaces(&self) -> bool {
        self.present().any(Operation::replaces)
    }

    /// Whether any operation changes records.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.present().any(Operation::writes)
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        Mix::parse(text, |operation| !operation.is_transaction())
    }
}

impl Mix {
    /// Reads a mix of those operations that may be in it.
    fn parse(text: &str, may: impl Fn(Operation) -> bool) -> Result<Mix, String> {
        let mut weights = [0u32; OPERATIONS];
        for part in text.split(',') {
            let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
            let operation = Operation::ALL
                .into_iter()
                .find(|o| o.name() == name.trim() && may(*o))
                .ok_or_else(|| {
                    format!(
                        "`{name}` is no operation; there are get, get-many, scan, update, insert, rmw"
                    )
                })?;
            let weight = weight
                .trim()
                .parse::<u16>()
                .map_err(|_| format!("`{weight}` is no weight; write a number up to 65535"))?;
            weights[operation as usize] += u32::from(weight);
        }
        let total = weights.iter().sum();
        if total == 0 {
            return Err("all weights are zero".to_owned());
        }
        Ok(Mix { weights, total })
    }
}

impl From<Mix> for String {
    fn from(mix: Mix) -> String {
        mix.to_string()
    }
}

impl TryFrom<String> for Mix {
    type Error = String;

    fn try_from(text: String) -> Result<Mix, String> {
        Mix::parse(&text, |_| true)
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self
            .present()
            .map(|o| match self.only() {
                Some(_) => o.name().to_owned(),
                None => format!("{}:{}", o.name(), self.weights[o as usize]),
            })
            .collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_parsed_and_printed() {
        let mix: Mix = "get:50,update:50".parse().unwrap();
        assert_eq!(mix.to_string(), "get:50,update:50");
        assert!(mix.writes() && mix.only().is_none());
        assert_eq!(mix.draw(49), Operation::Get);
        assert_eq!(mix.draw(50), Operation::Update);
        let mix: Mix = "scan".parse().unwrap();
        assert_eq!(mix.only(), Some(Operation::Scan));
        assert_eq!(mix.to_string(), "scan");
        assert!("fly".parse::<Mix>().is_err_and(|e| e.contains("get-many")));
        assert!("get:0".parse::<Mix>().is_err());
        assert!("get:x".parse::<Mix>().is_err());
    }
}
