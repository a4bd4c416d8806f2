//! The run's state machine: requests and events in its phases.

use std::time::{Duration, Instant};

use agent::process::environment::EnvChanges;
use agent::refusal::RequestRefusal;
use agent::run::event::{Action, Event, Now, Reply};
use agent::run::phase::{Assignment, Kill, Run, RunPhase};
use agent::run::processes::MainProcesses;
use agent::run::step::{State, Step, step};
use protocol::agent::{ExitOutcome, FirstSignal, RunState};
use protocol::ids::{Generation, UnixMillis};
use protocol::processes::EndedProcess;
use rustix::process::Pid;

const PID: i32 = 4242;

fn pid() -> Pid {
    Pid::from_raw(PID).unwrap()
}

fn generation(number: &str) -> Option<Generation> {
    (!number.is_empty()).then(|| number.parse().unwrap())
}

fn changes(value: &str) -> EnvChanges {
    [("A".parse().unwrap(), Some(value.to_owned()))].into()
}

fn config(number: &str, value: &str) -> Event {
    Event::Config(Assignment {
        generation: generation(number),
        membership: None,
        code: None,
        environments: vec![changes(value)],
    })
}

fn run(number: &str) -> Event {
    Event::Run(generation(number))
}

fn stop(number: &str, grace_seconds: u64) -> Event {
    Event::Stop { generation: generation(number), first: FirstSignal::Term, grace: Duration::from_secs(grace_seconds) }
}

fn all_ended() -> Event {
    Event::AllEnded { exception: None, stderr_tail: "tail".to_owned(), not_started: None }
}

fn main_ended(code: i32) -> Event {
    Event::MainsEnded(vec![(pid(), ExitOutcome::Code(code))])
}

/// A state machine, and a clock that moves only when the test sets it.
struct Machine {
    state: State,
    clock: Instant,
    seconds: u64,
}

impl Machine {
    /// A machine after these events.
    fn after(events: impl IntoIterator<Item = Event>) -> Self {
        let mut machine = Self { state: State::default(), clock: Instant::now(), seconds: 0 };
        for event in events {
            machine.take(event);
        }
        machine
    }

    fn take(&mut self, event: Event) -> (Reply, Option<Action>) {
        let now =
            Now { monotonic: self.clock + Duration::from_secs(self.seconds), wall: UnixMillis(self.seconds * 1000) };
        let Step { state, reply, action } = step(self.state.clone(), event, now);
        self.state = state;
        (reply, action)
    }

    fn wire(&self) -> RunState {
        self.state.phase.wire_state()
    }
}

/// The events that lead to each phase except `Starting`, for the generation with this number.
fn ways(number: &str) -> [(RunState, Vec<Event>); 6] {
    let configured = vec![config(number, "1")];
    let running = [configured.clone(), vec![run(number), Event::Started(vec![pid()])]].concat();
    let stopping = [running.clone(), vec![stop("", 10)]].concat();
    let ending = [running.clone(), vec![main_ended(3)]].concat();
    let exited = [ending.clone(), vec![all_ended()]].concat();
    [
        (RunState::Idle, vec![]),
        (RunState::Configured, configured),
        (RunState::Running, running),
        (RunState::Stopping, stopping),
        (RunState::Stopping, ending),
        (RunState::Exited, exited),
    ]
}

/// Sends the event to a machine in each phase of [`ways`]. Compares the replies and the states after the event.
fn check(number: &str, event: &Event, expected: [(Reply, RunState); 6]) {
    for ((state, way), (reply, state_after)) in ways(number).into_iter().zip(expected) {
        let mut machine = Machine::after(way);
        assert_eq!(machine.wire(), state);
        assert_eq!(
            (machine.take(event.clone()).0, machine.wire()),
            (reply, state_after),
            "wrong reply or state after {event:?} in {state:?} of generation {number:?}"
        );
    }
}

fn refused(refusal: RequestRefusal) -> Reply {
    Reply::Refused(refusal)
}

