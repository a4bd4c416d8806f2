//! How a job differs from an earlier run of the same source.

use std::collections::{BTreeMap, BTreeSet};

use protocol::job::JobSpec;
use protocol::run_policy::NO_RESTART_LIMIT;
use serde_json::Value;

/// The differences, such as `args: --epochs 3 → --epochs 9`. Values of variables are left out, because they may be
/// secrets.
pub(crate) fn differences(before: &JobSpec, after: &JobSpec) -> Vec<String> {
    let (before, after) = (settings(before), settings(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    changed.map(|name| sentence(name, before.get(name), after.get(name))).collect()
}

fn sentence(name: &str, before: Option<&String>, after: Option<&String>) -> String {
    match (name.strip_prefix("env."), before, after) {
        (_, None, None) => String::new(),
        (Some(variable), None, Some(_)) => format!("variable {variable} is new"),
        (Some(variable), Some(_), None) => format!("variable {variable} is gone"),
        (Some(variable), Some(_), Some(_)) => format!("variable {variable} has another value"),
        (None, Some(_), Some(_)) if name == "code" => "code: other files".to_owned(),
        (None, before, after) => {
            let shown = |value: Option<&String>| value.map_or("none", |text| text).to_owned();
            format!("{name}: {} → {}", shown(before), shown(after))
        }
    }
}

/// The settings by their names. The name of a setting in a group begins with the group's name, such as `env.BATCH` for
/// a variable. The options of pods and the rules for restarts have plain names.
fn settings(spec: &JobSpec) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut json = serde_json::to_value(spec).expect("specs always serialize");
    // The JSON of a spec leaves out a policy that has only defaults.
    json["run_policy"] = serde_json::to_value(&spec.run_policy).expect("policies always serialize");
    for (name, value) in json.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("name", _) => {}
            ("pod" | "run_policy" | "about" | "batching", Value::Object(fields)) => {
                settings.extend(fields.iter().map(|(name, value)| (name.clone(), text(value))));
            }
            (_, Value::Object(fields)) => {
                settings.extend(fields.iter().map(|(field, value)| (format!("{name}.{field}"), text(value))));
            }
            (_, value) => drop(settings.insert(name.clone(), text(value))),
        }
    }
    if spec.run_policy.max_restarts == NO_RESTART_LIMIT {
        settings.insert("max_restarts".to_owned(), "no limit".to_owned());
    }
    settings
}

fn text(value: &Value) -> String {
    let words = value.as_array().and_then(|words| words.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    match (value.as_str(), words) {
        (Some(text), _) => text.to_owned(),
        (None, Some(words)) => words.join(" "),
        (None, None) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::narrate::tests::pending;

    fn spec(change: &Value) -> JobSpec {
        let mut spec = serde_json::to_value(pending(2).spec).unwrap();
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn each_setting_that_differs_is_named_once_and_values_of_variables_are_not_shown() {
        let before = spec(&json!({
            "args": ["--epochs", "3"], "env": {"KEY": "secret-1", "OLD": "secret-2"}, "code": "a".repeat(64),
            "about": {"source": "/home/me/train.py", "commit": "4e37ab42d1c2"}, "pod": {"memory": "1Gi"},
        }));
        let after = spec(&json!({
            "name": "other", "args": ["--epochs", "9"], "env": {"KEY": "secret-3", "NEW": "secret-4"},
            "code": "b".repeat(64), "about": {"source": "/home/me/train.py", "commit": "4e37ab42d1c2-dirty"},
            "pod": {"memory": "1Gi", "cpu": "2"}, "run_policy": {"max_restarts": 7},
            "metrics": {"loss": "loss: (.*)"},
        }));
        let expected = [
            "args: --epochs 3 → --epochs 9",
            "code: other files",
            "commit: 4e37ab42d1c2 → 4e37ab42d1c2-dirty",
            "cpu: none → 2",
            "variable KEY has another value",
            "variable NEW is new",
            "variable OLD is gone",
            "max_restarts: 3 → 7",
            "metrics.loss: none → loss: (.*)",
        ];
        assert_eq!(differences(&before, &after), expected);
        assert_eq!(differences(&before, &before), Vec::<String>::new());
        let mut without_limit = before.clone();
        without_limit.run_policy.max_restarts = NO_RESTART_LIMIT;
        assert_eq!(differences(&before, &without_limit), ["max_restarts: 3 → no limit"]);
    }
}
