//! One pure function moves a run from phase to phase. It does not wait, start, kill or read a clock. The runner reports
//! events to it, and carries out the actions that it returns.

use std::time::Duration;

use protocol::agent::{ExitOutcome, ExitReport, FirstSignal};
use protocol::ids::Generation;
use protocol::processes::EndedProcess;

use super::event::{Action, Event, Now, Reply};
use super::phase::{Assignment, EndCause, Kill, Run, RunEnd, RunPhase};
use super::processes::{MainEnd, MainProcesses};
use super::report::{exit_code, not_started, report};
use crate::refusal::RequestRefusal;

/// Time between SIGTERM and SIGKILL for a run that SIGINT has not ended.
const AFTER_SIGTERM: Duration = Duration::from_secs(2);

/// Time until SIGKILL for the other processes when one of them has left after a notice. All get the notice, and the first
/// rank may still be saving.
const AFTER_LEAVING: Duration = Duration::from_secs(30);

/// The exit code of one of several processes that could not be started, as in a shell.
const CANNOT_START: i32 = 126;

/// The state of the runner. The default is the state of an agent at its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The newest generation that a message has named. Messages of older generations change nothing.
    pub newest: Option<Generation>,
    /// The exit code with which the agent would end now: see [`exit_code`].
    pub exit_code: u8,
    /// The phase of the run.
    pub phase: RunPhase,
}

/// The outcome of [`step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The new state.
    pub state: State,
    /// The answer to the caller.
    pub reply: Reply,
    /// The action for the runner.
    pub action: Option<Action>,
}

/// Applies an event to the state.
pub fn step(state: State, event: Event, now: Now) -> Step {
    let State { newest, exit_code: code_before, phase } = state;
    if let (Some(asked), Some(newest)) = (event.generation(), newest)
        && asked < newest
    {
        let state = State { newest: Some(newest), exit_code: code_before, phase };
        return Step { state, reply: Reply::Refused(RequestRefusal::Stale { asked, newest }), action: None };
    }
    // Even a message that is refused below raises `newest`: it may show that a newer master is at work.
    let newest = newest.max(event.generation());
    let Moved { phase, reply, action } = match event {
        Event::Config(assignment) => config(phase, assignment),
        Event::Run(generation) => run(phase, generation),
        Event::Stop { first: FirstSignal::Term, grace, .. } => stop(phase, grace, EndCause::Stopped, now),
        Event::Stop { first: FirstSignal::Int, grace, .. } => interrupt(phase, grace, now),
        Event::Notice(generation) if phase.generation() == Some(generation) => to(phase),
        Event::Notice(generation) => refused(phase, RequestRefusal::GenerationNotConfigured(generation)),
        Event::Terminate { grace } => stop(phase, grace, EndCause::Terminated, now),
        Event::Finish if phase.is_active() => refused(phase, RequestRefusal::Active),
        Event::Finish => Moved { phase, reply: Reply::Done, action: Some(Action::EndAgent) },
        Event::Started(_) | Event::StartFailed(_) | Event::MainsEnded(_) | Event::AllEnded { .. } | Event::Tick => {
            progress(phase, event, now)
        }
    };
    let exit_code = match &phase {
        RunPhase::Exited { report, .. } => exit_code(report),
        RunPhase::Idle
        | RunPhase::Configured { .. }
        | RunPhase::Starting { .. }
        | RunPhase::Running { .. }
        | RunPhase::Stopping { .. }
        | RunPhase::Ending { .. } => code_before,
    };
    Step { state: State { newest, exit_code, phase }, reply, action }
}

/// A [`Step`] without `newest` and `exit_code`, which only `step` changes.
struct Moved {
    phase: RunPhase,
    reply: Reply,
    action: Option<Action>,
}

fn to(phase: RunPhase) -> Moved {
    Moved { phase, reply: Reply::Done, action: None }
}

fn underway(phase: RunPhase) -> Moved {
    Moved { phase, reply: Reply::Underway, action: None }
}

fn refused(phase: RunPhase, refusal: RequestRefusal) -> Moved {
    Moved { phase, reply: Reply::Refused(refusal), action: None }
}

/// Accepts one config for each generation. A config without a generation is accepted whenever nothing runs.
fn config(phase: RunPhase, asked: Assignment) -> Moved {
    if let (Some(generation), Some(held)) = (asked.generation, phase.assignment())
        && held.generation == Some(generation)
    {
        let is_same = asked == *held;
        return if is_same { to(phase) } else { refused(phase, RequestRefusal::ConfiguredOtherwise(generation)) };
    }
    match phase {
        RunPhase::Idle | RunPhase::Configured { .. } | RunPhase::Exited { .. } => {
            to(RunPhase::Configured { assignment: asked })
        }
        RunPhase::Starting { .. } | RunPhase::Running { .. } | RunPhase::Stopping { .. } | RunPhase::Ending { .. } => {
            refused(phase, RequestRefusal::Active)
        }
    }
}

