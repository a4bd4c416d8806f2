//! Names and numbers: which texts parse. No text causes a panic.

use proptest::prelude::*;
use protocol::env::{self, ENTRY_LIMIT, EnvError, EnvName};
use protocol::ids::{Generation, JOB_NAME_MAX, JobName, PodName, ReplicaId, Role, SHORT_NAME_MAX};

use crate::common::words;

fn generation(epoch: u32, sequence: u32) -> Generation {
    Generation { epoch, sequence }
}

#[test]
fn a_job_name_is_a_dns_label_of_at_most_55_characters() {
    let longest = "x".repeat(JOB_NAME_MAX);
    for good in ["a", "0", "mnist", "a-b", "a--b", "2026-run-7", longest.as_str()] {
        assert_eq!(good.parse::<JobName>().map(|name| name.to_string()), Ok(good.to_owned()));
    }
    let too_long = "x".repeat(JOB_NAME_MAX + 1);
    let bad = ["", "-", "-a", "a-", "A", "a_b", "a.b", "a b", "a/b", "..", "ä", "a\n", "a\0", too_long.as_str()];
    for text in bad {
        assert!(text.parse::<JobName>().is_err(), "{text:?}");
    }
}

#[test]
fn the_error_for_a_bad_job_name_explains_the_rule() {
    let error = "My Job".parse::<JobName>().expect_err("not refused").to_string();
    let rule = "use 1 to 55 of a-z, 0-9 and '-', beginning and ending with a letter or digit";
    assert_eq!(error, format!("task name \"My Job\" is not a DNS label: {rule}"));
    let endless = "x".repeat(1_000_000).parse::<JobName>().expect_err("not refused").to_string();
    assert!(endless.len() < 300, "the error repeats a huge name");
}

#[test]
fn a_replica_id_is_role_and_index() {
    for (role, name) in Role::ALL.into_iter().zip(["chief", "worker", "ps", "evaluator"]) {
        assert_eq!(format!("{name}-12").parse(), Ok(ReplicaId { role, index: 12 }));
        assert_eq!(serde_json::to_value(role).expect("not JSON"), name);
    }
    assert_eq!("worker-4294967295".parse(), Ok(ReplicaId { role: Role::Worker, index: u32::MAX }));
    let bad = "worker worker- -1 worker-x worker-01 worker-+1 worker--1 worker-4294967296 Worker-1 master-0 worker-1-2";
    for text in words(bad).into_iter().chain(["", "worker-1 "]) {
        let error = text.parse::<ReplicaId>().expect_err(text).to_string();
        assert_eq!(error, format!("\"{text}\" is not a replica: write role-index, for example worker-2"));
    }
}

#[test]
fn the_name_of_a_pod_has_at_most_63_characters_if_the_job_has_a_short_name() {
    let job: JobName = "x".repeat(SHORT_NAME_MAX).parse().expect("the longest name is refused");
    let pod = PodName::new(&job, ReplicaId { role: Role::Evaluator, index: 99_999 });
    assert!(pod.as_str().len() <= 63, "{pod}");
}

#[test]
fn pods_have_different_names_even_if_a_job_is_named_like_a_pod_of_another_job() {
    let name = |job: &str, replica: &str| {
        PodName::new(&job.parse().expect("an invalid job name"), replica.parse().expect("an invalid replica"))
            .to_string()
    };
    assert_eq!(name("a", "worker-1"), "a-worker-1");
    assert_ne!(name("a-worker-1", "ps-0"), name("a", "worker-1"));
}

#[test]
fn a_generation_is_epoch_dot_sequence() {
    assert_eq!("1.1".parse(), Ok(generation(1, 1)));
    assert_eq!("12.4294967295".parse(), Ok(generation(12, u32::MAX)));
    let bad = ["", ".", "1", "1.", ".1", "1.1.1", "1,1", "a.b", "-1.1", "+1.1", "1.+1", "01.1", "1.1 ", "1.4294967296"];
    for text in bad {
        let error = text.parse::<Generation>().expect_err(text).to_string();
        assert_eq!(error, format!("generation \"{text}\" is not of the form E.S, for example 1.1"));
    }
}

#[test]
fn generations_are_ordered_by_epoch_and_then_by_sequence() {
    let in_order = [generation(1, 1), generation(1, 2), generation(1, 10), generation(2, 1), generation(10, 1)];
    assert!(in_order.is_sorted_by(|older, newer| older < newer));
}

#[test]
fn roles_are_in_the_order_of_ranks_and_the_first_two_roles_train() {
    assert!(Role::ALL.is_sorted());
    assert_eq!(Role::ALL.map(Role::trains), [true, true, false, false]);
    let ids = ["chief-0", "worker-2", "worker-10", "ps-0", "evaluator-0"].map(|id| id.parse::<ReplicaId>());
    assert!(ids.map(|id| id.expect("an invalid replica")).is_sorted());
}

