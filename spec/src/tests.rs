use std::time::Instant;

use stateright::{Checker, HasDiscoveries};

use super::*;

/// The properties that must hold always.
const ALWAYS: [&str; 2] = [
    "nothing is lost in a crash",
    "pages are where the mapping table says",
];

const fn bounds(
    [
        commits,
        moves,
        loads,
        writes,
        relocations,
        checkpoints,
        crashes,
    ]: [u8; 7],
) -> Bounds {
    Bounds {
        commits,
        moves,
        loads,
        writes,
        relocations,
        checkpoints,
        crashes,
    }
}

/// Histories that together contain everything, each explored in full.
const SCOPES: [(&str, Bounds); 6] = [
    ("changes", bounds([2, 0, 0, 3, 0, 2, 1])),
    ("moves", bounds([1, 1, 0, 2, 0, 2, 0])),
    ("recoveries", bounds([1, 1, 1, 0, 0, 0, 1])),
    ("out-of-order records", bounds([2, 1, 0, 3, 0, 1, 0])),
    ("cleaning", bounds([1, 0, 0, 1, 2, 1, 1])),
    ("loads", bounds([1, 0, 1, 1, 0, 2, 1])),
];

/// The smallest histories that show what a rule is for; none for rules that the others imply in all
/// of
/// [`SCOPES`]: a page on the drive is named by records and superblocks only, and these wait for the log.
fn scope_of(rule: Rule) -> Option<Bounds> {
    Some(bounds(match rule {
        Rule::WriteAhead | Rule::RecordsInFlight | Rule::RecoveredCovered => return None,
        Rule::FlushBeforeMapping
        | Rule::DirtyPages
        | Rule::PagesBeingWritten
        | Rule::OrderOfReads
        | Rule::UnappliedCommits
        | Rule::MarkBeforeComplete => [1, 0, 0, 1, 0, 1, 0],
        Rule::LogBeforeSuperblock => [1, 1, 0, 0, 0, 1, 0],
        Rule::VersionsGrow => [1, 1, 0, 1, 0, 1, 0],
        Rule::ReuseAfterDurable | Rule::CompareAndSwap => [1, 0, 0, 1, 2, 0, 0],
        Rule::ProvisionalListed => [0, 0, 1, 0, 0, 1, 0],
        Rule::ConfirmedRemoved => [1, 0, 1, 1, 0, 1, 0],
        Rule::FreedByRecoveryLogged => [0, 1, 1, 0, 0, 0, 1],
        Rule::FlushWithRecord | Rule::MissingEndsLog => [0, 0, 1, 0, 0, 0, 0],
        Rule::EndedNotVerified => [0, 0, 1, 0, 4, 0, 0],
        Rule::OrphansNotVerified => [1, 0, 1, 1, 0, 0, 1],
        Rule::OutOfOrderRecords | Rule::FreedBeforeRecord => [2, 1, 0, 3, 0, 1, 0],
    }))
}

#[test]
fn nothing_is_lost() {
    let only = std::env::var("SCOPE").ok();
    for (name, bounds) in SCOPES {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let began = Instant::now();
        let protocol = Protocol {
            bounds,
            broken: None,
        };
        let checker = protocol.checker().threads(2).spawn_bfs().join();
        println!(
            "{name}: {} states in {:.1} s",
            checker.unique_state_count(),
            began.elapsed().as_secs_f64()
        );
        for property in ALWAYS {
            if let Some(path) = checker.discovery(property) {
                let state = path.last_state().clone();
                let actions = path.into_actions();
                panic!("{name}, {property}:\n{state:#?}\n{actions:#?}");
            }
        }
    }
}

/// The actions that lead to a loss in a protocol without `rule`.
fn loss_without(rule: Rule, bounds: Bounds) -> Option<Vec<Action>> {
    let protocol = Protocol {
        bounds,
        broken: Some(rule),
    };
    let finish = HasDiscoveries::AnyFailures;
    let checker = protocol.checker().threads(2).finish_when(finish);
    let checker = checker.spawn_bfs().join();
    let lost = ALWAYS.iter().find_map(|name| checker.discovery(name))?;
    Some(lost.into_actions())
}

#[test]
fn every_rule_is_needed() {
    let only = std::env::var("RULE").ok();
    for rule in RULES {
        let name = format!("{rule:?}");
        let Some(bounds) =
            scope_of(rule).filter(|_| only.as_ref().is_none_or(|only| *only == name))
        else {
            continue;
        };
        let began = Instant::now();
        let loss = loss_without(rule, bounds);
        let seconds = began.elapsed().as_secs_f64();
        let loss = loss.unwrap_or_else(|| panic!("nothing is lost without {name}"));
        println!("without {name}, {seconds:.1} s: {loss:?}");
    }
}

#[test]
fn some_rules_are_implied_by_the_others() {
    for rule in RULES.into_iter().filter(|rule| scope_of(*rule).is_none()) {
        for (name, bounds) in &SCOPES[..3] {
            let loss = loss_without(rule, *bounds);
            assert_eq!(loss, None, "{name}: {rule:?} is needed after all");
        }
    }
}