/// Starts one run for each config.
fn run(phase: RunPhase, asked: Option<Generation>) -> Moved {
    if let Some(generation) = asked
        && phase.generation() != asked
    {
        return refused(phase, RequestRefusal::GenerationNotConfigured(generation));
    }
    match phase {
        RunPhase::Idle => refused(phase, RequestRefusal::NothingConfigured),
        RunPhase::Configured { assignment } => {
            let action = Some(Action::Start(assignment.environments.clone()));
            Moved { phase: RunPhase::Starting { assignment }, reply: Reply::Done, action }
        }
        RunPhase::Starting { .. }
        | RunPhase::Running { .. }
        | RunPhase::Stopping { .. }
        | RunPhase::Ending { .. }
        | RunPhase::Exited { .. } => to(phase),
    }
}

/// Ends the run, even if the request names a newer generation than the run's. `step` has already refused requests of
/// older generations.
fn stop(phase: RunPhase, grace: Duration, asked: EndCause, now: Now) -> Moved {
    let without_start = |assignment| {
        let report = not_started("stopped before it started".to_owned(), asked, now);
        to(RunPhase::Exited { assignment, started_at: None, report })
    };
    match phase {
        RunPhase::Idle | RunPhase::Exited { .. } => to(phase),
        // A start request may arrive after this stop. It then finds an ended run, and starts nothing.
        RunPhase::Configured { assignment } => without_start(assignment),
        // The runner lets the script begin and applies `Started` in one call. So in this phase, no line of the script
        // has run.
        RunPhase::Starting { assignment } => Moved { action: Some(Action::AbandonStart), ..without_start(assignment) },
        RunPhase::Ending { .. } => underway(phase),
        RunPhase::Running { run } => {
            let (kill, action) = if grace.is_zero() {
                (Kill::Sent, Action::Kill(run.processes.living()))
            } else {
                (Kill::At(now.monotonic + grace), Action::Terminate(run.processes.living()))
            };
            Moved { action: Some(action), ..underway(RunPhase::Stopping { run, kill, cause: asked }) }
        }
        RunPhase::Stopping { run, kill: Kill::At(deadline), cause } => {
            let kill = Kill::At(deadline.min(now.monotonic + grace));
            Moved { reply: Reply::Underway, ..kill_when_due(run, kill, cause, now) }
        }
        RunPhase::Stopping { run, kill: Kill::Interrupted { kill, .. }, cause } => {
            let kill = if grace.is_zero() {
                Kill::At(now.monotonic)
            } else {
                Kill::Interrupted { terminate: now.monotonic, kill: kill.min(now.monotonic + grace) }
            };
            Moved { reply: Reply::Underway, ..kill_when_due(run, kill, cause, now) }
        }
        RunPhase::Stopping { kill: Kill::Sent, .. } => underway(phase),
    }
}

/// Stops the run as Ctrl-C at a terminal does: SIGINT comes first, so that Python raises KeyboardInterrupt.
fn interrupt(phase: RunPhase, grace: Duration, now: Now) -> Moved {
    match phase {
        RunPhase::Running { run } if !grace.is_zero() => {
            let terminate = now.monotonic + grace.saturating_sub(AFTER_SIGTERM).max(grace / 2);
            let kill = Kill::Interrupted { terminate, kill: now.monotonic + grace };
            let action = Some(Action::Interrupt(run.processes.living()));
            Moved { phase: RunPhase::Stopping { run, kill, cause: EndCause::Stopped }, reply: Reply::Underway, action }
        }
        // The request was repeated.
        RunPhase::Stopping { kill: Kill::Interrupted { .. }, .. } => underway(phase),
        RunPhase::Running { .. }
        | RunPhase::Stopping { .. }
        | RunPhase::Idle
        | RunPhase::Configured { .. }
        | RunPhase::Starting { .. }
        | RunPhase::Ending { .. }
        | RunPhase::Exited { .. } => stop(phase, grace, EndCause::Stopped, now),
    }
}

