//! The runner: the one task that starts, stops and reaps the run, and publishes its status.

mod starting;

use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use protocol::agent::{CodeStatus, ExitOutcome, FirstSignal, RunStatus};
use protocol::ids::UnixMillis;
use protocol::lease::{Fence, Renewal};
use rustix::process::{Pid, Signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep_until;
use tracing::{info, warn};

use super::event::{Action, Event, Now, Reply};
use super::fence::next_look;
use super::helpers::Helpers;
use super::memory::{CGROUP, Memory};
use super::output::RunOutput;
use super::phase::{Assignment, EndCause, Kill, RunEnd, RunPhase};
use super::shares::Shares;
use super::shutdown::Shutdown;
use super::status::{ScriptReports, log_change, status_of};
use super::step::{State, Step, step};
use super::unstartable::EndedRun;
use super::{AgentEnd, Command, Request, exception};
use crate::helper::HelperFolder;
use crate::log::{AgentOutput, Stream, stderr_tail};
use crate::posts::Posts;
use crate::process::child::RunTemplate;
use crate::process::clock::clock;
use crate::process::reaper::{Reaper, WatchedChildren, kill_group, signal_main};
use crate::stacks::StacksFile;
use crate::warm::Warm;

/// The pause between two searches for processes that a run has left behind. The kernel reports the end of each process
/// at once. So only processes that were started while others were being killed must wait for the next search.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// Time from the end of a script that has succeeded to the SIGTERM for its background processes.
const BACKGROUND_PAUSE: Duration = Duration::from_millis(500);

/// Time between SIGTERM and SIGKILL for the background processes of a script that has succeeded.
const BACKGROUND_GRACE: Duration = Duration::from_secs(2);

/// If the script does not exist or cannot be parsed, all processes of a run fail within this time.
const ALL_FAIL_LIMIT: Duration = Duration::from_secs(5);

/// How long an ending agent waits for processes after SIGKILL. For example, a process that reads from a dead disk does
/// not end at once.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(10);

/// Exit code of an agent that ends before its run has a report: 128 plus SIGKILL's number.
const KILLED: u8 = 137;

/// The owner of the run. It must live on the agent's main thread: see [`crate::process::child::spawn`].
pub struct Runner {
    template: RunTemplate,
    helper_folder: HelperFolder,
    output: Arc<AgentOutput>,
    status: watch::Sender<RunStatus>,
    reaper: Reaper,
    memory: Memory,
    code: CodeStatus,
    warm: Warm,
    state: State,
    run_output: RunOutput,
    helpers: Helpers,
    posts: Posts,
    /// The files of the stacks of the newest run's processes, by index.
    stacks: watch::Sender<Vec<Option<StacksFile>>>,
    fence: Fence,
    shutdown: Shutdown,
    /// The newest sentence that is being added to the output.
    saying: Option<JoinHandle<()>>,
    background: Background,
}

/// The background processes of a script that has succeeded.
#[derive(Clone, Copy)]
enum Background {
    /// They have not been looked for.
    New,
    /// They may end by themselves until this time, as Python's resource tracker does.
    Awaited(Instant),
    /// They have been sent SIGTERM, and get SIGKILL at this time.
    Terminated(Instant),
}

impl Runner {
    /// A runner without a run, and a receiver of its status.
    pub fn new(
        template: RunTemplate,
        helper_folder: HelperFolder,
        output: Arc<AgentOutput>,
        reaper: Reaper,
        boot_id: String,
    ) -> (Self, watch::Receiver<RunStatus>) {
        let (state, code) = (State::default(), CodeStatus::default());
        let first = status_of(&state.phase, code, None, ScriptReports::default(), boot_id);
        let (status, news) = watch::channel(RunStatus { seq: 1, ..first });
        let runner = Self {
            template,
            helper_folder,
            output,
            status,
            reaper,
            memory: Memory::of(CGROUP),
            code,
            warm: Warm::default(),
            state,
            run_output: RunOutput::None,
            helpers: Helpers::default(),
            posts: Posts::default(),
            stacks: watch::Sender::new(vec![]),
            fence: Fence::default(),
            shutdown: Shutdown::None,
            saying: None,
            background: Background::New,
        };
        (runner, news)
    }

    /// The files of the stacks of the newest run's processes, while the run lives. By the index of the process; `None` if
    /// a file could not be created.
    pub(crate) fn stacks_files(&self) -> watch::Receiver<Vec<Option<StacksFile>>> {
        self.stacks.subscribe()
    }

    /// Executes commands until the agent must end. Then kills every process that the runs have left behind.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>) -> AgentEnd {
        while !self.shutdown.is_due(self.state.phase.is_active(), Instant::now()) {
            let alarm = self.alarm();
            tokio::select! {
                request = requests.recv() => match request {
                    // Sending the reply fails if nobody waits for it. The command has been executed anyway.
                    Some(Request { command, reply }) => drop(reply.send(self.execute(command))),
                    None => self.shutdown = Shutdown::Now,
                },
                () = self.reaper.child_ended() => {}
                () = self.run_output.wait() => {}
                () = self.helpers.exchange() => {}
                () = self.posts.changed() => {}
                news = self.warm.next() => self.take_news(news),
                () = until(alarm) => {}
            }
            self.observe();
        }
        self.kill_leftovers().await;
        let code = if self.state.phase.is_active() { KILLED } else { self.state.exit_code };
        AgentEnd { code, signal_deadline: self.shutdown.signal_deadline() }
    }

    fn execute(&mut self, command: Command) -> Reply {
        match command {
            // A script with the helper saves its state after SIGTERM.
            Command::Apply(Event::Stop { generation, first: _, grace }) if self.helpers.are_known() => {
                return self.apply(Event::Stop { generation, first: FirstSignal::Term, grace });
            }
            Command::Apply(event) => return self.apply(event),
            Command::Configure { assignment, renewal } => return self.configure(assignment, renewal),
            Command::Warm(request) => {
                self.find_helper();
                self.warm.begin(&self.template, request);
                self.publish();
            }
            Command::Notice { generation, line } => {
                let reply = self.apply(Event::Notice(generation));
                if reply == Reply::Done {
                    self.helpers.notify(&line);
                }
                return reply;
            }
            Command::Renew(renewal) => self.fence.renew(renewal, clock()),
            Command::Code(status) => {
                self.code = status;
                self.publish();
            }
            Command::Terminate { grace } => self.terminate(grace),
            Command::Interrupt { grace } if self.shutdown == Shutdown::None => {
                self.terminate(grace);
                info!("interrupt again to kill the run at once");
            }
            Command::Interrupt { .. } => {
                self.apply(Event::Terminate { grace: Duration::ZERO });
            }
            Command::EndNow(reason) => {
                info!(reason, "the agent ends now");
                self.apply(Event::Stop { generation: None, first: FirstSignal::Term, grace: Duration::ZERO });
                self.shutdown = self.shutdown.hurried(Instant::now() + LEFTOVERS_LIMIT);
            }
        }
        Reply::Done
    }

    fn configure(&mut self, assignment: Assignment, renewal: Option<Renewal>) -> Reply {
        let before = self.state.phase.generation();
        let answer = self.apply(Event::Config(assignment));
        if self.state.phase.generation() != before {
            (self.helpers, self.posts) = (Helpers::default(), Posts::default());
        }
        match renewal {
            // If the request is late, `keep_fence` ends the run before its start.
            Some(renewal) => self.fence.renew(renewal, clock()),
            None if answer == Reply::Done => self.fence.lift(),
            None => {}
        }
        answer
    }

    fn terminate(&mut self, grace: Duration) {
        if self.shutdown == Shutdown::None {
            info!(grace_seconds = grace.as_secs(), "received SIGTERM or SIGINT");
            let shares = Shares::of(grace);
            self.apply(Event::Terminate { grace: shares.run });
            self.shutdown = Shutdown::Terminated(Instant::now() + shares.agent);
        }
    }

    /// Finds out what has happened since the last call: ended processes, deadlines, the end of the output.
    fn observe(&mut self) {
        let watched = WatchedChildren { mains: self.state.phase.main_processes(), warm: self.warm.pid() };
        let reaped = self.reaper.reap(&watched);
        if reaped.is_warm_gone {
            self.warm.has_ended();
        }
        let cause = self.state.phase.cause();
        let explained = |(pid, outcome)| (pid, self.memory.explain(outcome, cause));
        let ends: Vec<(Pid, ExitOutcome)> = reaped.mains.into_iter().map(explained).collect();
        if ends.iter().any(|(_, outcome)| matches!(outcome, ExitOutcome::OutOfMemory { .. })) {
            self.warm.end("a run was killed because memory ran out");
        }
        if !ends.is_empty() {
            self.apply(Event::MainsEnded(ends));
        }
        self.apply(Event::Tick);
        if let RunPhase::Stopping { kill: Kill::At(_), .. } = self.state.phase {
            // TensorFlow replaces the handler of SIGTERM while it starts, so the script may have missed the signal.
            self.helpers.ask_to_leave();
        }
        self.keep_fence();
        if !matches!(self.state.phase, RunPhase::Ending { .. }) {
            return;
        }
        if self.reaper.has_children_besides(self.warm.pid()) {
            self.end_children();
        } else if self.saying.as_ref().is_none_or(JoinHandle::is_finished)
            && let Some(stderr) = self.run_output.finish(Instant::now())
        {
            self.conclude(&stderr);
        }
    }

    /// Ends what the main process has left behind. After a success, these processes get time to end by themselves, such
    /// as an upload in the background.
    fn end_children(&mut self) {
        let (now, warm) = (Instant::now(), self.warm.pid());
        let ended = matches!(&self.state.phase, RunPhase::Ending { end, .. } if end.is_own_success());
        match self.background {
            Background::New if ended => self.background = Background::Awaited(now + BACKGROUND_PAUSE),
            Background::Awaited(until) if ended && until <= now => {
                self.background = Background::Terminated(now + BACKGROUND_GRACE);
                let count = self.reaper.signal_children_besides(warm, Signal::TERM);
                let processes = if count == 1 { "process" } else { "processes" };
                self.say(format!("the script has ended: SIGTERM to {count} background {processes}, SIGKILL 2 s later"));
            }
            Background::Awaited(until) | Background::Terminated(until) if ended && until > now => {}
            Background::New | Background::Awaited(_) | Background::Terminated(_) => {
                self.reaper.signal_children_besides(warm, Signal::KILL);
            }
        }
    }

    /// If the last poll of a master is too long ago, kills the run or prevents its start. A master may now restart the
    /// job without this agent.
    fn keep_fence(&mut self) {
        if self.state.phase.may_go_on() && self.fence.has_passed(clock()) {
            warn!("the last poll of a master is too long ago: the run is killed");
            self.apply(Event::Stop { generation: None, first: FirstSignal::Term, grace: Duration::ZERO });
        }
    }

    /// Ends a run that has no processes left. `stderr` is the end of each main process's stderr.
    fn conclude(&mut self, stderr: &[Vec<u8>]) {
        let RunPhase::Ending { run, end: RunEnd { outcome, process, cause, at } } = &self.state.phase else { return };
        self.helpers.finish();
        self.stacks.send_replace(vec![]);
        let others_printed = stderr.iter().enumerate().any(|(index, other)| index != *process && !other.is_empty());
        let stderr = stderr.get(*process).map_or(&[][..], Vec::as_slice);
        let tail = stderr_tail(stderr);
        let lasted = Duration::from_millis(at.0.saturating_sub(run.started_at.0));
        let attempt = EndedRun { command: &self.template.command, outcome, stderr: &tail, lasted };
        // Other processes may have run lines although this one could not, for example because a network disk failed.
        let may_have_run = run.assignment.has_several() && (others_printed || lasted > ALL_FAIL_LIMIT);
        let not_started = if *cause == EndCause::Own && !may_have_run { attempt.why_nothing_ran() } else { None };
        // A script that was stopped may have failed a moment before.
        let has_failed = matches!(outcome, ExitOutcome::Code(1..) | ExitOutcome::Signal(_));
        let exception = if has_failed { exception::first_line(&String::from_utf8_lossy(stderr)) } else { None };
        self.apply(Event::AllEnded { exception, stderr_tail: tail, not_started });
    }

    /// Changes the state, carries out the resulting action, and publishes the status. No other method changes the
    /// state.
    fn apply(&mut self, event: Event) -> Reply {
        let Step { state, reply, action } = step(mem::take(&mut self.state), event, now());
        self.state = state;
        match action {
            Some(Action::Start(environments)) => self.start(&environments),
            Some(Action::AbandonStart) => self.warm.drop_run(),
            Some(Action::Interrupt(mains)) => mains.into_iter().for_each(|main| signal_main(main, Signal::INT)),
            Some(Action::Terminate(mains)) => mains.into_iter().for_each(|main| signal_main(main, Signal::TERM)),
            Some(Action::Kill(mains)) => mains.into_iter().for_each(kill_group),
            Some(Action::EndAgent) => self.shutdown = Shutdown::Now,
            None => {}
        }
        if !self.state.phase.is_active() {
            self.posts.close();
        }
        self.publish();
        reply
    }

    /// Adds a sentence to the script's output. The disk may stall, so another thread writes it.
    fn say(&mut self, sentence: String) {
        let output = Arc::clone(&self.output);
        let write = move || output.append(Stream::Stderr, format!("[muster: {sentence}]\n").as_bytes());
        self.saying = Some(spawn_blocking(write));
    }

    /// Publishes the status. If it has news, wakes the waiting requests.
    fn publish(&self) {
        self.status.send_if_modified(|status| {
            let seq = status.seq;
            let reports = ScriptReports { helpers: self.helpers.reports(), posted: self.posts.newest() };
            let (warm, boot_id) = (self.warm.state(), status.boot_id.clone());
            let new = RunStatus { seq, ..status_of(&self.state.phase, self.code, warm, reports, boot_id) };
            // A new step alone is no news. Long polls get the step with their next answer.
            let is_news = new.is_news_after(status);
            if is_news || new.state != status.state {
                log_change(&new);
            }
            *status = RunStatus { seq: seq + u64::from(is_news), ..new };
            is_news
        });
    }

    /// When to observe next, if no event comes before.
    fn alarm(&self) -> Option<Instant> {
        let of_phase = match &self.state.phase {
            RunPhase::Stopping { kill: Kill::At(next) | Kill::Interrupted { terminate: next, .. }, .. } => Some(*next),
            RunPhase::Ending { .. } => Some(self.run_output.deadline().unwrap_or(Instant::now() + SWEEP_INTERVAL)),
            RunPhase::Idle
            | RunPhase::Configured { .. }
            | RunPhase::Starting { .. }
            | RunPhase::Running { .. }
            | RunPhase::Stopping { kill: Kill::Sent, .. }
            | RunPhase::Exited { .. } => None,
        };
        let fenced = if self.state.phase.may_go_on() { next_look(&self.fence) } else { None };
        let look = fenced.map(|left| Instant::now() + left);
        of_phase.into_iter().chain(self.shutdown.deadline()).chain(look).min()
    }

    /// Kills every process that the runs have left behind.
    async fn kill_leftovers(&mut self) {
        let limit = Instant::now() + LEFTOVERS_LIMIT;
        let deadline = self.shutdown.signal_deadline().unwrap_or(limit);
        while self.reaper.has_children_after_reaping() {
            if deadline <= Instant::now() {
                warn!("SIGKILL has not ended every process");
                return;
            }
            self.reaper.signal_children_besides(None, Signal::KILL);
            tokio::select! {
                () = self.reaper.child_ended() => {}
                () = until(Some(Instant::now() + SWEEP_INTERVAL)) => {}
            }
        }
    }
}

async fn until(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => sleep_until(alarm.into()).await,
        None => pending().await,
    }
}

/// The present time of both clocks. A wall clock before 1970 counts as 1970.
fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { monotonic: Instant::now(), wall: UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)) }
}
