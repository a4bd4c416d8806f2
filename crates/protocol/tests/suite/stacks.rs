//! Tests of `protocol::stacks`: the messages, the reading of dumps, the groups and the sentence.

use proptest::collection::vec;
use proptest::prelude::*;
use protocol::ids::ReplicaId;
use protocol::processes::ProcessName;
use protocol::stacks::{
    Answer, Dump, Frame, JobStacks, ProcessStacks, ReplicaStacks, SENTENCE_JSON_BYTES, Stacks, grouped, main_thread,
    place_in, sentence, threads,
};
use protocol::text::json_length;
use serde_json::json;

use crate::common::{assert_golden, assert_tolerates_new_fields};

fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().expect("a replica")
}

fn process(dump: Dump) -> ProcessStacks {
    ProcessStacks {
        pid: 417,
        process: None,
        program: "python3".into(),
        state: 'S',
        cpu_percent: 0,
        waits_in: None,
        dump,
    }
}

/// A replica with these frames in its main thread, innermost first: file, line, function, source.
fn replica(index: u32, frames: &[(&str, u32, &str, &str)]) -> ReplicaStacks {
    let line = |(file, line, function, source): &(&str, u32, &str, &str)| {
        let source = if source.is_empty() { String::new() } else { format!("    {source}\n") };
        format!("  File \"{file}\", line {line} in {function}\n{source}")
    };
    let frames: String = frames.iter().map(line).collect();
    let text = format!("Current thread 0x00007f0000000000 (most recent call first):\n{frames}");
    ReplicaStacks { replica: worker(index), answer: Answer::Processes(vec![process(Dump::Text(text))]) }
}

fn without(index: u32, reason: &str) -> ReplicaStacks {
    ReplicaStacks { replica: worker(index), answer: Answer::WhyNot(reason.to_owned()) }
}

const TORCH: &str = "/usr/lib/python3.11/site-packages/torch/distributed";

fn in_all_reduce(index: u32) -> ReplicaStacks {
    let (inner, wrapper) = (format!("{TORCH}/distributed_c10d.py"), format!("{TORCH}/c10d_logger.py"));
    replica(
        index,
        &[
            (&inner, 2501, "all_reduce", ""),
            (&wrapper, 80 + index, "wrapper", ""),
            ("/job/train.py", 88, "step", "dist.all_reduce(gradient)"),
            ("/job/train.py", 120, "<module>", "step()"),
        ],
    )
}

fn in_open(index: u32) -> ReplicaStacks {
    replica(
        index,
        &[
            ("/job/data.py", 31, "load", "with open(path) as file:"),
            ("/job/train.py", 85, "step", "batch = load()"),
            ("/job/train.py", 120, "<module>", "step()"),
        ],
    )
}

#[test]
fn the_answers_of_agent_and_master_have_only_the_fields_that_have_a_value() {
    let waiting = ProcessStacks { waits_in: Some("ep_poll".into()), ..process(Dump::WhyNot("no handler".into())) };
    let main = json!({"pid": 417, "program": "python3", "state": "S", "cpu_percent": 0, "dump": {"text": "x"}});
    let child = json!({
        "pid": 417, "program": "python3", "state": "S", "cpu_percent": 0, "waits_in": "ep_poll",
        "dump": {"why_not": "no handler"},
    });
    let processes = vec![process(Dump::Text("x".into())), waiting];
    let golden = json!({"processes": [main, child]});
    assert_golden(&Stacks { processes: processes.clone() }, &golden);
    assert_tolerates_new_fields::<Stacks>(&golden);
    let replicas = vec![
        ReplicaStacks { replica: worker(0), answer: Answer::Processes(processes) },
        ReplicaStacks { replica: worker(1), answer: Answer::WhyNot("lost".into()) },
    ];
    let golden = json!({
        "summary": "two", "replicas": [
            {"replica": "worker-0", "answer": {"processes": [main, child]}},
            {"replica": "worker-1", "answer": {"why_not": "lost"}},
        ],
    });
    assert_golden(&JobStacks { summary: "two".into(), replicas }, &golden);
    assert_tolerates_new_fields::<JobStacks>(&golden);
}

#[test]
fn a_dump_is_read_with_the_source_that_the_agent_has_added() {
    let text = "Thread 0x00007f01 [feeder] (most recent call first):\n  File \"/a \", line 2 in b.py\", line 7 in run\n\
                \nCurrent thread 0x00007f02 (most recent call first):\n  Garbage-collecting\n  <no Python frame>\n  \
                File \"/job/data.py\", line 31 in load\n    with open(path) as file:\n  File ???, line ??? in ???\n  ...\n";
    let read = threads(text);
    let frame = |file: &str, line, function: &str, source: Option<&str>| Frame {
        file: file.into(),
        line,
        function: function.into(),
        source: source.map(str::to_owned),
    };
    assert_eq!(read.iter().map(|thread| thread.is_current).collect::<Vec<_>>(), [false, true]);
    assert_eq!(read[0].frames, [frame("/a \", line 2 in b.py", 7, "run", None)]);
    let load = frame("/job/data.py", 31, "load", Some("with open(path) as file:"));
    assert_eq!(read[1].frames, [frame("???", 0, "???", None), load]);
    assert_eq!(place_in("  File \"/job/data.py\", line 31 in load"), Some(("/job/data.py", 31)));
}

