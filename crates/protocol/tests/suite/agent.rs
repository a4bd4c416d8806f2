//! Golden JSON of the agent's messages.

use std::collections::BTreeMap;

use crate::common::{assert_golden, assert_tolerates_new_fields, read, with};
use protocol::agent::{
    CodeStatus, ExitOutcome, ExitReport, LastWords, LogBase, Membership, ProcessStatus, RunState, RunStatus,
};
use protocol::ids::{Generation, UnixMillis};
use protocol::processes::EndedProcess;
use protocol::progress::Progress;
use protocol::usage::Usage;
use serde_json::{Value, json};

const STARTED: UnixMillis = UnixMillis(1_700_000_000_000);
const ENDED: UnixMillis = UnixMillis(1_700_000_042_000);

fn status(state: RunState) -> RunStatus {
    RunStatus { seq: 3, state, generation: Some(Generation { epoch: 2, sequence: 1 }), ..RunStatus::idle("6f1c") }
}

fn report(outcome: ExitOutcome) -> ExitReport {
    ExitReport { stderr_tail: "Killed\n".into(), ..ExitReport::new(outcome, ENDED) }
}

fn stepped(step: u64) -> Option<Progress> {
    Some(Progress { step: Some(step), ..Progress::default() })
}

#[test]
fn a_posted_step_is_shown_if_the_helper_has_reported_none() {
    let begun = Some(Progress::default());
    for (helper, posted, shown) in [
        (None, None, None),
        (begun.clone(), begun.clone(), None),
        (None, stepped(4), Some(4)),
        (begun, stepped(4), Some(4)),
        (stepped(7), None, Some(7)),
        (stepped(7), stepped(4), Some(7)),
    ] {
        let status = RunStatus { helper, posted, ..status(RunState::Running) };
        assert_eq!(status.reported().and_then(|progress| progress.step), shown, "{status:?}");
    }
}

#[test]
fn a_status_says_where_the_agents_output_begins() {
    for (log_base, sent) in [(LogBase::Unknown, json!("unknown")), (LogBase::At(7), json!({"at": 7}))] {
        let status = RunStatus { log_base: Some(log_base), ..RunStatus::idle("6f1c") };
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["log_base"], sent);
        assert_eq!(serde_json::from_value::<RunStatus>(json).unwrap(), status);
        assert!(!status.is_news_after(&RunStatus::idle("6f1c")));
    }
}

