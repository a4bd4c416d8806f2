//! Golden JSON of the agent's messages.

use std::collections::BTreeMap;

use crate::common::{assert_golden, assert_tolerates_new_fields, read};
use protocol::agent::{CodeStatus, ExitOutcome, ExitReport, LastWords, Membership, RunState, RunStatus};
use protocol::ids::{Generation, UnixMillis};
use protocol::progress::Progress;
use serde_json::{Value, json};

const STARTED: UnixMillis = UnixMillis(1_700_000_000_000);
const ENDED: UnixMillis = UnixMillis(1_700_000_042_000);

fn status(state: RunState) -> RunStatus {
    RunStatus { seq: 3, state, generation: Some(Generation { epoch: 2, sequence: 1 }), ..RunStatus::idle("6f1c") }
}

fn report(outcome: ExitOutcome) -> ExitReport {
    ExitReport { stderr_tail: "Killed\n".into(), ..ExitReport::new(outcome, ENDED) }
}

#[test]
fn an_idle_status_has_no_generation() {
    let idle = RunStatus { seq: 0, generation: None, ..status(RunState::Idle) };
    assert_golden(&idle, &json!({"seq": 0, "boot_id": "6f1c", "messages": 1, "state": "idle"}));
}

#[test]
fn a_configured_status_names_its_generation() {
    let golden = json!({"seq": 3, "boot_id": "6f1c", "messages": 1, "state": "configured", "generation": "2.1"});
    assert_golden(&status(RunState::Configured), &golden);
}

#[test]
fn a_status_names_the_seat_of_a_member() {
    let membership = Some(Membership { seat: 2, of: 4, start: 1, pushes: 2 });
    let seated = RunStatus { membership, ..status(RunState::Configured) };
    let golden = json!({
        "seq": 3, "boot_id": "6f1c", "messages": 1, "state": "configured", "generation": "2.1",
        "membership": {"seat": 2, "of": 4, "start": 1, "pushes": 2},
    });
    assert_golden(&seated, &golden);
}

#[test]
fn a_status_names_the_code_that_the_agent_has() {
    let [staged, running] = ["ab", "cd"].map(|digits| digits.repeat(32));
    let [newer, older] = [&staged, &running].map(|id| id.parse().ok());
    let code = CodeStatus { staged: newer, running: older };
    let golden = json!({
        "seq": 3, "boot_id": "6f1c", "messages": 1, "state": "configured", "generation": "2.1",
        "code": {"staged": staged, "running": running},
    });
    assert_golden(&RunStatus { code, ..status(RunState::Configured) }, &golden);
}

#[test]
fn a_status_shows_the_progress_of_a_script_that_uses_the_helper() {
    let values = BTreeMap::from([("loss".to_owned(), 0.5), ("nan".to_owned(), f64::NAN)]);
    let measured = Progress {
        step: Some(61),
        split: 1,
        steps: 59,
        samples: 1888,
        compute_us: 90_000,
        wall_us: 180_000,
        values: values.into(),
        saved: Some(50),
    };
    let golden = json!({
        "step": 61, "split": 1, "steps": 59, "samples": 1888, "compute_us": 90000, "wall_us": 180_000,
        "values": {"loss": 0.5}, "saved": 50,
    });
    for (helper, golden) in [(Progress::default(), json!({})), (measured, golden)] {
        let status = RunStatus { helper: Some(helper), ..status(RunState::Configured) };
        let golden = json!({
            "seq": 3, "boot_id": "6f1c", "messages": 1, "state": "configured", "generation": "2.1", "helper": golden,
        });
        assert_golden(&status, &golden);
    }
}

#[test]
fn a_running_or_stopping_status_has_a_pid_and_a_start_time() {
    for (state, name) in [(RunState::Running, "running"), (RunState::Stopping, "stopping")] {
        let active = RunStatus { pid: Some(417), started_at: Some(STARTED), ..status(state) };
        let golden = json!({
            "seq": 3, "boot_id": "6f1c", "messages": 1, "state": name, "generation": "2.1", "pid": 417, "started_at": 1_700_000_000_000_u64,
        });
        assert_golden(&active, &golden);
    }
}

