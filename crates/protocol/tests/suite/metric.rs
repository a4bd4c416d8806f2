//! Numbers in the output of a script.

use std::collections::BTreeMap;

use protocol::job::{JobRequest, JobSpec, SpecError, Strategy};
use protocol::metric::{BadPattern, Pattern};

#[test]
fn the_first_finite_number_of_a_line_counts() {
    let loss: Pattern = r"loss: ([-+0-9.e]+|nan|inf)".parse().expect("a pattern");
    for (line, number) in [
        ("Epoch 3 - loss: 0.3125 - accuracy: 0.9", Some(0.3125)),
        ("loss: 1e-3, val_loss: 7", Some(0.001)),
        ("loss: nan", None),
        ("loss: 1e999", None),
        ("loss: 1.2.3", None),
        ("no number", None),
    ] {
        assert_eq!(loss.number_in(line), number, "{line}");
    }
}

#[test]
fn a_pattern_has_one_group_and_is_short() {
    let bad = |text: &str| text.parse::<Pattern>().expect_err("accepted");
    assert_eq!(bad("loss"), BadPattern::Groups(0));
    assert_eq!(bad("(a)(b)"), BadPattern::Groups(2));
    assert_eq!(bad(&"x".repeat(257)), BadPattern::Long(257));
    assert!(matches!(bad("("), BadPattern::Syntax(_)));
    assert!(matches!(bad("(?:(?:.{99}){99}){9}([0-9])"), BadPattern::Syntax(_)), "a huge pattern is accepted");
    let kept: Pattern = serde_json::from_str(r#""(?:a|b)([0-9]+)""#).expect("a pattern");
    assert_eq!(serde_json::to_string(&kept).expect("a pattern"), r#""(?:a|b)([0-9]+)""#);
}

#[test]
fn a_job_has_at_most_eight_metrics_with_short_names() {
    let with = |names: &[String]| {
        let pattern: Pattern = "loss: ([0-9.]+)".parse().expect("a pattern");
        let metrics: BTreeMap<String, Pattern> = names.iter().map(|name| (name.clone(), pattern.clone())).collect();
        let request = JobRequest::new("digits".parse().expect("a name"), Strategy::AllReduce);
        JobSpec::try_from(JobRequest { metrics, ..request })
    };
    let names = |count: usize| (0..count).map(|number| format!("loss {number}")).collect::<Vec<_>>();
    let spec = with(&names(8)).expect("refused");
    let record = serde_json::to_value(&spec).expect("not JSON");
    assert_eq!(serde_json::from_value::<JobSpec>(record).expect("not a spec"), spec);
    assert_eq!(with(&names(9)), Err(SpecError::TooManyMetrics(9)));
    for name in ["", "a\nb", &"n".repeat(65)] {
        assert_eq!(with(&[name.to_owned()]), Err(SpecError::MetricName(name.chars().take(64).collect())));
    }
}