#[test]
fn a_status_has_only_the_fields_that_have_a_value() {
    let [staged, running] = ["ab", "cd"].map(|digits| digits.repeat(32));
    let [newer, older] = [&staged, &running].map(|id| id.parse().ok());
    let configured = || status(RunState::Configured);
    let active = |state| RunStatus { pid: Some(417), started_at: Some(STARTED), ..status(state) };
    let exit = Some(report(ExitOutcome::Code(1)));
    for (status, fields) in [
        (RunStatus { generation: None, ..status(RunState::Idle) }, json!({"state": "idle"})),
        (configured(), json!({"state": "configured", "generation": "2.1"})),
        (
            RunStatus { membership: Some(Membership { seat: 2, of: 4, start: 1, pushes: 2 }), ..configured() },
            json!({
                "state": "configured", "generation": "2.1",
                "membership": {"seat": 2, "of": 4, "start": 1, "pushes": 2},
            }),
        ),
        (
            RunStatus { code: CodeStatus { staged: newer, running: older }, ..configured() },
            json!({"state": "configured", "generation": "2.1", "code": {"staged": staged, "running": running}}),
        ),
        (
            RunStatus { helper: Some(Progress::default()), posted: stepped(4), ..configured() },
            json!({"state": "configured", "generation": "2.1", "helper": {}, "posted": {"step": 4}}),
        ),
        (
            RunStatus {
                usage: Some(Usage { cpu_us: 7, rss_bytes: 4096, memory_limit: Some(8192) }),
                ..active(RunState::Running)
            },
            json!({
                "state": "running", "generation": "2.1", "pid": 417, "started_at": STARTED,
                "usage": {"cpu_us": 7, "rss_bytes": 4096, "memory_limit": 8192},
            }),
        ),
        (
            active(RunState::Running),
            json!({"state": "running", "generation": "2.1", "pid": 417, "started_at": STARTED}),
        ),
        (
            active(RunState::Stopping),
            json!({"state": "stopping", "generation": "2.1", "pid": 417, "started_at": STARTED}),
        ),
        // The prototype's master sends an environment without a generation.
        (
            RunStatus { generation: None, ..active(RunState::Running) },
            json!({"state": "running", "pid": 417, "started_at": STARTED}),
        ),
        (
            RunStatus { started_at: Some(STARTED), exit, ..status(RunState::Exited) },
            json!({
                "state": "exited", "generation": "2.1", "started_at": 1_700_000_000_000_u64,
                "exit": {"code": 1, "stopped": false, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n"},
            }),
        ),
    ] {
        let golden = with(&json!({"seq": 3, "boot_id": "6f1c", "messages": 2, "newest_messages": 3}), &fields);
        assert_golden(&status, &golden);
        assert_tolerates_new_fields::<RunStatus>(&golden);
    }
}

#[test]
fn the_progress_of_a_script_that_uses_the_helper_has_only_finite_values() {
    let values = BTreeMap::from([("loss".to_owned(), 0.5), ("nan".to_owned(), f64::NAN)]);
    let measured = Progress {
        step: Some(61),
        split: 1,
        batch: 32,
        noticed: 2,
        steps: 59,
        samples: 1888,
        compute_us: 90_000,
        wall_us: 180_000,
        values: values.into(),
        saved: Some(50),
    };
    let golden = json!({
        "step": 61, "split": 1, "batch": 32, "noticed": 2, "steps": 59, "samples": 1888, "compute_us": 90000, "wall_us": 180_000,
        "values": {"loss": 0.5}, "saved": 50,
    });
    for (helper, golden) in [(Progress::default(), json!({})), (measured, golden)] {
        assert_golden(&helper, &golden);
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
    let usage = Some(Usage { cpu_us: 1, rss_bytes: 2, memory_limit: None });
    assert!(!RunStatus { usage, ..running.clone() }.is_news_after(&running));
    assert!(!RunStatus { posted: stepped(4), ..running.clone() }.is_news_after(&running));
    assert!(RunStatus { seq: 4, ..stopping.clone() }.is_news_after(&running));
}

#[test]
fn an_unknown_run_state_is_refused() {
    let error = read::<RunStatus>(&json!({"seq": 0, "boot_id": "6f1c", "messages": 1, "state": "dreaming"}))
        .expect_err("not refused");
    assert!(error.contains("unknown variant `dreaming`"), "{error}");
}

#[test]
fn an_exit_has_a_code_or_a_signal_or_the_reason_why_the_script_was_not_started() {
    let reason = || ExitOutcome::NotStarted("no such file: python".into());
    let of_code = || report(ExitOutcome::Code(1));
    for (exit, fields) in [
        (report(ExitOutcome::Code(0)), json!({"code": 0})),
        (report(ExitOutcome::Code(75)), json!({"code": 75})),
        (report(ExitOutcome::Signal(9)), json!({"signal": 9})),
        (report(reason()), json!({"not_started": "no such file: python"})),
        (
            report(ExitOutcome::OutOfMemory { limit: Some(64 << 20) }),
            json!({"signal": 9, "out_of_memory": {"limit_bytes": 67_108_864}}),
        ),
        (ExitReport { stopped: true, ..report(ExitOutcome::Signal(15)) }, json!({"signal": 15, "stopped": true})),
        // The run is ended with its pod.
        (
            ExitReport { stopped: true, terminated: true, ..of_code() },
            json!({"code": 1, "stopped": true, "terminated": true}),
        ),
        (
            ExitReport { exception: Some("ValueError: no".into()), ..of_code() },
            json!({"code": 1, "exception": "ValueError: no"}),
        ),
    ] {
        let common = json!({"stopped": false, "ended_at": 1_700_000_042_000_u64, "stderr_tail": "Killed\n"});
        let golden = with(&common, &fields);
        assert_golden(&exit, &golden);
        assert_tolerates_new_fields::<ExitReport>(&golden);
    }
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
fn out_of_memory_is_described_with_the_limit_and_has_no_other_signal_than_9() {
    let sentence = |limit| ExitOutcome::OutOfMemory { limit }.to_string();
    assert_eq!(sentence(Some(64 << 20)), "was killed because it needed more memory than its limit of 64 MiB");
    assert_eq!(sentence(Some(1000)), "was killed because it needed more memory than its limit of 1000 bytes");
    assert_eq!(sentence(None), "was killed because memory ran out");
    let other = json!({"signal": 15, "out_of_memory": {}, "ended_at": 0});
    assert!(read::<ExitReport>(&other).is_err(), "out of memory with signal 15 is not refused");
}

#[test]
fn an_agent_is_fit_for_several_processes_only_if_it_knows_their_messages() {
    let status = |messages, newest_messages| RunStatus { messages, newest_messages, ..RunStatus::default() };
    for (status, one, several) in [
        (RunStatus::idle("b"), true, true),
        (status(2, 0), true, false),
        (status(3, 3), true, true),
        (status(1, 0), false, false),
        (status(4, 4), false, false),
    ] {
        assert_eq!((status.is_fit_for(1), status.is_fit_for(8)), (one, several), "{status:?}");
    }
}

#[test]
fn a_report_of_several_processes_names_one_and_their_ends_are_no_news_before_the_run_ends() {
    let process = Some(EndedProcess { index: 3, rank: Some(11) });
    let report = ExitReport { process, ..ExitReport::new(ExitOutcome::Code(1), STARTED) };
    let golden = json!({
        "code": 1, "process": {"index": 3, "rank": 11}, "stopped": false, "ended_at": STARTED, "stderr_tail": "",
    });
    assert_golden(&report, &golden);
    assert_eq!(report.how(), "/3 (rank 11) exited with code 1");
    let of = |pids: [Option<u32>; 2]| RunStatus {
        state: RunState::Running,
        pid: pids.into_iter().flatten().next(),
        processes: pids.map(|pid| ProcessStatus { pid, ..ProcessStatus::default() }).to_vec(),
        ..RunStatus::idle("b")
    };
    assert!(!of([None, Some(8)]).is_news_after(&of([Some(7), Some(8)])));
    assert_eq!(of([None, Some(8)]).pids(), [(1, 8)]);
}