#[test]
fn a_config_without_generation_or_of_a_newer_generation_is_accepted_only_when_nothing_runs() {
    let active = || refused(RequestRefusal::Active);
    for (number, event) in [("", config("", "2")), ("1.1", config("", "2")), ("1.1", config("1.2", "1"))] {
        let expected = [
            (Reply::Done, RunState::Configured),
            (Reply::Done, RunState::Configured),
            (active(), RunState::Running),
            (active(), RunState::Stopping),
            (active(), RunState::Stopping),
            (Reply::Done, RunState::Configured),
        ];
        check(number, &event, expected);
    }
}

#[test]
fn the_same_config_of_the_same_generation_changes_nothing_and_another_config_is_refused() {
    let generation_1_1 = generation("1.1").unwrap();
    for (value, reply) in [("1", Reply::Done), ("2", refused(RequestRefusal::ConfiguredOtherwise(generation_1_1)))] {
        let expected = [
            (Reply::Done, RunState::Configured),
            (reply.clone(), RunState::Configured),
            (reply.clone(), RunState::Running),
            (reply.clone(), RunState::Stopping),
            (reply.clone(), RunState::Stopping),
            (reply, RunState::Exited),
        ];
        check("1.1", &config("1.1", value), expected);
    }
}

#[test]
fn a_start_request_without_generation_starts_the_configured_run_once() {
    for number in ["", "1.1"] {
        let expected = [
            (refused(RequestRefusal::NothingConfigured), RunState::Idle),
            (Reply::Done, RunState::Configured),
            (Reply::Done, RunState::Running),
            (Reply::Done, RunState::Stopping),
            (Reply::Done, RunState::Stopping),
            (Reply::Done, RunState::Exited),
        ];
        check(number, &run(""), expected);
    }
}

#[test]
fn a_start_request_of_a_generation_that_is_not_configured_is_refused() {
    for number in ["", "1.1"] {
        let not = || refused(RequestRefusal::GenerationNotConfigured(generation("1.2").unwrap()));
        let expected = [
            (not(), RunState::Idle),
            (not(), RunState::Configured),
            (not(), RunState::Running),
            (not(), RunState::Stopping),
            (not(), RunState::Stopping),
            (not(), RunState::Exited),
        ];
        check(number, &run("1.2"), expected);
    }
}

#[test]
fn a_notice_is_accepted_for_the_configured_start_alone_and_changes_no_phase() {
    for (number, event, is_accepted) in [("1.1", "1.1", true), ("1.1", "1.2", false), ("", "1.1", false)] {
        let asked = generation(event).unwrap();
        let not = || refused(RequestRefusal::GenerationNotConfigured(asked));
        let reply = || if is_accepted { Reply::Done } else { not() };
        let expected = [
            (not(), RunState::Idle),
            (reply(), RunState::Configured),
            (reply(), RunState::Running),
            (reply(), RunState::Stopping),
            (reply(), RunState::Stopping),
            (reply(), RunState::Exited),
        ];
        check(number, &Event::Notice(asked), expected);
    }
}

#[test]
fn only_a_configured_run_is_started() {
    for (state, way) in ways("1.1") {
        let (_, action) = Machine::after(way).take(run("1.1"));
        let expected = (state == RunState::Configured).then(|| Action::Start(vec![changes("1")]));
        assert_eq!(action, expected, "{state:?}");
    }
}

#[test]
fn a_stop_is_accepted_in_every_state_and_ends_a_configured_or_running_run() {
    for number in ["", "1.1"] {
        let expected = [
            (Reply::Done, RunState::Idle),
            (Reply::Done, RunState::Exited),
            (Reply::Underway, RunState::Stopping),
            (Reply::Underway, RunState::Stopping),
            (Reply::Underway, RunState::Stopping),
            (Reply::Done, RunState::Exited),
        ];
        check(number, &stop(number, 5), expected.clone());
        check(number, &stop("1.2", 5), expected);
    }
}

#[test]
fn an_agent_finishes_only_when_nothing_runs() {
    for (state, way) in ways("1.1") {
        let mut machine = Machine::after(way);
        let active = machine.state.phase.is_active();
        let expected =
            if active { (refused(RequestRefusal::Active), None) } else { (Reply::Done, Some(Action::EndAgent)) };
        assert_eq!(machine.take(Event::Finish), expected, "{state:?}");
    }
}

