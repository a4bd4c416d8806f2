//! Golden JSON of the series of a job.

use crate::common::{assert_golden, assert_tolerates_new_fields, read};
use protocol::ids::UnixMillis;
use protocol::progress::{JobSeries, SeriesPoint};
use protocol::usage::ReplicaUsage;
use serde_json::json;

#[test]
fn the_golden_json_of_a_series() {
    let point = json!({
        "at": 5, "generation": "1.2", "progress": {"step": 61}, "cpu_percent": 180, "rss_bytes": 4096,
    });
    let bare = json!({"at": 6, "generation": "1.3"});
    let usage = json!({"replica": "worker-0", "at": 6, "generation": "1.3", "rss_bytes": 4096, "memory_limit": 8192});
    let json = json!({
        "replicas": [{"replica": "worker-0", "points": [point, bare]}], "until": 7, "usage": [usage],
    });
    let series: JobSeries = read(&json).expect("not a series");
    assert_eq!(series.until, Some(UnixMillis(7)));
    let [full, bare] = &series.replicas[0].points[..] else { panic!("not two points: {series:?}") };
    assert_eq!((full.cpu_percent, full.rss_bytes), (Some(180), Some(4096)));
    assert_eq!(full.progress.as_ref().and_then(|progress| progress.step), Some(61));
    assert_eq!(*bare, SeriesPoint { progress: None, cpu_percent: None, rss_bytes: None, ..bare.clone() });
    assert_golden(&series, &json);
    assert_golden(&JobSeries { replicas: vec![], until: None, usage: vec![] }, &json!({"replicas": []}));
    assert_tolerates_new_fields::<JobSeries>(&json);
    assert_tolerates_new_fields::<ReplicaUsage>(&json["usage"][0]);
}
