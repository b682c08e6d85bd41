//! Parses the words of a command line, and guesses the meaning of words that do not parse.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// Verbs of other programs, and what does the same here.
const OTHER_VERBS: &[(&[&str], &str)] = &[
    (
        &["ls", "list", "keys"],
        "`isobath scan --keys-only` lists keys, `isobath trees list` trees, `isobath info` both in numbers",
    ),
    (
        &["dump", "cat", "print"],
        "`isobath scan` prints records, `isobath export` writes a file that any version can import",
    ),
    (
        &["count", "len", "size", "wc"],
        "`isobath scan --count` counts, `isobath info` estimates",
    ),
    (
        &["find", "search", "grep", "range", "prefix"],
        "`isobath scan` has --prefix, --from and --to",
    ),
    (
        &["create", "init", "new", "open"],
        "`isobath put`, `load`, `import` and `trees create` make a store with --create",
    ),
    (
        &["drop", "truncate", "clear"],
        "`isobath trees drop` drops a tree with all its records",
    ),
    (
        &["vacuum", "shrink"],
        "`isobath compact` gives file space back",
    ),
    (
        &["verify", "fsck", "scrub"],
        "`isobath check` reads and verifies everything",
    ),
    (
        &["repair", "fix"],
        "`isobath recover` completes a store that was not closed, `isobath salvage` copies what can be read of a corrupt one",
    ),
    (
        &["copy", "cp", "snapshot"],
        "`isobath backup` copies a store, also one that is in use",
    ),
    (
        &["status", "describe", "inspect", "schema"],
        "`isobath info` says what is in a store, `isobath stats` has all numbers",
    ),
];

/// Verbs of which another word than the store's may name a store, too: there the store is the
/// first.
const WITH_TWO_STORES: &[&str] = &["follow", "salvage"];

impl Cli {
    /// Reads the command line. A store that stands there without `-s` is understood where nothing
    /// else can be meant.
    ///
    /// # Errors
    /// As the parser's, with a hint.
    pub(crate) fn read() -> Result<Cli, Error> {
        let mut words: Vec<OsString> = std::env::args_os().collect();
        move_behind_verb(&mut words);
        let mut error = match Cli::of(&words) {
            Ok(cli) => return Ok(cli),
            Err(error) => error,
        };
        let hint = match hint(&words, error.kind()) {
            None => return Err(error),
            Some(Hint::Tip(tip)) => tip,
            Some(Hint::Store { words, is_store }) => {
                if is_store && let Ok(cli) = Cli::of(&words) {
                    return Ok(cli);
                }
                let line: Vec<_> = words.iter().skip(1).map(|w| w.to_string_lossy()).collect();
                let line = isobath_lab::escape_controls(&line.join(" "));
                format!("name the store with -s: `isobath {line}`")
            }
        };
        error.remove(ContextKind::SuggestedSubcommand);
        let tips = ContextValue::StyledStrs(vec![hint.into()]);
        error.insert(ContextKind::Suggested, tips);
        Err(error)
    }

    fn of(words: &[OsString]) -> Result<Cli, Error> {
        Cli::try_parse_from(words).and_then(Cli::check)
    }
}

/// Moves stores that are named before the verb, where no verb has options, behind it.
fn move_behind_verb(words: &mut [OsString]) {
    let is_store = |word: &OsString| word == "-s" || word == "--store";
    let stores = words.get(1..).unwrap_or_default().chunks(2);
    let stores = stores.take_while(|pair| is_store(&pair[0])).count();
    if let Some(before) = words.get_mut(1..2 * stores + 2) {
        before.rotate_right(1);
    }
}

/// Whether one of the words is neither an option of the verb nor the value of one.
fn names(verb: &Command, words: &[OsString]) -> bool {
    let takes_value = |word: &str| {
        let mut options = verb.get_arguments();
        let option = options.find(|option| match word.strip_prefix("--") {
            Some(long) => option.get_long() == Some(long),
            None => word.strip_prefix('-').is_some_and(|short| {
                let mut letter = [0; 4];
                let known = option.get_short();
                known.is_some_and(|known| short == &*known.encode_utf8(&mut letter))
            }),
        });
        option.is_some_and(|option| option.get_action().takes_values())
    };
    let mut is_value = false;
    for word in words {
        let word = word.to_string_lossy();
        if !is_value && !word.starts_with('-') {
            return true;
        }
        is_value = !is_value && takes_value(&word);
    }
    false
}

/// A guess at the meaning of words that do not parse.
enum Hint {
    Tip(String),
    /// The same words with `-s` before one, and whether that names a store.
    Store {
        words: Vec<OsString>,
        is_store: bool,
    },
}

fn hint(words: &[OsString], kind: ErrorKind) -> Option<Hint> {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let verb_at = 1 + words.iter().skip(1).position(|word| !is_option(word))?;
    let verb = words.get(verb_at)?.to_str()?;
    let mut command = Cli::command();
    let Some(known) = command.find_subcommand_mut(verb) else {
        let mut others = OTHER_VERBS.iter();
        let (_, tip) = others.find(|(verbs, _)| verbs.contains(&verb))?;
        return Some(Hint::Tip((*tip).to_owned()));
    };
    let told = |word: &OsString| {
        let word = word.to_string_lossy();
        word.starts_with("--store") || word.starts_with("-s")
    };
    let takes_store = known
        .get_arguments()
        .any(|arg| arg.get_short() == Some('s'));
    let is_help = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if is_help || !takes_store || words.iter().any(told) {
        return None;
    }
    let rest = words.get(verb_at + 1..)?;
    let is_store =
        |word: &OsString| !is_option(word) && isobath_lab::is_store_file(Path::new(word));
    let found = rest.iter().position(is_store);
    let may_be_meant = |&at: &usize| {
        !WITH_TWO_STORES.contains(&verb) || rest.get(..at).is_some_and(|words| !names(known, words))
    };
    let found = found.filter(may_be_meant);
    let at = match found {
        Some(at) => at,
        None if rest.first().is_some_and(|word| !is_option(word)) => 0,
        None => return None,
    };
    let mut words = words.to_vec();
    words.insert(verb_at + 1 + at, "-s".into());
    Some(Hint::Store {
        words,
        is_store: found.is_some(),
    })
}