#[test]
fn the_main_thread_is_the_oldest_and_the_warm_interpreter_below_it_is_left_out() {
    let text = "Current thread 0x02 (most recent call first):\n  File \"/job/other.py\", line 1 in run\n\n\
                Thread 0x01 (most recent call first):\n  File \"/job/exec.py\", line 9 in <module>\n  \
                File \"<string>\", line 500 in <module>\n";
    let of = |text: &str| {
        let answer = Answer::Processes(vec![process(Dump::WhyNot("sh".into())), process(Dump::Text(text.into()))]);
        main_thread(&ReplicaStacks { replica: worker(0), answer }.mains()[0]).expect("no main thread")
    };
    let lines = |frames: Vec<Frame>| frames.iter().map(|frame| frame.line).collect::<Vec<_>>();
    assert_eq!(lines(of(text)), [9]);
    // With more than 100 threads, the oldest ones are missing.
    assert_eq!(lines(of(&format!("{text}...\n"))), [1]);
}

#[test]
fn the_sentence_names_the_replica_that_differs_and_its_line() {
    let mut stacks: Vec<_> = (0..8).map(in_all_reduce).collect();
    stacks[3] = in_open(3);
    assert_eq!(sentence(&stacks), "7 of 8 wait in all-reduce (train.py:88), worker-3 is in open() (data.py:31)");
    assert_eq!(JobStacks::new(stacks.clone()).summary, sentence(&stacks));
    stacks[5] = without(5, "the agent did not answer");
    stacks[6] = without(6, "the agent did not answer");
    let missing = "no stack of worker-5 and worker-6: the agent did not answer";
    let found = "5 of 8 wait in all-reduce (train.py:88), worker-3 is in open() (data.py:31)";
    assert_eq!(sentence(&stacks), format!("{found}; {missing}"));
    assert_eq!(sentence(&[]), "no replica runs");
}

#[test]
fn a_place_is_the_innermost_line_of_the_script_and_what_this_line_calls() {
    let keras = "/venv/lib/python3.11/site-packages/keras/src";
    let (decorator, trainer) = (format!("{keras}/utils/traceback_utils.py"), format!("{keras}/trainer.py"));
    let execute = "/venv/lib/python3.11/site-packages/tensorflow/python/eager/execute.py".to_owned();
    let step = ("/job/train.py", 88, "step", "");
    for (frames, place) in [
        (vec![("/job/net.py", 40, "all_reduce", "self.peer.recv(4)"), step], "waits in all-reduce (train.py:88)"),
        (
            vec![("/job/net.py", 40, "<listcomp>", "peer.recv(4)"), ("/job/net.py", 40, "all_reduce", ""), step],
            "waits in all-reduce (train.py:88)",
        ),
        (vec![("/job/net.py", 41, "<listcomp>", "peer.recv(4)"), step], "waits in recv() (net.py:41)"),
        (vec![("/job/net.py", 40, "exchange", "self.peer.recv(4)"), step], "waits in recv() (net.py:40)"),
        (
            vec![("/job/net.py", 40, "train_all_reduce", ""), step, ("/job/x.py", 1, "f", "")],
            "waits in all-reduce (train.py:88)",
        ),
        (vec![("/job/net.py", 40, "f", "total = a + b"), ("/job/x.py", 3, "all_reduce_job", "")], "is at net.py:40"),
        (vec![("/job/net.py", 40, "f", "print(len(rows), sum(rows))")], "is at net.py:40"),
        (vec![("/job/net.py", 40, "f", "rows = decode(file.read(64))")], "is in read() (net.py:40)"),
        (vec![("/job/net.py", 40, "f", "while not flag: time.sleep(1)")], "waits in sleep() (net.py:40)"),
        (vec![(&trainer, 300, "fit", ""), (&decorator, 60, "error_handler", ""), step], "is in fit() (train.py:88)"),
        (vec![(&decorator, 60, "error_handler", ""), step], "is in error_handler() (train.py:88)"),
        (
            vec![(&execute, 53, "quick_execute", ""), (&execute, 139, "call_function", ""), step],
            "is in a tf.function (train.py:88)",
        ),
        (
            vec![(&execute, 53, "quick_execute", ""), (&execute, 9, "mat_mul_eager_fallback", ""), step],
            "is in mat_mul_eager_fallback() (train.py:88)",
        ),
        (vec![("/usr/lib/python3.11/threading.py", 320, "wait", "")], "waits in wait() (threading.py:320)"),
    ] {
        assert_eq!(sentence(&[replica(0, &frames)]), format!("worker-0 {place}"), "{frames:?}");
    }
}

