//! What ends an agent other than a request: signals, the end of its parent, and a long time without requests.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use crate::config::Supervision;
use crate::http::Agent;
use crate::run::Command;
use crate::run::event::Event;

/// The signals that end an agent, and its parent.
pub(crate) struct Stops {
    terminate: Signal,
    interrupt: Signal,
    supervision: Supervision,
    /// Time from such a signal to SIGKILL.
    grace: Duration,
}

impl Stops {
    /// Takes over the signals.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn new(supervision: Supervision, grace: Duration) -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, supervision, grace })
    }

    /// Passes each on to the runner.
    pub(crate) async fn pass_on(mut self, commands: mpsc::Sender<Command>) {
        let mut parent_gone = pin!(parent_gone(self.supervision));
        loop {
            let command = tokio::select! {
                _ = self.terminate.recv() => Command::Terminate { grace: self.grace },
                _ = self.interrupt.recv() => Command::Terminate { grace: self.grace },
                () = &mut parent_gone => break,
            };
            // An agent that is ending takes no more commands.
            let _ = commands.send(command).await;
        }
        // The dead master cannot wait for a graceful end, and its successor needs the ports.
        let _ = commands.send(Command::ParentGone).await;
    }
}

/// Returns when stdin has ended, if the parent holds its other end.
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

/// Ends an agent whose run has ended, after `linger` without a request.
pub(crate) async fn retire(agent: Agent, linger: Duration) {
    loop {
        agent.activity.abandoned(agent.status.clone(), linger).await;
        info!(linger_seconds = linger.as_secs(), "no request within the linger");
        let (reply, answer) = oneshot::channel();
        let finish = Command::Request { event: Event::Finish, reply };
        // If a run was started at the last moment, this is refused, and the wait begins anew.
        if agent.commands.send(finish).await.is_err() || answer.await.is_err() {
            return;
        }
    }
}
