//! Injected faults. A fault can strike before and after each action of a master on a record, a pod or an agent. This
//! file decides when a fault strikes. The wrappers of store, back end and agent client ask this file at each point.

mod agents;
mod backend;
mod point;
mod promises;
mod store;

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::watch;
use tracing::warn;

pub use self::backend::ChaosBackend;
pub use self::point::{Deed, Fault, NoStrike, Point, Strike};
pub use self::promises::broken_promises;
pub use self::store::ChaosStore;
use master::agents::client::Interceptor;
use master::driver::Context;

/// The environment variable from which the program `chaos-master` reads its [`Strike`].
pub const STRIKE_VARIABLE: &str = "MUSTER_CHAOS";

/// The faults of one master. By default, a master has no faults.
#[derive(Debug, Default)]
pub struct Chaos(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// The coming strikes, in order.
    armed: VecDeque<Strike>,
    /// How often the master has passed the point of the next strike since the previous strike.
    passed: u32,
    condition: Condition,
    /// The fault that has struck and was not reported yet.
    struck: Option<Fault>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Condition {
    #[default]
    Sound,
    Delayed,
    Frozen,
    Dead,
}

/// A failure that this module has caused.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("a test injected a fault at {0}")]
pub struct Struck(Point);

impl Chaos {
    /// Arms these strikes in order. For each strike, counting starts when the previous strike has happened.
    pub fn new(strikes: impl IntoIterator<Item = Strike>) -> Arc<Self> {
        let armed = strikes.into_iter().collect();
        Arc::new(Self(watch::Sender::new(State { armed, ..State::default() })))
    }

    /// The strikes that have not happened yet.
    pub fn left(&self) -> Vec<Strike> {
        self.0.borrow().armed.iter().copied().collect()
    }

    /// Takes the strikes that have not happened yet, for the successor of this master.
    pub fn hand_over(&self) -> Vec<Strike> {
        let mut left = vec![];
        self.0.send_if_modified(|state| {
            left.extend(state.armed.drain(..));
            false
        });
        left
    }

    /// Waits until a fault has struck. Each fault is reported once.
    pub async fn struck(&self) -> Fault {
        let mut state = self.0.subscribe();
        // The wait cannot fail, because the sender lives as long as `self`.
        let _ = state.wait_for(|state| state.struck.is_some()).await;
        let mut struck = None;
        self.0.send_if_modified(|state| {
            struck = state.struck.take();
            false
        });
        struck.expect("only one task waits for a strike")
    }

    /// Waits until the master stops answering, permanently or for some time.
    pub async fn silenced(&self) {
        let is_silent = |state: &State| matches!(state.condition, Condition::Dead | Condition::Frozen);
        let _ = self.0.subscribe().wait_for(is_silent).await;
    }

    /// Waits until no action is delayed.
    pub async fn undelayed(&self) {
        let _ = self.0.subscribe().wait_for(|state| state.condition != Condition::Delayed).await;
    }

    /// Ends a freeze or a delay.
    pub fn release(&self) {
        self.0.send_modify(|state| match state.condition {
            Condition::Delayed | Condition::Frozen => state.condition = Condition::Sound,
            Condition::Sound | Condition::Dead => {}
        });
    }

    /// Runs an action. A fault can strike before the action and after it.
    pub(crate) async fn around<T, E>(
        &self,
        deed: Option<Deed>,
        work: impl Future<Output = Result<T, E>>,
        error: impl Fn(Struck) -> E,
    ) -> Result<T, E> {
        self.gate().await;
        let Some(deed) = deed else { return work.await };
        self.pass(Point::Before(deed)).await.map_err(&error)?;
        let answer = work.await?;
        self.pass(Point::After(deed)).await.map_err(&error)?;
        Ok(answer)
    }

    /// Waits until the master is alive and not frozen.
    pub(crate) async fn gate(&self) {
        let moves = |state: &State| matches!(state.condition, Condition::Sound | Condition::Delayed);
        let _ = self.0.subscribe().wait_for(moves).await;
    }

    async fn pass(&self, point: Point) -> Result<(), Struck> {
        self.gate().await;
        match self.strike(point) {
            None => Ok(()),
            Some(Fault::Error | Fault::AnswerLost) => Err(Struck(point)),
            // Like `panic!`, but without a message, because the panic is intended.
            Some(Fault::Panic) => std::panic::resume_unwind(Box::new(Struck(point))),
            Some(Fault::Kill) => {
                // After SIGKILL, no process is left that could report an error.
                let _ = kill_process(getpid(), Signal::KILL);
                std::future::pending().await
            }
            Some(Fault::Crash | Fault::Freeze | Fault::Delay) => {
                let _ = self.0.subscribe().wait_for(|state| state.condition == Condition::Sound).await;
                Ok(())
            }
        }
    }

    /// Counts one passing of this point. Returns the fault that strikes now, if any.
    fn strike(&self, point: Point) -> Option<Fault> {
        let mut struck = None;
        self.0.send_if_modified(|state| {
            let Some(strike) = state.armed.front().filter(|strike| strike.point == point) else { return false };
            let (fault, passing) = (strike.fault, strike.passing);
            state.passed += 1;
            if state.passed < passing {
                return false;
            }
            state.armed.pop_front();
            state.passed = 0;
            state.condition = match fault {
                Fault::Crash | Fault::Kill => Condition::Dead,
                Fault::Freeze => Condition::Frozen,
                Fault::Delay => Condition::Delayed,
                Fault::Panic | Fault::Error | Fault::AnswerLost => Condition::Sound,
            };
            (state.struck, struck) = (Some(fault), Some(fault));
            true
        });
        if let Some(fault) = struck {
            warn!(%point, %fault, "injecting a fault");
        }
        struck
    }
}

/// Wraps the store, the back end and the agent client of a master's drivers, so that faults can strike their calls.
pub fn strike(context: Context, chaos: &Arc<Chaos>) -> Context {
    let Context { store, backend, agents, agent_key, boot_id, code, tally, history } = context;
    Context {
        store: Arc::new(ChaosStore::new(store, Arc::clone(chaos))),
        backend: Arc::new(ChaosBackend::new(backend, Arc::clone(chaos))),
        agents: agents.intercepted_by(Arc::clone(chaos) as Arc<dyn Interceptor>),
        agent_key,
        boot_id,
        code,
        tally,
        history,
    }
}
