//! The body of a post: the status of a trainer, in the form of Kubeflow's Trainer (its proposal 2779).

use protocol::progress::Progress;
use serde::Deserialize;

/// The metric with the number of the step.
const STEP: &str = "current_step";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    trainer_status: TrainerStatus,
}

#[derive(Debug, Deserialize)]
struct TrainerStatus {
    metrics: Option<Vec<PostedMetric>>,
}

#[derive(Debug, Deserialize)]
struct PostedMetric {
    name: String,
    /// A number as text. Other texts are left out.
    value: String,
}

/// The progress after this post. Transformers' last post has no step, so the step of the posts before it stays.
pub(crate) fn progress_after(before: Option<&Progress>, post: &[u8]) -> serde_json::Result<Progress> {
    let Body { trainer_status: TrainerStatus { metrics } } = serde_json::from_slice(post)?;
    let (steps, others): (Vec<_>, Vec<_>) =
        metrics.unwrap_or_default().into_iter().partition(|metric| metric.name == STEP);
    let step = steps.iter().find_map(|step| step.value.parse().ok());
    let numbers = others.into_iter().filter_map(|PostedMetric { name, value }| Some((name, value.parse().ok()?)));
    let step = step.or(before.and_then(|before| before.step));
    Ok(Progress { step, values: numbers.collect(), ..Progress::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(before: Option<u64>, metrics: &[(&str, &str)]) -> Progress {
        let metrics: Vec<_> =
            metrics.iter().map(|(name, value)| serde_json::json!({"name": name, "value": value})).collect();
        let body = serde_json::json!({"trainerStatus": {"lastUpdatedTime": "now", "metrics": metrics}}).to_string();
        let before = before.map(|step| Progress { step: Some(step), ..Progress::default() });
        progress_after(before.as_ref(), body.as_bytes()).unwrap()
    }

    #[test]
    fn the_step_is_a_metric_and_stays_if_a_later_post_has_none() {
        for (before, posted, step) in [
            (None, "4", Some(4)),
            (Some(9), "4", Some(4)),
            (Some(9), "-1", Some(9)),
            (Some(9), "4.5", Some(9)),
            (None, "", None),
        ] {
            let progress = after(before, &[("current_step", posted), ("loss", "0.5")]);
            assert_eq!(progress.step, step, "{posted} after {before:?}");
            assert_eq!(progress.values.iter().collect::<Vec<_>>(), [("loss", 0.5)]);
        }
        assert_eq!(after(Some(9), &[("loss", "1")]).step, Some(9));
    }

    #[test]
    fn the_first_eight_finite_numbers_are_values() {
        let bad = ["nan", "inf", "-Infinity", "1e999", "True", "", "0x10", "1,5"];
        let bad = bad.map(|value| ("a", value));
        let names = ["z", "y", "x", "w", "v", "u", "t", "s"];
        let posted = [&bad[..], &names.map(|name| (name, "-2.5e-3")), &[("b", "1")]].concat();
        let progress = after(None, &posted);
        let values: Vec<_> = progress.values.iter().collect();
        assert_eq!(values, ["s", "t", "u", "v", "w", "x", "y", "z"].map(|name| (name, -0.0025)));
    }

    #[test]
    fn other_fields_do_not_matter_and_the_form_of_these_does() {
        let read = |body: &str| progress_after(None, body.as_bytes());
        for empty in [
            r#"{"trainerStatus": {}}"#,
            r#"{"trainerStatus": {"metrics": null, "progressPercentage": 3, "later": []}, "later": 1}"#,
        ] {
            assert_eq!(read(empty).unwrap(), Progress::default());
        }
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"trainerStatus": 1}"#,
            r#"{"trainerStatus": {"metrics": [{"name": "loss"}]}}"#,
            r#"{"trainerStatus": {"metrics": [{"name": "loss", "value": 1}]}}"#,
            "{\"trainerStatus\": {\"metrics\": [{\"name\": \"\u{0}\"}]}}",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
