//! Golden JSON of the messages about warm interpreters.

use crate::common::{assert_golden, read};
use protocol::error::ErrorCode;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::{Preload, RunPolicy};
use protocol::warm::{ModuleName, WarmRequest, WarmState};
use serde_json::json;

fn module(name: &str) -> ModuleName {
    name.parse().expect("an invalid module name")
}

#[test]
fn a_request_has_the_variables_and_the_modules() {
    let env = [("EPOCHS".parse().expect("an invalid name"), "3".to_owned())].into();
    let request = WarmRequest { env, modules: Some(vec![module("numpy"), module("tensorflow.keras")]) };
    assert_golden(&request, &json!({"env": {"EPOCHS": "3"}, "modules": ["numpy", "tensorflow.keras"]}));
    assert_golden(&WarmRequest::default(), &json!({"env": {}}));
}

#[test]
fn a_state_says_why_an_interpreter_is_cold() {
    assert_golden(&WarmState::Importing, &json!({"state": "importing"}));
    assert_golden(&WarmState::Ready, &json!({"state": "ready"}));
    assert_golden(&WarmState::Cold { reason: "it ended".into() }, &json!({"state": "cold", "reason": "it ended"}));
}

#[test]
fn the_value_of_preload_is_the_word_never_or_a_list_of_modules() {
    assert_golden(&Preload::Never, &json!("never"));
    assert_golden(&Preload::Modules(vec![]), &json!({"modules": []}));
    assert_golden(&Preload::Modules(vec![module("tensorflow")]), &json!({"modules": ["tensorflow"]}));
    let policy: RunPolicy = read(&json!({"preload": "never"})).expect("an invalid policy");
    assert_eq!(policy, RunPolicy { preload: Some(Preload::Never), ..RunPolicy::default() });
}

#[test]
fn a_job_names_at_most_64_modules() {
    let job = |count: usize| {
        let run_policy =
            RunPolicy { preload: Some(Preload::Modules(vec![module("a"); count])), ..RunPolicy::default() };
        let request = JobRequest::new("digits".parse().expect("an invalid name"), Strategy::AllReduce);
        JobSpec::try_from(JobRequest { run_policy, ..request }).map_err(|error| (error.code(), error.to_string()))
    };
    assert!(job(64).is_ok());
    let sentence = "preload names 65 modules: name at most 64".to_owned();
    assert_eq!(job(65).map(drop), Err((ErrorCode::BadRunPolicy, sentence)));
}

#[test]
fn the_name_of_a_module_must_be_valid_in_python() {
    for name in ["numpy", "_a1", "tensorflow.keras.layers"] {
        assert_eq!(module(name).to_string(), name);
    }
    for text in ["", ".", "a.", ".a", "a..b", "a-b", "1a", "a b", "a/b", "é", &"a".repeat(129)] {
        let error = text.parse::<ModuleName>().expect_err("not refused").to_string();
        assert!(error.contains("is not the name of a Python module"), "{error}");
    }
}
