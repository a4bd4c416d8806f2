//! Options of pods: which values are accepted, and which are refused.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use proptest::prelude::*;
use protocol::pod::{
    Amount, LabelKey, LabelValue, MemorySize, ObjectName, PodOptions, PullPolicy, RunAs, Toleration, Volume,
    bytes_of_quantity,
};
use serde_json::json;

use crate::common::words;

#[track_caller]
fn assert_kept<T: FromStr<Err: Debug> + Display>(texts: &[&str]) {
    for text in texts {
        assert_eq!(text.parse::<T>().unwrap_or_else(|error| panic!("{error:?}")).to_string(), *text);
    }
}

#[track_caller]
fn assert_refused<T: FromStr>(texts: &[&str]) {
    for text in texts {
        assert!(text.parse::<T>().is_err(), "not refused: {text:?}");
    }
}

#[test]
fn an_amount_is_a_quantity_or_a_request_with_a_limit_that_is_not_smaller() {
    assert_kept::<Amount>(&["2", "500m", "1.5", "500m:2", "4Gi", "512Mi:1Gi", "1T:2P"]);
    assert_eq!("2:2".parse::<Amount>().expect("an invalid amount").to_string(), "2");
    assert_refused::<Amount>(&words("0 -1 1e3 two 1.2.3 .5 2:1 1Gi:1000M 1: :1 9999999999999999999 8Ei"));
    assert_refused::<Amount>(&["", "1 Gi"]);
}

#[test]
fn a_size_of_memory_is_at_least_a_mebibyte() {
    assert_kept::<MemorySize>(&["1Mi", "2Gi", "1.5Gi", "1048576", "64M"]);
    // In Kubernetes' notation, 64m is 64 thousandths of a byte.
    assert_refused::<MemorySize>(&["", "0", "2", "64m", "1023Ki", "-1Gi", "1Gi:2Gi", "2GB"]);
}

#[test]
fn run_as_accepts_the_word_image_or_numbers_that_are_not_root() {
    assert_kept::<RunAs>(&["image", "1000:100", "65532:0"]);
    assert_eq!("1000".parse::<RunAs>().expect("an invalid user").to_string(), "1000:1000");
    assert_refused::<RunAs>(&["", "root", "0", "0:1", "-1", "+1", "1:", ":1", "1:2:3", "4294967295", "1000:x"]);
}

#[test]
fn a_quantity_of_memory_is_converted_to_bytes() {
    for (quantity, expected) in [
        ("0", 0),
        ("5000", 5000),
        ("128974848000m", 128_974_848),
        ("1429365116108800m", 1_429_365_116_109),
        ("1m", 1),
        ("1k", 1000),
        ("500M", 500_000_000),
        ("1G", 1_000_000_000),
        ("1.5T", 1_500_000_000_000),
        ("1P", 1_000_000_000_000_000),
        ("1E", 1_000_000_000_000_000_000),
        ("1Ki", 1 << 10),
        ("768Mi", 768 << 20),
        ("1.5Gi", 1536 << 20),
        ("2Ti", 2 << 40),
        ("1Pi", 1 << 50),
        ("7Ei", 7 << 60),
        ("9223372036854775807", u64::MAX / 2),
    ] {
        assert_eq!(bytes_of_quantity(quantity), Some(expected), "{quantity}");
    }
    for other in ["", "Gi", "nonsense", "-1Gi", "1gi", "1.2.3", "9223372036854775808", "18446744073709551615Ti"] {
        assert_eq!(bytes_of_quantity(other), None, "{other}");
    }
}

#[test]
fn a_volume_is_a_claim_or_a_folder_of_the_node_or_an_empty_folder() {
    assert_kept::<Volume>(&words("pvc:data:/data pvc:data:/data:ro host:/srv/data:/data empty:/tmp/x empty:/x:ro"));
    assert_refused::<Volume>(&words("data:/data pvc:data pvc:Data:/data pvc:data:data pvc:data:/data:rw nfs:x:/y"));
    assert_refused::<Volume>(&["", "host:srv:/data", "host:/a/../etc:/data"]);
    for path in words("/ /muster /muster/x /a/../b //muster /./muster /a/") {
        assert_refused::<Volume>(&[&format!("empty:{path}")]);
    }
}

#[test]
fn tolerations_are_written_as_taints() {
    assert_kept::<Toleration>(&["spot", "spot=true", "spot:NoSchedule", "example.com/spot=true:NoExecute"]);
    assert_refused::<Toleration>(&["", "=x", "spot:Never", "spot=a b", "a/b/c", "spot:"]);
}

#[test]
fn names_and_labels_follow_the_rules_of_kubernetes() {
    assert_kept::<ObjectName>(&["a", "a-b.c9"]);
    assert_refused::<ObjectName>(&["", "A", "-a", "a-", "a..b", "a_b"]);
    assert_kept::<LabelKey>(&["disk", "example.com/Disk_1"]);
    assert_refused::<LabelKey>(&["", "/a", "Ex/a", "a/", "-a"]);
    assert_kept::<LabelValue>(&["", "ssd", "A_b.c"]);
    assert_refused::<LabelValue>(&["-", "a b", "é"]);
}

