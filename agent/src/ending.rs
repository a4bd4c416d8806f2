//! Ends the agent on a signal, when its parent ends, or after a long time without requests.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use crate::agent::Agent;
use crate::config::Supervision;
use crate::run::Command;
use crate::run::event::Event;

/// The causes that end an agent from outside: two signals, and the end of its parent.
pub(crate) struct Stops {
    terminate: Signal,
    interrupt: Signal,
    supervision: Supervision,
    /// Time from SIGTERM or SIGINT to SIGKILL.
    grace: Duration,
}

impl Stops {
    /// Installs the signal handlers.
    pub(crate) fn new(supervision: Supervision, grace: Duration) -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, supervision, grace })
    }

    /// Passes the signals and the end of the parent on to the runner.
    pub(crate) async fn pass_on(mut self, agent: Agent) {
        let mut parent_gone = pin!(parent_gone(self.supervision));
        loop {
            let command = tokio::select! {
                _ = self.terminate.recv() => Command::Terminate { grace: self.grace },
                _ = self.interrupt.recv() => Command::Interrupt { grace: self.grace },
                () = &mut parent_gone => break,
            };
            agent.tell(command).await;
        }
        // End without a grace: the master is dead, and the next master needs the ports.
        agent.tell(Command::EndNow("the parent process has ended")).await;
    }
}

/// Returns when the parent has closed the agent's stdin. Never returns in a pod.
async fn parent_gone(supervision: Supervision) {
    match supervision {
        Supervision::Pod => std::future::pending().await,
        Supervision::Parent => {
            let mut stdin = tokio::io::stdin();
            let mut ignored = [0; 256];
            while matches!(stdin.read(&mut ignored).await, Ok(1..)) {}
        }
    }
}

/// Ends the agent when its run has ended and no request was open for `linger`. Does nothing without a `linger`.
pub(crate) async fn retire(agent: Agent, linger: Option<Duration>) {
    let Some(linger) = linger else { return };
    loop {
        agent.activity.abandoned(agent.status.clone(), linger).await;
        info!(linger_seconds = linger.as_secs(), "after the run, no request was open for the linger time");
        // If a run was started meanwhile, the runner refuses to finish. Then wait again.
        if agent.ask(Command::Apply(Event::Finish)).await.is_none() {
            return;
        }
    }
}
