//! The list of policies, by the names that users write.

use super::{Age, CleaningPolicy, CostBenefit, Greedy, LifeTable, Mdc, MdcOpt, MultiLog};

/// A policy's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Oldest segment first.
    Age,
    /// Emptiest segment first.
    Greedy,
    /// LFS's benefit-to-cost ratio.
    CostBenefit,
    /// Multi-log with estimated frequencies.
    MultiLog,
    /// Multi-log with exact frequencies.
    MultiLogOpt,
    /// Minimum declining cost.
    Mdc,
    /// MDC with exact frequencies.
    MdcOpt,
    /// MDC without separation of user writes.
    MdcNoSepUser,
    /// MDC without any separation.
    MdcNoSepUserGc,
    /// Death rates learned from observed ages.
    LifeTable,
}

/// The name of a policy that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown cleaning policy `{name}`; the known ones are {}",
    PolicyKind::names()
)]
pub struct UnknownPolicy {
    /// The requested value.
    pub name: String,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [PolicyKind; 10] = [
        Self::Age,
        Self::Greedy,
        Self::CostBenefit,
        Self::MultiLog,
        Self::MultiLogOpt,
        Self::Mdc,
        Self::MdcOpt,
        Self::MdcNoSepUser,
        Self::MdcNoSepUserGc,
        Self::LifeTable,
    ];

    /// The name that users write, in any case and with `_` for `-`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Greedy => "greedy",
            Self::CostBenefit => "cost-benefit",
            Self::MultiLog => "multi-log",
            Self::MultiLogOpt => "multi-log-opt",
            Self::Mdc => "mdc",
            Self::MdcOpt => "mdc-opt",
            Self::MdcNoSepUser => "mdc-no-sep-user",
            Self::MdcNoSepUserGc => "mdc-no-sep-user-gc",
            Self::LifeTable => "life-table",
        }
    }

    /// All names, separated by commas.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// True for the oracle policies, which only a simulator can run.
    pub fn needs_rates(self) -> bool {
        matches!(self, Self::MultiLogOpt | Self::MdcOpt)
    }

    /// Builds the policy for a space of about `pages` pages.
    pub fn build(self, pages: u64) -> Box<dyn CleaningPolicy> {
        self.with(pages, BoxIt)
    }

    /// Calls `user` with the policy as a concrete type, so that its code is specialised.
    pub fn with<U: PolicyUser>(self, pages: u64, user: U) -> U::Output {
        match self {
            Self::Age => user.run(Age::new()),
            Self::Greedy => user.run(Greedy::new()),
            Self::CostBenefit => user.run(CostBenefit::new()),
            Self::MultiLog => user.run(MultiLog::new(pages)),
            Self::MultiLogOpt => user.run(MultiLog::exact()),
            Self::Mdc => user.run(Mdc::new()),
            Self::MdcOpt => user.run(MdcOpt::new()),
            Self::MdcNoSepUser => user.run(Mdc::no_separate_user()),
            Self::MdcNoSepUserGc => user.run(Mdc::no_separate()),
            Self::LifeTable => user.run(LifeTable::new(pages)),
        }
    }
}

/// Code that is generic over the policy; see [`PolicyKind::with`].
pub trait PolicyUser {
    /// Its result.
    type Output;
    /// Runs with a concrete policy.
    fn run<P: CleaningPolicy + 'static>(self, policy: P) -> Self::Output;
}

struct BoxIt;

impl PolicyUser for BoxIt {
    type Output = Box<dyn CleaningPolicy>;
    fn run<P: CleaningPolicy + 'static>(self, policy: P) -> Self::Output {
        Box::new(policy)
    }
}

impl std::fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let wanted = name.to_ascii_lowercase().replace('_', "-");
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == wanted)
            .ok_or_else(|| UnknownPolicy {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_matches_the_policy_built() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let policy = kind.build(1000);
            assert_eq!(policy.name(), kind.name());
            assert_eq!(policy.needs_rates(), kind.needs_rates());
        }
        assert_eq!("MDC_opt".parse(), Ok(PolicyKind::MdcOpt));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "lru".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(
            error.contains("`lru`") && error.contains("greedy, cost-benefit"),
            "{error}"
        );
    }
}
