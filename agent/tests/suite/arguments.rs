//! How the words of a command are expanded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;

use agent::process::arguments::expanded;
use agent::process::child::RunTemplate;
use proptest::prelude::{prop_assert_eq, proptest};

use crate::support::{Agent, supervised};

fn with(pairs: &[(&str, &str)], word: &str) -> String {
    let environment = pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
    let words = expanded(&[OsString::from(word)], &environment).unwrap();
    words.into_iter().next().unwrap().into_string().unwrap()
}

#[test]
fn references_are_replaced_by_the_rules_of_kubernetes() {
    let variables = [("A", "1"), ("B", "two words"), ("EMPTY", ""), ("REFERS", "$(A)"), ("A B", "odd name")];
    for (word, expected) in [
        ("$(A)", "1"),
        ("--rank=$(A)/$(B)", "--rank=1/two words"),
        ("$(A)$(A)", "11"),
        ("[$(EMPTY)]", "[]"),
        ("$(REFERS)", "$(A)"),
        ("$(A B)", "odd name"),
        ("$(UNKNOWN) $()", "$(UNKNOWN) $()"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("$A ${A} $ (A)", "$A ${A} $ (A)"),
        ("$(A", "$(A"),
        ("$($(A))", "$($(A))"),
        ("é$(A)é", "é1é"),
        ("", ""),
    ] {
        assert_eq!(with(&variables, word), expected, "{word}");
    }
}

#[test]
fn expansions_that_are_too_long_for_linux_are_refused() {
    let environment = BTreeMap::from([("BIG".into(), "x".repeat(100_000).into())]);
    let kind = |words: &[OsString]| expanded(words, &environment).map(drop).map_err(|error| error.kind());
    assert_eq!(kind(&["$(BIG)".into()]), Ok(()));
    assert_eq!(kind(&["$(BIG)".repeat(50_000).into()]), Err(ErrorKind::ArgumentListTooLong));
    assert_eq!(kind(&vec!["$(BIG)".into(); 50_000]), Err(ErrorKind::ArgumentListTooLong));
}

#[test]
fn the_words_of_an_entrypoint_and_bytes_that_are_not_text_are_not_changed() {
    let bytes = OsString::from_vec(b"\xff$(A)".to_vec());
    let template = RunTemplate {
        command: vec!["$(A)".into(), "$$".into(), "$(A)".into(), bytes],
        entrypoint_words: 2,
        work_dir: ".".into(),
        environment: BTreeMap::new(),
        helper: None,
    };
    let command = template.command_with(&BTreeMap::from([("A".into(), "1".into())])).unwrap();
    assert_eq!(command, ["$(A)".into(), "$$".into(), "1".into(), OsString::from_vec(b"\xff1".to_vec())]);
}

#[test]
fn arguments_contain_values_of_the_config_but_not_the_address_of_the_kubernetes_api() {
    let script = r#"echo "$1 ${KUBERNETES_SERVICE_HOST-unset}""#;
    let mut program = supervised();
    program.args(["--", "sh", "-c", script, "sh"]);
    program.arg("$(GREETING) $(KUBERNETES_SERVICE_HOST)").env("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    let agent = Agent::from_program(program);
    agent.go_with(r#"{"GREETING": "hello $(HOME)"}"#);
    agent.wait_for_exit();
    assert_eq!(String::from_utf8_lossy(&agent.logs("stdout")), "hello $(HOME) $(KUBERNETES_SERVICE_HOST) unset\n");
}

proptest! {
    #[test]
    fn a_word_whose_dollars_were_doubled_expands_to_the_original_word(word in "([$()AB é]|\\$\\(A\\)){0,10}", value in "[$()AB]{0,6}") {
        prop_assert_eq!(with(&[("A", &value), ("B", &value)], &word.replace('$', "$$")), word);
    }

    #[test]
    fn values_are_never_expanded_again(word in "([$()AB]|\\$\\(A\\)){0,10}", a in "(\\$|\\$\\(B\\)){0,3}", b in "(\\$|\\$\\(A\\)){0,3}") {
        let marked = with(&[("A", "<a>"), ("B", "<b>")], &word);
        prop_assert_eq!(with(&[("A", &a), ("B", &b)], &word), marked.replace("<a>", &a).replace("<b>", &b));
    }
}
