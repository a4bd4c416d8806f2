//! One run of the crash matrix: a client submits a job, faults strike the masters, successors replace them, and the
//! checker reads the evidence.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use master::mutex::Mutex;
use master::registry::{Jobs, JobsError, Submitted};
use master::store::{JobStore, Wish};
use protocol::patch::JobPatch;
use protocol::view::{JobState, JobView};
use testkit::chaos::{Deed, Fault, Point, Strike, Struck};
use testkit::fake::FakeStore;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::chaos::checker;
use crate::chaos::evidence::{Answers, Evidence};
use crate::chaos::place::{Master, Place, Scenario, ticks};
use crate::service::delivering::{keep, keep_files};

/// How long a run may take. With [`Thaw::Late`], [`LONG`] is added. Apart from that, the longest wait is 15 s, for a
/// pod that ends late.
const DEADLINE: Duration = Duration::from_secs(60);

/// The minimum time that a freeze or a delay lasts with [`Thaw::Late`]. It is longer than any timeout of a master.
const LONG: Duration = Duration::from_secs(31);

/// How long the masters may take to remove the job's output.
const CLEANUP: Duration = Duration::from_secs(10);

/// The scenario and the faults of one run.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    pub(crate) scenario: Scenario,
    pub(crate) strikes: Vec<Strike>,
    pub(crate) thaw: Thaw,
}

/// When a frozen master continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thaw {
    /// When the job has ended under the master's successor.
    AtTheEnd,
    /// As soon as the master's successor holds the job. Both masters then drive the job for a moment. If the fault is at
    /// an order of new batch sizes, the successor has also ordered sizes, so the order of the frozen master is late.
    AtOnce,
    /// Like [`Thaw::AtTheEnd`], but [`LONG`] later.
    Late,
}

/// The outcome of one run.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) play: Play,
    /// How many of the strikes happened.
    pub(crate) struck: usize,
    pub(crate) took: Duration,
    /// The broken promises, each as a sentence.
    pub(crate) violations: Vec<String>,
    pub(crate) evidence: Evidence,
}

impl Play {
    /// Whether a fault of this play is at this deed.
    pub(crate) fn strikes_at(&self, deed: Deed) -> bool {
        self.strikes.iter().any(|strike| strike.point.deed() == deed)
    }

    /// Plays the run with a correct store.
    pub(crate) async fn run(self) -> Played {
        let deadline = if self.thaw == Thaw::Late { DEADLINE + LONG } else { DEADLINE };
        self.run_over(deadline, |store| Arc::new(store)).await
    }

    /// Plays the run for at most `deadline`. `seen` may wrap the store for the masters.
    pub(crate) async fn run_over(
        self,
        deadline: Duration,
        seen: impl FnOnce(FakeStore) -> Arc<dyn JobStore>,
    ) -> Played {
        let began = Instant::now();
        let stage = Stage::new(&self, Place::new(self.scenario, seen));
        let done = timeout(deadline, stage.play()).await;
        let mut evidence = Evidence::gather(&stage.place, self.scenario.expected()).await;
        evidence.answers = stage.answers();
        evidence.calm = stage.calm();
        evidence.is_overlapping = self.thaw == Thaw::AtOnce;
        let struck = self.strikes.len() - stage.current.borrow().chaos.left().len();
        let is_unconfirmed =
            |strike: &&Strike| (strike.point, strike.fault) == (Point::After(Deed::CreatePod), Fault::AnswerLost);
        evidence.unconfirmed_pods =
            u32::try_from(self.strikes[..struck].iter().filter(is_unconfirmed).count()).expect("a run has few strikes");
        let mut violations = checker::violations(&evidence);
        if done.is_err() {
            violations.insert(0, format!("the run did not finish in {deadline:?}"));
        }
        Played { play: self, struck, took: began.elapsed(), violations, evidence }
    }
}