#[test]
fn messages_older_than_the_newest_generation_are_refused_and_change_nothing() {
    // Every kind of message raises the newest generation, even a message that is refused.
    for newer in [config("2.1", "1"), run("2.1"), stop("2.1", 5)] {
        for (state, way) in ways("1.9") {
            for older in [config("1.9", "1"), run("1.9"), stop("1.9", 0)] {
                let mut machine = Machine::after(way.clone());
                machine.take(newer.clone());
                let before = machine.state.clone();
                let stale =
                    RequestRefusal::Stale { asked: generation("1.9").unwrap(), newest: generation("2.1").unwrap() };
                assert_eq!(
                    machine.take(older.clone()),
                    (refused(stale), None),
                    "wrong reply to {older:?} after {newer:?} in {state:?}"
                );
                assert_eq!(machine.state, before);
            }
        }
    }
}

#[test]
fn the_report_of_a_run_contains_the_outcome_the_time_and_the_cause_of_its_end() {
    for (stops, stopped) in [(vec![], false), (vec![stop("", 10)], true)] {
        let mut machine = Machine::after([config("1.1", "1"), run("1.1"), Event::Started(vec![pid()])]);
        for stop in stops {
            machine.take(stop);
        }
        machine.seconds = 7;
        machine.take(main_ended(75));
        assert_eq!((machine.wire(), machine.state.phase.main_processes()), (RunState::Stopping, vec![]));
        // A stop after the end of the main process is not the cause of that end.
        machine.take(stop("", 0));
        machine.seconds = 8;
        machine.take(all_ended());
        let RunPhase::Exited { started_at, report, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
        assert_eq!(*started_at, Some(UnixMillis(0)));
        assert_eq!((&report.outcome, report.stopped), (&ExitOutcome::Code(75), stopped));
        assert_eq!((report.ended_at, report.stderr_tail.as_str()), (UnixMillis(7000), "tail"));
        assert_eq!(machine.state.exit_code, 75);
    }
}

#[test]
fn a_stop_sends_sigterm_and_then_sigkill_after_the_grace() {
    let mut machine = Machine::after(ways("1.1")[2].1.clone());
    assert_eq!(machine.take(stop("1.1", 10)), (Reply::Underway, Some(Action::Terminate(vec![pid()]))));
    machine.seconds = 9;
    assert_eq!(machine.take(Event::Tick).1, None);
    machine.seconds = 10;
    assert_eq!(machine.take(Event::Tick).1, Some(Action::Kill(vec![pid()])));
    assert_eq!(machine.take(Event::Tick).1, None, "SIGKILL is sent again");
    assert_eq!(machine.take(stop("1.1", 0)), (Reply::Underway, None));
}

#[test]
fn an_interrupt_sends_sigint_then_sigterm_and_then_sigkill() {
    let interrupt =
        |grace| Event::Stop { generation: None, first: FirstSignal::Int, grace: Duration::from_secs(grace) };
    let running = || Machine::after(ways("1.1")[2].1.clone());
    for (grace, sigterm) in [(10, 8), (3, 2), (2, 1)] {
        let mut machine = running();
        assert_eq!(machine.take(interrupt(grace)), (Reply::Underway, Some(Action::Interrupt(vec![pid()]))));
        assert_eq!(machine.take(interrupt(grace)), (Reply::Underway, None), "SIGINT is sent again");
        let actions = (0..=grace).map(|second| {
            machine.seconds = second;
            machine.take(Event::Tick).1
        });
        let expected = (0..=grace).map(|second| match second {
            _ if second == sigterm => Some(Action::Terminate(vec![pid()])),
            _ if second == grace => Some(Action::Kill(vec![pid()])),
            _ => None,
        });
        assert_eq!(actions.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{grace}");
    }
    for (later, action) in [(5, Action::Terminate(vec![pid()])), (0, Action::Kill(vec![pid()]))] {
        let mut machine = running();
        machine.take(interrupt(10));
        assert_eq!(machine.take(stop("", later)), (Reply::Underway, Some(action)));
    }
    assert_eq!(running().take(interrupt(0)), (Reply::Underway, Some(Action::Kill(vec![pid()]))));
    for number in ["", "1.1"] {
        let expected = [
            (Reply::Done, RunState::Idle),
            (Reply::Done, RunState::Exited),
            (Reply::Underway, RunState::Stopping),
            (Reply::Underway, RunState::Stopping),
            (Reply::Underway, RunState::Stopping),
            (Reply::Done, RunState::Exited),
        ];
        check(number, &interrupt(5), expected);
    }
}

#[test]
fn a_stop_without_grace_kills_at_once() {
    let mut machine = Machine::after(ways("1.1")[2].1.clone());
    assert_eq!(machine.take(stop("", 0)), (Reply::Underway, Some(Action::Kill(vec![pid()]))));
}

#[test]
fn a_later_stop_can_shorten_the_grace_and_not_lengthen_it() {
    let mut machine = Machine::after(ways("1.1")[3].1.clone());
    for (grace, deadline) in [(20, 10), (4, 4), (5, 4)] {
        assert_eq!(machine.take(stop("", grace)), (Reply::Underway, None));
        let RunPhase::Stopping { kill, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
        assert_eq!(*kill, Kill::At(machine.clock + Duration::from_secs(deadline)));
    }
    assert_eq!(machine.take(stop("", 0)), (Reply::Underway, Some(Action::Kill(vec![pid()]))));
}

#[test]
fn a_stop_before_the_script_begins_abandons_the_start() {
    let terminate = Event::Terminate { grace: Duration::from_secs(5) };
    for (event, terminated) in [(stop("1.1", 5), false), (stop("", 0), false), (terminate, true)] {
        let mut machine = Machine::after([config("1.1", "1"), run("1.1")]);
        assert_eq!(machine.take(event), (Reply::Done, Some(Action::AbandonStart)));
        let RunPhase::Exited { started_at: None, report, .. } = &machine.state.phase else {
            panic!("{:?}", machine.state)
        };
        assert_eq!((report.stopped, report.terminated), (true, terminated));
        let stopped = machine.state.clone();
        assert_eq!(
            machine.take(Event::Started(vec![pid()])),
            (Reply::Done, None),
            "wrong reply to the event that came after the end"
        );
        assert_eq!(machine.state, stopped);
    }
}

#[test]
fn if_a_start_fails_its_run_has_ended_and_is_not_started_again() {
    let mut machine = Machine::after([config("1.1", "1"), run("1.1")]);
    machine.take(Event::StartFailed("no memory".to_owned()));
    let RunPhase::Exited { started_at: None, report, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
    assert_eq!((&report.outcome, report.stopped), (&ExitOutcome::NotStarted("no memory".to_owned()), false));
    assert_eq!(machine.state.exit_code, 126);
    assert_eq!(
        machine.take(run("1.1")),
        (Reply::Done, None),
        "wrong answer to a second request after the failed start"
    );
}

#[test]
fn the_exit_code_is_that_of_the_last_ended_run_even_if_another_run_is_configured() {
    let mut machine = Machine::after(ways("1.1")[5].1.clone());
    assert_eq!(machine.state.exit_code, 3);
    machine.take(config("1.2", "1"));
    assert_eq!(machine.state.exit_code, 3);
    machine.take(stop("1.2", 1));
    assert_eq!(machine.state.exit_code, 143);
}

#[test]
fn late_events_change_nothing() {
    for event in
        [Event::Started(vec![pid()]), Event::StartFailed("x".to_owned()), main_ended(0), all_ended(), Event::Tick]
    {
        for of_phase in [0, 1, 5] {
            let mut machine = Machine::after(ways("1.1")[of_phase].1.clone());
            let before = machine.state.clone();
            assert_eq!(machine.take(event.clone()), (Reply::Done, None));
            assert_eq!(machine.state, before);
        }
    }
}

fn two() -> [Pid; 2] {
    [PID, PID + 1].map(|pid| Pid::from_raw(pid).unwrap())
}

/// A run of two processes, after these events.
fn of_two(events: impl IntoIterator<Item = Event>) -> Machine {
    let assignment = Assignment {
        generation: generation("1.1"),
        membership: None,
        code: None,
        environments: vec![changes("0"), [("RANK".parse().unwrap(), Some("9".to_owned()))].into()],
    };
    let begin = [Event::Config(assignment), run("1.1"), Event::Started(two().to_vec())];
    Machine::after(begin.into_iter().chain(events))
}

fn ended(process: usize, code: i32) -> Event {
    Event::MainsEnded(vec![(two()[process], ExitOutcome::Code(code))])
}

#[test]
fn the_end_of_several_processes_is_that_of_the_first_that_failed() {
    for (ends, code, process) in [
        ([ended(0, 0), ended(1, 0)], 0, 1),
        ([ended(0, 75), ended(1, 0)], 75, 0),
        ([ended(1, 3), ended(0, 4)], 3, 1),
        ([ended(1, 0), ended(0, 4)], 4, 0),
    ] {
        let mut machine = of_two(ends.clone());
        machine.take(all_ended());
        let RunPhase::Exited { report, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
        let process = EndedProcess { index: process, rank: (process == 1).then_some(9) };
        assert_eq!((&report.outcome, report.process), (&ExitOutcome::Code(code), Some(process)), "{ends:?}");
    }
}

#[test]
fn after_a_failure_the_others_are_killed_at_once_unless_a_stop_is_under_way() {
    let mut machine = of_two([]);
    assert_eq!(machine.take(ended(0, 0)).1, None);
    assert_eq!(machine.wire(), RunState::Running);
    let mut machine = of_two([]);
    assert_eq!(machine.take(ended(1, 1)).1, Some(Action::Kill(vec![two()[0]])));
    assert_eq!((machine.wire(), machine.take(stop("1.1", 10))), (RunState::Stopping, (Reply::Underway, None)));
    let mut machine = of_two([stop("1.1", 10)]);
    assert_eq!(machine.take(ended(1, 1)).1, None);
    machine.seconds = 10;
    assert_eq!(machine.take(Event::Tick).1, Some(Action::Kill(vec![two()[0]])));
}

#[test]
fn if_one_of_several_processes_cannot_be_started_the_others_are_killed() {
    let mut machine = of_two([]);
    let RunPhase::Running { run } = machine.state.phase else { panic!("{:?}", machine.state) };
    machine.state.phase = RunPhase::Running { run: Run { processes: MainProcesses::started(vec![pid()]), ..run } };
    let failed = Event::StartFailed("no memory".to_owned());
    assert_eq!(machine.take(failed).1, Some(Action::Kill(vec![pid()])));
    machine.take(Event::MainsEnded(vec![(pid(), ExitOutcome::Signal(9))]));
    machine.take(all_ended());
    let RunPhase::Exited { report, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
    assert_eq!(
        (&report.outcome, report.process),
        (&ExitOutcome::Code(126), Some(EndedProcess { index: 1, rank: Some(9) }))
    );
}

#[test]
fn of_processes_that_end_at_the_same_time_the_one_that_was_killed_is_named_and_no_ended_one_gets_a_signal() {
    let out_of_memory = ExitOutcome::OutOfMemory { limit: None };
    for (ends, process) in [
        ([ExitOutcome::Code(1), out_of_memory], 1),
        ([ExitOutcome::Code(1), ExitOutcome::Signal(11)], 1),
        ([ExitOutcome::Code(2), ExitOutcome::Code(1)], 0),
    ] {
        let mut machine = of_two([]);
        let both = two().into_iter().zip(ends).collect();
        assert_eq!(machine.take(Event::MainsEnded(both)).1, None);
        machine.take(all_ended());
        let RunPhase::Exited { report, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
        assert_eq!(report.process.map(|process| process.index), Some(process));
    }
}

#[test]
fn if_one_process_has_left_the_others_get_a_limited_time_and_their_kill_is_no_failure() {
    let mut machine = of_two([]);
    assert_eq!(machine.take(ended(1, 75)).1, None);
    machine.seconds = 29;
    assert_eq!(machine.take(Event::Tick).1, None);
    machine.seconds = 30;
    assert_eq!(machine.take(Event::Tick).1, Some(Action::Kill(vec![two()[0]])));
    machine.take(Event::MainsEnded(vec![(two()[0], ExitOutcome::Signal(9))]));
    machine.take(all_ended());
    let RunPhase::Exited { report, .. } = &machine.state.phase else { panic!("{:?}", machine.state) };
    assert_eq!((&report.outcome, report.stopped), (&ExitOutcome::Code(75), false));
}
