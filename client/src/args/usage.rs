//! Turns clap's report of a bad command line into one sentence and one hint.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::ending::error::Error;

/// Converts clap's report, without its usage block. `verb` is the typed verb. `meant` is a flag that the user may have
/// meant.
pub(crate) fn from_clap(error: &clap::Error, verb: Option<&str>, meant: Option<String>) -> Error {
    let text = error.to_string();
    let first = text.split("\n\n").next().map(one_line).unwrap_or_default();
    let sentence = validation_sentence(error)
        .or_else(|| equals_sentence(error))
        .unwrap_or_else(|| first.strip_prefix("error: ").unwrap_or(&first).to_owned());
    let hint = meant.map(|flag| format!("did you mean {flag}?")).or_else(|| tip(&text));
    Error::input(sentence).hint(hint.unwrap_or_else(|| where_to_look(error, verb)))
}

fn where_to_look(error: &clap::Error, verb: Option<&str>) -> String {
    match (verb, unknown(error)) {
        (Some(verb), _) => format!("client {verb} --help lists the flags and arguments of \"{verb}\""),
        (None, Some(_)) => "client --help lists flags and verbs; pass arguments for the script after --".to_owned(),
        (None, None) => "client --help lists flags and verbs".to_owned(),
    }
}

/// clap's own hint. Ignores clap's advice to write an unknown flag as a value after `--`: words after `--` are
/// arguments for the script.
fn tip(text: &str) -> Option<String> {
    let mut tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    tips.find(|tip| !tip.starts_with("to pass ")).map(str::to_owned)
}

/// The argument that clap does not know.
pub(super) fn unknown(error: &clap::Error) -> Option<&str> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => Some(word),
        (_, _) => None,
    }
}

/// The sentence for a value that a parser refused: the flag and the parser's own sentence.
fn validation_sentence(error: &clap::Error) -> Option<String> {
    let (ErrorKind::ValueValidation, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    // clap names the flag with its placeholder: `--worker-num <N>`.
    let flag = flag.split(' ').next().unwrap_or(flag);
    error.source().map(|cause| format!("{flag}: {cause}"))
}

/// The sentence for a flag whose value must follow an equals sign.
fn equals_sentence(error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::NoEquals, Some(ContextValue::String(flag))) => {
            Some(format!("write the value after an equals sign: {flag}"))
        }
        (_, _) => None,
    }
}

fn one_line(paragraph: &str) -> String {
    let words: Vec<&str> = paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    words.join(" ")
}