#[test]
fn the_beginning_of_a_stop_is_no_news_but_the_exit_of_the_run_is_news() {
    let running = RunStatus { pid: Some(417), started_at: Some(STARTED), ..status(RunState::Running) };
    let stopping = RunStatus { state: RunState::Stopping, ..running.clone() };
    let ending = RunStatus { pid: None, ..stopping.clone() };
    let exited = RunStatus { state: RunState::Exited, exit: Some(report(ExitOutcome::Signal(9))), ..ending.clone() };
    let configured = RunStatus { started_at: None, ..status(RunState::Configured) };
    let all = [&configured, &running, &stopping, &ending, &exited];
    let news: Vec<bool> = all.windows(2).map(|pair| pair[1].is_news_after(pair[0])).collect();
    assert_eq!(news, [true, false, false, true]);
    assert!(stopping.is_news_after(&configured) && running.is_news_after(&stopping));
    assert!(RunStatus { seq: 4, ..stopping.clone() }.is_news_after(&running));
}

#[test]
fn an_exited_status_has_a_start_time_and_an_exit() {
    let exit = Some(report(ExitOutcome::Code(1)));
    let exited = RunStatus { started_at: Some(STARTED), exit, ..status(RunState::Exited) };
    let golden = json!({
        "seq": 3, "boot_id": "6f1c", "messages": 1, "state": "exited", "generation": "2.1", "started_at": 1_700_000_000_000_u64,
        "exit": {"code": 1, "stopped": false, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n"},
    });
    assert_golden(&exited, &golden);
    assert_tolerates_new_fields::<RunStatus>(&golden);
    assert_tolerates_new_fields::<ExitReport>(&golden["exit"]);
}

#[test]
fn a_running_status_may_have_no_generation() {
    // The prototype's master sends an environment without a generation.
    let running = RunStatus { generation: None, pid: Some(9), started_at: Some(STARTED), ..status(RunState::Running) };
    let golden = json!({"seq": 3, "boot_id": "6f1c", "messages": 1, "state": "running", "pid": 9, "started_at": 1_700_000_000_000_u64});
    assert_golden(&running, &golden);
}

#[test]
fn an_unknown_run_state_is_refused() {
    let error = read::<RunStatus>(&json!({"seq": 0, "boot_id": "6f1c", "messages": 1, "state": "dreaming"}))
        .expect_err("not refused");
    assert!(error.contains("unknown variant `dreaming`"), "{error}");
}

#[test]
fn an_exit_has_a_code_or_a_signal_or_the_reason_why_the_script_was_not_started() {
    let forms = [
        (ExitOutcome::Code(0), "code", json!(0)),
        (ExitOutcome::Code(75), "code", json!(75)),
        (ExitOutcome::Signal(9), "signal", json!(9)),
        (ExitOutcome::NotStarted("no such file: python".into()), "not_started", json!("no such file: python")),
    ];
    for (outcome, key, value) in forms {
        let mut golden = json!({"stopped": false, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n"});
        golden[key] = value;
        assert_golden(&report(outcome), &golden);
    }
}

#[test]
fn a_stopped_run_has_an_outcome_and_is_marked_as_stopped() {
    let stopped = ExitReport { stopped: true, ..report(ExitOutcome::Signal(15)) };
    let golden = json!({"signal": 15, "stopped": true, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n"});
    assert_golden(&stopped, &golden);
}

#[test]
fn a_run_that_is_ended_with_its_pod_is_marked_as_stopped_and_terminated() {
    let terminated = ExitReport { stopped: true, terminated: true, ..report(ExitOutcome::Code(0)) };
    let golden = json!({
        "code": 0, "stopped": true, "terminated": true, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n",
    });
    assert_golden(&terminated, &golden);
}

#[test]
fn last_words_name_the_generation_and_the_exit() {
    let exit = report(ExitOutcome::Code(3));
    let golden = json!({
        "generation": "2.1",
        "exit": {"code": 3, "stopped": false, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n"},
    });
    assert_golden(
        &LastWords { generation: Some(Generation { epoch: 2, sequence: 1 }), exit: exit.clone(), membership: None },
        &golden,
    );
    assert_tolerates_new_fields::<LastWords>(&golden);
    let unnamed = json!({"exit": golden["exit"]});
    assert_golden(&LastWords { generation: None, exit, membership: None }, &unnamed);
}

#[test]
fn an_exit_names_the_exception_that_ended_the_run() {
    let exit = ExitReport { exception: Some("ValueError: no".into()), ..report(ExitOutcome::Code(1)) };
    let golden = json!({
        "code": 1, "stopped": false, "ended_at": 1_700_000_042_000_u64, "exception": "ValueError: no",
        "stderr_tail": "Killed\n",
    });
    assert_golden(&exit, &golden);
}

#[test]
fn reading_an_exit_cuts_long_texts() {
    for character in ["x", "\u{1b}", "\"", "é", "\u{0}"] {
        let long = character.repeat(300_000);
        for end in ["code", "not_started"] {
            let mut sent = json!({"ended_at": 1, "exception": &long, "stderr_tail": format!("{long}end")});
            sent[end] = if end == "code" { json!(1) } else { json!(&long) };
            let exit: ExitReport = read(&sent).unwrap();
            let length = serde_json::to_string(&exit).unwrap().len();
            assert!(
                (13_000..14_000).contains(&length) || end == "code" && (9_000..10_000).contains(&length),
                "an exit with {end} has {length} bytes as JSON"
            );
            assert!(exit.stderr_tail.ends_with("end"), "the end of the stderr tail is cut off");
        }
    }
}

#[test]
fn an_exit_may_omit_fields_with_defaults() {
    let expected = ExitReport { stderr_tail: String::new(), ..report(ExitOutcome::Code(0)) };
    assert_eq!(read(&json!({"code": 0, "ended_at": ENDED.0})), Ok(expected));
}

#[test]
fn an_exit_with_no_outcome_or_several_is_refused() {
    let ambiguous: [Value; 4] = [
        json!({"ended_at": 1}),
        json!({"ended_at": 1, "code": 1, "signal": 9}),
        json!({"ended_at": 1, "signal": 9, "not_started": "x"}),
        json!({"ended_at": 1, "code": 1, "signal": 9, "not_started": "x"}),
    ];
    for exit in ambiguous {
        let error = read::<ExitReport>(&exit).expect_err("not refused");
        assert!(error.starts_with("an exit report needs exactly one of code, signal and not_started"), "{error}");
    }
}

#[test]
fn only_exit_code_0_is_a_success() {
    assert!(report(ExitOutcome::Code(0)).is_success());
    for outcome in [ExitOutcome::Code(1), ExitOutcome::Signal(15), ExitOutcome::NotStarted(String::new())] {
        assert!(!report(outcome.clone()).is_success(), "{outcome}");
    }
}

#[test]
fn an_outcome_reads_as_the_end_of_a_sentence() {
    let sentences = [
        (ExitOutcome::Code(3), "exited with code 3"),
        (ExitOutcome::Signal(9), "was killed by signal 9 (SIGKILL)"),
        (ExitOutcome::Signal(40), "was killed by signal 40"),
        (ExitOutcome::NotStarted("no python".into()), "was not started: no python"),
    ];
    for (outcome, sentence) in sentences {
        assert_eq!(outcome.to_string(), sentence);
    }
}

#[test]
fn out_of_memory_is_signal_9_with_the_limit() {
    let killed = |limit| report(ExitOutcome::OutOfMemory { limit });
    let golden = json!({
        "signal": 9, "out_of_memory": {"limit_bytes": 67_108_864}, "stopped": false,
        "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n",
    });
    assert_golden(&killed(Some(64 << 20)), &golden);
    let sentence = |limit| killed(limit).outcome.to_string();
    assert_eq!(sentence(Some(64 << 20)), "was killed because it needed more memory than its limit of 64 MiB");
    assert_eq!(sentence(Some(1000)), "was killed because it needed more memory than its limit of 1000 bytes");
    assert_eq!(sentence(None), "was killed because memory ran out");
    let other = json!({"signal": 15, "out_of_memory": {}, "ended_at": 0});
    assert!(read::<ExitReport>(&other).is_err(), "out of memory with signal 15 is not refused");
}