#[test]
fn equal_code_in_different_folders_and_other_lines_of_libraries_make_no_difference() {
    let stack = |index: u32| {
        let (own, library) = (format!("/run/{index}/exec.py"), "/usr/lib/python3.11/threading.py");
        replica(index, &[(library, 300 + index, "wait", ""), (&own, 7, "main", "")])
    };
    let groups = |stacks: &[ReplicaStacks]| {
        grouped(stacks.iter().filter_map(|stacks| Some((stacks.replica.into(), main_thread(&stacks.mains()[0])?))))
    };
    let (equal, others) = (stack(0), [stack(4), in_open(2)]);
    let found = groups(&[others[1].clone(), others[0].clone(), equal]);
    assert_eq!(
        found
            .iter()
            .map(|group| group.processes.iter().map(|process| process.replica).collect::<Vec<_>>())
            .collect::<Vec<_>>(),
        [vec![worker(0), worker(4)], vec![worker(2)]]
    );
    assert_eq!(found[0].frames[0].file, "/run/0/exec.py");
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let files = ["/job/exec.py", "/job/data.py", "/x/site-packages/tf/execute.py", "<string>"];
    (prop::sample::select(files.to_vec()), 0..4_u32, "[a-z_<>]{1,9}", prop::option::of("[ -~]{0,30}")).prop_map(
        |(file, line, function, source)| Frame {
            file: file.to_owned(),
            line,
            function,
            source: source.map(|source| source.trim().to_owned()),
        },
    )
}

/// The frames, innermost first, as an agent writes them.
fn written(frames: &[Frame]) -> String {
    let lines = frames.iter().rev().map(|Frame { file, line, function, source }| {
        let source = source.as_ref().map(|source| format!("    {source}\n")).unwrap_or_default();
        format!("  File \"{file}\", line {line} in {function}\n{source}")
    });
    format!("Current thread 0x01 (most recent call first):\n{}", lines.collect::<String>())
}

proptest! {
    #[test]
    fn what_is_written_is_read(frames in vec(any_frame(), 0..6)) {
        let read = threads(&written(&frames));
        prop_assert_eq!(&read[0].frames, &frames);
    }

    #[test]
    fn any_text_is_read_without_a_panic_and_its_sentence_is_short(texts in vec(any::<String>(), 0..20), frames in vec(any_frame(), 0..4)) {
        let stacks: Vec<ReplicaStacks> = (0..).zip(&texts).map(|(index, text)| {
            let text = format!("{}{text}", written(&frames));
            let process = process(if index % 3 == 0 { Dump::WhyNot(text) } else { Dump::Text(text) });
            ReplicaStacks { replica: worker(index), answer: Answer::Processes(vec![process]) }
        }).collect();
        prop_assert!(json_length(&sentence(&stacks)) <= SENTENCE_JSON_BYTES);
    }

    #[test]
    fn each_replica_with_a_stack_is_in_one_group_whatever_their_order(
        stacks in vec(vec(any_frame(), 0..3), 0..12),
        seed in any::<u64>(),
    ) {
        let named: Vec<(ProcessName, Vec<Frame>)> = (0..).map(|index| worker(index).into()).zip(stacks).collect();
        let groups = grouped(named.clone());
        let mut shuffled = named.clone();
        shuffled.sort_by_key(|(process, _)| u64::from(process.replica.index).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        prop_assert_eq!(&groups, &grouped(shuffled));
        let mut members: Vec<ProcessName> = groups.iter().flat_map(|group| group.processes.clone()).collect();
        members.sort();
        let with_frames: Vec<ProcessName> = named.iter().filter(|(_, frames)| !frames.is_empty()).map(|(id, _)| *id).collect();
        prop_assert_eq!(members, with_frames);
        for group in &groups {
            let again = grouped([(worker(0).into(), group.frames.clone()), (worker(1).into(), groups[0].frames.clone())]);
            prop_assert_eq!(again.len() == 1, std::ptr::eq(group, &groups[0]));
        }
    }
}

#[test]
fn the_sentence_counts_and_names_the_processes_of_a_replica() {
    let of = |index: u32, stacks: Vec<ReplicaStacks>| {
        let mains = (0..).zip(stacks).map(|(process, stacks)| {
            let Answer::Processes(processes) = stacks.answer else { panic!("no stacks") };
            ProcessStacks { process: Some(process), ..processes[0].clone() }
        });
        ReplicaStacks { replica: worker(index), answer: Answer::Processes(mains.collect()) }
    };
    let waiting = || (0..4).map(in_all_reduce).collect::<Vec<_>>();
    let mut second = waiting();
    second[3] = in_open(3);
    let replicas = [of(0, waiting()), of(1, second)];
    assert_eq!(sentence(&replicas), "7 of 8 wait in all-reduce (train.py:88), worker-1/3 is in open() (data.py:31)");
    assert_eq!(replicas[1].mains().len(), 4);
}