/// A run in progress.
struct Stage {
    scenario: Scenario,
    thaw: Thaw,
    /// Whether a fault strikes at an order of new batch sizes.
    strikes_an_order: bool,
    place: Place,
    current: watch::Sender<Arc<Master>>,
    frozen: Mutex<Vec<Arc<Master>>>,
    /// Masters that have thawed and run beside their successors.
    thawed: Mutex<Vec<Arc<Master>>>,
    answers: Mutex<Answers>,
    calm: Mutex<Vec<(Instant, Instant)>>,
}

impl Stage {
    fn new(play: &Play, place: Place) -> Self {
        let first = place.master("master-1", "logs-1", play.strikes.clone());
        Self {
            scenario: play.scenario,
            thaw: play.thaw,
            strikes_an_order: play.strikes_at(Deed::Notify),
            place,
            current: watch::Sender::new(first),
            frozen: Mutex::default(),
            thawed: Mutex::default(),
            answers: Mutex::default(),
            calm: Mutex::default(),
        }
    }

    fn answers(&self) -> Answers {
        self.answers.lock().clone()
    }

    fn calm(&self) -> Vec<(Instant, Instant)> {
        self.calm.lock().clone()
    }

    async fn play(&self) {
        tokio::select! {
            () = self.client() => {}
            () = self.supervise() => {}
            () = self.place.train(self.scenario) => {}
        }
    }

    /// Replaces each master that no longer answers, and ends each delay after [`Self::stall`].
    async fn supervise(&self) {
        let mut folder = "logs-1".to_owned();
        for number in 2.. {
            let master = self.current.borrow().clone();
            let is_frozen = loop {
                match master.chaos.struck().await {
                    Fault::Crash | Fault::Kill => {
                        master.die().await;
                        break false;
                    }
                    Fault::Freeze => {
                        self.frozen.lock().push(Arc::clone(&master));
                        // The frozen master still uses its folder.
                        folder = format!("logs-{number}");
                        break true;
                    }
                    Fault::Delay => {
                        self.stall().await;
                        master.chaos.release();
                    }
                    Fault::Panic | Fault::Error | Fault::AnswerLost => {}
                }
            };
            let boot_id = format!("master-{number}");
            let told = self.place.notices();
            self.current.send_replace(self.place.master(&boot_id, &folder, master.chaos.hand_over()));
            if self.thaw == Thaw::AtOnce && is_frozen {
                self.place.held_by(&boot_id).await;
                if self.strikes_an_order {
                    self.place.told_more_than(told).await;
                }
                master.chaos.release();
            }
        }
    }

    /// Submits the job, waits for its end and deletes it. Each request is sent to the current master.
    async fn client(&self) {
        let spec = &self.place.spec;
        let uid = self.ask(async |jobs| match jobs.requests.submit(spec.clone()).await {
            Ok(Submitted::Created(job) | Submitted::Existing(job)) => Some(job.view.borrow().uid.clone()),
            Err(JobsError::Code(_)) => {
                keep(jobs.code());
                None
            }
            Err(_) => None,
        });
        let uid = uid.await;
        self.answers.lock().accepted.push(uid);
        if self.scenario == Scenario::Cancelled {
            let over = |view: &JobView| view.result.is_some();
            self.shown(|view| view.state == JobState::Running && view.restarts.counted == 1 || over(view)).await;
            self.wish(Wish::Cancel).await;
        }
        if self.scenario == Scenario::Suspended {
            self.place.trains().await;
            self.suspend(true).await;
            self.shown(|view| view.state == JobState::Suspended).await;
            self.suspend(false).await;
        }
        if self.scenario == Scenario::Pushed {
            self.place.trains().await;
            self.push("print('hello again')").await;
            let view = self.shown(|view| view.state == JobState::Halted || view.result.is_some()).await;
            if view.state == JobState::Halted {
                self.push("print('and again')").await;
            }
        }
        let is_over = |view: &JobView| view.result.is_some() && view.state != JobState::Stopping;
        let view = self.shown(is_over).await;
        self.answers.lock().results.extend(view.result);
        self.thaw().await;
        self.wish(Wish::Delete).await;
        self.ask(async |jobs| {
            let is_gone = jobs.table.find(&spec.name).is_none();
            let record = self.place.store.get(&spec.name).await.expect("the store in memory failed");
            (is_gone && record.is_none()).then_some(())
        })
        .await;
        self.thaw().await;
        let master = self.current.borrow().clone();
        master.chaos.undelayed().await;
        self.place.quiet().await;
        // A master that has just thawed learns of the delete last, and then removes the output in its folder.
        let _ = timeout(CLEANUP, self.place.cleared()).await;
    }