#[test]
fn pull_policies_are_read_in_any_letter_case() {
    assert_eq!("always".parse(), Ok(PullPolicy::Always));
    assert_eq!("IfNotPresent".parse(), Ok(PullPolicy::IfNotPresent));
    assert_refused::<PullPolicy>(&["", "sometimes"]);
}

#[test]
fn the_grace_period_is_at_least_1_second_and_30_seconds_by_default() {
    let options = |json: serde_json::Value| serde_json::from_value::<PodOptions>(json);
    assert_eq!(options(json!({})).expect("an empty object is refused").termination_grace_seconds(), 30);
    let said = options(json!({"termination_grace_seconds": 90, "allow_root": true})).expect("the options are refused");
    assert_eq!((said.termination_grace_seconds(), said.allow_root), (90, true));
    assert!(options(json!({"termination_grace_seconds": 0})).is_err(), "a grace of 0 s is not refused");
    assert_eq!(serde_json::to_value(PodOptions::default()).expect("not JSON"), json!({}));
}

#[test]
fn two_volumes_at_one_path_are_detected() {
    let mounted = |volumes: &[&str]| {
        let volumes = volumes.iter().map(|volume| volume.parse().expect("an invalid volume")).collect();
        let shm = Some("2Gi".parse().expect("an invalid size"));
        PodOptions { volumes, shm, ..PodOptions::default() }.path_mounted_twice().map(str::to_owned)
    };
    assert_eq!(mounted(&["empty:/a", "pvc:data:/a/b"]), None);
    assert_eq!(mounted(&["empty:/a", "empty:/b", "pvc:data:/b:ro"]), Some("/b".to_owned()));
    assert_eq!(mounted(&["empty:/a", "empty:/dev/shm"]), Some("/dev/shm".to_owned()));
}

#[test]
fn options_that_are_set_are_listed_by_flag_name() {
    assert_eq!(PodOptions::default().asked_for(), Vec::<&str>::new());
    let options = PodOptions {
        gpus: Some(1),
        termination_grace_seconds: std::num::NonZeroU32::new(9),
        volumes: vec!["empty:/x".parse().expect("an invalid volume")],
        ..PodOptions::default()
    };
    assert_eq!(options.asked_for(), ["gpus", "volume"]);
}

const QUANTITY: &str = "[1-9][0-9]{0,5}([.][0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?";
const SUBDOMAIN: &str = "[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?([.][a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?){0,2}";
const LABEL: &str = "[A-Za-z0-9]([A-Za-z0-9._-]{0,12}[A-Za-z0-9])?";
const FOLDER: &str = "(/[a-zA-Z0-9_ü][a-zA-Z0-9_. -]{0,6}){1,3}";

/// Texts that match a pattern.
fn of_form(pattern: &str) -> impl Strategy<Value = String> {
    proptest::string::string_regex(pattern).expect("an invalid pattern")
}

/// Parses a text. Asserts that the value's written form parses to the same value.
fn kept<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    let value: T = text.parse().ok()?;
    let written = value.to_string();
    assert_eq!(written.parse::<T>().as_ref().map_err(|error| format!("{error:?}")), Ok(&value), "{text:?}");
    Some(value)
}

proptest! {
    #[test]
    fn every_amount_reads_back(request in of_form(QUANTITY), limit in of_form(QUANTITY)) {
        prop_assert!(kept::<Amount>(&request).is_some(), "{}", request);
        let there = kept::<Amount>(&format!("{request}:{limit}"));
        let back = kept::<Amount>(&format!("{limit}:{request}"));
        prop_assert!(there.is_some() || back.is_some(), "both orders of the two amounts are refused");
    }

    #[test]
    fn every_volume_reads_back(
        source in of_form(&format!("(pvc:{SUBDOMAIN}|host:{FOLDER}|empty)")), path in of_form(FOLDER), ro in of_form("(:ro)?"),
    ) {
        let text = format!("{source}:{path}{ro}");
        let is_the_agents = path == "/muster" || path.starts_with("/muster/");
        let volume = kept::<Volume>(&text);
        prop_assert_eq!(volume.as_ref().map(ToString::to_string), (!is_the_agents).then_some(text));
    }

    #[test]
    fn every_toleration_and_label_reads_back(
        key in of_form(&format!("({SUBDOMAIN}/)?{LABEL}")), value in of_form(&format!("(=({LABEL})?)?")),
        effect in of_form("(:(NoSchedule|PreferNoSchedule|NoExecute))?"),
    ) {
        let text = format!("{key}{value}{effect}");
        prop_assert_eq!(kept::<Toleration>(&text).map(|taint| taint.to_string()), Some(text));
        prop_assert!(kept::<LabelKey>(&key).is_some());
    }

    #[test]
    fn any_text_is_refused_or_reads_back(
        text in any::<String>().boxed().prop_union("(pvc|host|empty)?[a-zA-Z0-9.:/=_~ -]{0,24}".boxed()),
    ) {
        kept::<Amount>(&text);
        kept::<Volume>(&text);
        kept::<Toleration>(&text);
        kept::<ObjectName>(&text);
        kept::<LabelKey>(&text);
        kept::<LabelValue>(&text);
    }
}