/// Sends SIGTERM or SIGKILL to a stopping run when it is due.
fn kill_when_due(run: Run, kill: Kill, cause: EndCause, now: Now) -> Moved {
    match kill {
        Kill::Interrupted { terminate, kill } if terminate <= now.monotonic => {
            let action = Some(Action::Terminate(run.processes.living()));
            Moved { phase: RunPhase::Stopping { run, kill: Kill::At(kill), cause }, reply: Reply::Done, action }
        }
        Kill::At(deadline) if deadline <= now.monotonic => {
            let action = Some(Action::Kill(run.processes.living()));
            Moved { phase: RunPhase::Stopping { run, kill: Kill::Sent, cause }, reply: Reply::Done, action }
        }
        Kill::Interrupted { .. } | Kill::At(_) | Kill::Sent => to(RunPhase::Stopping { run, kill, cause }),
    }
}

/// One of several processes of a run; `None` if the run has only one.
fn ended_process(assignment: &Assignment, index: usize) -> Option<EndedProcess> {
    if !assignment.has_several() {
        return None;
    }
    let rank = assignment.rank(index).and_then(|rank| rank.parse().ok());
    Some(EndedProcess { index: u32::try_from(index).ok()?, rank })
}

/// The phase of a run after the end of some of its main processes. `stopping` says how the run is being stopped already. A
/// run that is not being stopped is killed if one of its processes has failed. If one has left, the others get
/// [`AFTER_LEAVING`].
fn after_end(run: Run, stopping: Option<(Kill, EndCause)>, now: Now) -> Moved {
    let living = run.processes.living();
    if living.is_empty()
        && let Some((process, MainEnd { outcome, at })) = run.processes.decisive()
    {
        let cause = stopping.map_or(EndCause::Own, |(_, cause)| cause);
        return to(RunPhase::Ending { run, end: RunEnd { outcome, process, cause, at } });
    }
    match stopping {
        Some((kill, cause)) => to(RunPhase::Stopping { run, kill, cause }),
        None if run.processes.have_failed() => Moved {
            phase: RunPhase::Stopping { run, kill: Kill::Sent, cause: EndCause::Own },
            reply: Reply::Done,
            action: Some(Action::Kill(living)),
        },
        None if run.processes.have_left() => {
            let kill = Kill::At(now.monotonic + AFTER_LEAVING);
            to(RunPhase::Stopping { run, kill, cause: EndCause::Own })
        }
        None => to(RunPhase::Running { run }),
    }
}

/// Applies what the runner reports. An event that does not fit the phase is late and changes nothing.
fn progress(phase: RunPhase, event: Event, now: Now) -> Moved {
    match (phase, event) {
        (RunPhase::Starting { assignment }, Event::Started(pids)) => {
            let processes = MainProcesses::started(pids);
            to(RunPhase::Running { run: Run { assignment, processes, started_at: now.wall } })
        }
        (RunPhase::Starting { assignment }, Event::StartFailed(reason)) => {
            to(RunPhase::Exited { assignment, started_at: None, report: not_started(reason, EndCause::Own, now) })
        }
        (RunPhase::Running { mut run }, Event::StartFailed(_)) => {
            run.processes.add_failed(MainEnd { outcome: ExitOutcome::Code(CANNOT_START), at: now.wall });
            after_end(run, None, now)
        }
        (RunPhase::Running { mut run }, Event::MainsEnded(ends)) => {
            run.processes.end(ends, now.wall, false);
            after_end(run, None, now)
        }
        (RunPhase::Stopping { mut run, kill, cause }, Event::MainsEnded(ends)) => {
            run.processes.end(ends, now.wall, kill == Kill::Sent);
            after_end(run, Some((kill, cause)), now)
        }
        (RunPhase::Stopping { run, kill, cause }, Event::Tick) => kill_when_due(run, kill, cause, now),
        (RunPhase::Ending { run, end }, Event::AllEnded { exception, stderr_tail, not_started }) => {
            let outcome = not_started.map_or(end.outcome, ExitOutcome::NotStarted);
            let process = ended_process(&run.assignment, end.process);
            let report = ExitReport { process, exception, stderr_tail, ..report(outcome, end.cause, end.at) }.bounded();
            to(RunPhase::Exited { assignment: run.assignment, started_at: Some(run.started_at), report })
        }
        (
            phase @ (RunPhase::Idle
            | RunPhase::Configured { .. }
            | RunPhase::Starting { .. }
            | RunPhase::Running { .. }
            | RunPhase::Stopping { .. }
            | RunPhase::Ending { .. }
            | RunPhase::Exited { .. }),
            Event::Config(_)
            | Event::Run(_)
            | Event::Stop { .. }
            | Event::Notice(_)
            | Event::Terminate { .. }
            | Event::Finish
            | Event::Started(_)
            | Event::StartFailed(_)
            | Event::MainsEnded(_)
            | Event::AllEnded { .. }
            | Event::Tick,
        ) => to(phase),
    }
}