    /// Waits for as long as a freeze or a delay must last.
    async fn stall(&self) {
        if self.thaw == Thaw::Late {
            sleep(LONG).await;
        }
        self.place.quiet().await;
    }

    /// Thaws the frozen masters and waits until no new event is recorded. With [`Thaw::AtOnce`], `supervise` has
    /// already thawed them.
    async fn thaw(&self) {
        let frozen = std::mem::take(&mut *self.frozen.lock());
        if frozen.is_empty() {
            return;
        }
        if self.thaw == Thaw::AtOnce {
            return self.thawed.lock().extend(frozen);
        }
        self.stall().await;
        let begin = Instant::now();
        frozen.iter().for_each(|master| master.chaos.release());
        self.place.quiet().await;
        self.calm.lock().push((begin, Instant::now()));
        self.thawed.lock().extend(frozen);
    }

    async fn wish(&self, wish: Wish) {
        self.ask(async |jobs| match jobs.requests.wish(&self.place.spec.name, wish).await {
            Ok(()) | Err(JobsError::Unknown(_)) => Some(()),
            Err(_) => None,
        })
        .await;
    }

    /// Stores code with this script in the master, and pushes the code.
    async fn push(&self, script: &'static str) {
        self.ask(async |jobs| {
            let code = Some(keep_files(jobs.code(), [script, "NAME = 1"]));
            match jobs.requests.patch(&self.place.spec.name, JobPatch { code, ..JobPatch::default() }).await {
                // An earlier attempt may have succeeded although its answer was lost.
                Ok(_) | Err(JobsError::TakesNoCode(_)) => Some(()),
                Err(_) => None,
            }
        })
        .await;
    }

    async fn suspend(&self, is_suspended: bool) {
        let patch = JobPatch { suspended: Some(is_suspended), ..JobPatch::default() };
        self.ask(async |jobs| jobs.requests.patch(&self.place.spec.name, patch).await.ok()).await;
    }

    /// Waits until a master shows a view of the job that `test` accepts.
    async fn shown(&self, test: impl Fn(&JobView) -> bool) -> JobView {
        self.ask(async |jobs| {
            let mut view = jobs.table.find(&self.place.spec.name)?.view;
            let seen = view.wait_for(&test).await.ok()?.clone();
            Some(seen)
        })
        .await
    }

    /// Asks the current master, and then its successors, until `ask` returns an answer.
    async fn ask<T>(&self, ask: impl AsyncFn(&Jobs) -> Option<T>) -> T {
        let (mut masters, mut ticks) = (self.current.subscribe(), ticks());
        loop {
            let master = masters.borrow_and_update().clone();
            let answer = AssertUnwindSafe(async {
                master.jobs.complete().await;
                ask(&master.jobs).await
            });
            tokio::select! {
                answer = answer.catch_unwind() => match answer {
                    Ok(Some(answer)) => return answer,
                    Ok(None) => drop(ticks.tick().await),
                    // A handler that looks for code may pass the same points as a driver. Its client gets status 500.
                    Err(panic) if panic.is::<Struck>() => drop(ticks.tick().await),
                    Err(panic) => resume_unwind(panic),
                },
                // A new master has replaced `master`. The next round of the loop asks the new master.
                _ = masters.changed() => {}
            }
        }
    }
}