#[test]
fn a_variable_name_follows_the_rules_of_a_shell() {
    let longest = "A".repeat(env::NAME_MAX);
    for good in ["A", "_", "a1", "TF_CONFIG", "http_proxy", "_0", longest.as_str()] {
        assert_eq!(good.parse::<EnvName>().map(|name| name.to_string()), Ok(good.to_owned()));
    }
    let too_long = "A".repeat(env::NAME_MAX + 1);
    for bad in ["", "1A", "A=B", "A B", "A-B", "A.B", "Ä", "A\0", "A\n", too_long.as_str()] {
        let error = bad.parse::<EnvName>().expect_err(bad);
        assert_eq!(error, EnvError::Name(bad.chars().take(env::NAME_MAX).collect()));
    }
    let error = "1A".parse::<EnvName>().expect_err("not refused").to_string();
    let rule = "use at most 128 letters, digits and '_', and no digit at the beginning";
    assert_eq!(error, format!("environment name \"1A\" is not allowed: {rule}"));
}

#[test]
fn variables_that_muster_sets_are_reserved() {
    let reserved =
        ["TF_CONFIG", "NUM_WORKERS", "WORKER_NUMBER", "TOT_WORKERS", "RANK", "WORLD_SIZE", "MUSTER_ANYTHING"];
    for name in reserved {
        assert!(name.parse::<EnvName>().expect(name).is_reserved(), "{name}");
    }
    for name in ["PYTHONUNBUFFERED", "GRPC_FAIL_FAST", "RANKS", "muster_job", "PATH"] {
        assert!(!name.parse::<EnvName>().expect(name).is_reserved(), "{name}");
    }
}

#[test]
fn variables_that_make_a_program_run_other_code_are_recognized() {
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_", "PYTHONSTARTUP", "BASH_ENV", "ENV", "NODE_OPTIONS"] {
        assert!(name.parse::<EnvName>().expect(name).runs_other_code(), "{name}");
    }
    for name in ["PYTHONPATH", "PATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS", "LDFLAGS", "ld_preload", "ENVIRONMENT"] {
        assert!(!name.parse::<EnvName>().expect(name).runs_other_code(), "{name}");
    }
}

#[test]
fn a_value_is_refused_if_it_is_too_long_for_linux_or_has_a_nul_byte() {
    let name: EnvName = "AB".parse().expect("an invalid name");
    let longest = "x".repeat(ENTRY_LIMIT - "AB=".len() - 1);
    assert_eq!(name.check_value(&longest), Ok(()));
    assert_eq!(name.check_value(""), Ok(()));
    let error = name.check_value(&format!("{longest}x")).expect_err("a value that is one byte too long is not refused");
    assert_eq!(error.to_string(), "AB would be 131073 bytes long; Linux passes at most 131072 to a program");
    let error = name.check_value("a\0b").expect_err("a value with a NUL byte is not refused");
    assert_eq!(error.to_string(), "the value of AB contains a NUL byte");
}

proptest! {
    #[test]
    fn every_dns_label_is_a_job_name_and_reads_back(text in "[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?") {
        let name: JobName = text.parse().expect("the DNS label is refused");
        prop_assert_eq!(name.as_str(), &text);
        prop_assert_eq!(&serde_json::to_value(&name).expect("not JSON"), &text);
    }

    #[test]
    fn every_replica_id_reads_back(role in prop::sample::select(Role::ALL.to_vec()), index: u32) {
        let id = ReplicaId { role, index };
        prop_assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn every_generation_reads_back_and_is_ordered_as_its_numbers(a: (u32, u32), b: (u32, u32)) {
        let (older, newer) = (generation(a.0, a.1), generation(b.0, b.1));
        prop_assert_eq!(older.to_string().parse(), Ok(older));
        prop_assert_eq!(older.cmp(&newer), a.cmp(&b));
    }

    #[test]
    fn every_shell_name_is_a_variable_and_reads_back(text in "[A-Za-z_][A-Za-z0-9_]{0,127}") {
        let name: EnvName = text.parse().expect("an invalid name");
        prop_assert_eq!(name.as_str(), &text);
    }

    /// A text that parses is written back unchanged, so a value has only one spelling. No text causes a panic.
    #[test]
    fn parsed_text_is_unchanged(text in any::<String>().boxed().prop_union("[a-z0-9.+_-]{0,12}".boxed())) {
        for kept in [
            text.parse::<JobName>().map(|name| name.to_string()).ok(),
            text.parse::<ReplicaId>().map(|id| id.to_string()).ok(),
            text.parse::<Generation>().map(|generation| generation.to_string()).ok(),
            text.parse::<EnvName>().map(|name| name.to_string()).ok(),
        ].into_iter().flatten() {
            prop_assert_eq!(&kept, &text);
        }
    }
}
