//! Starts the main processes of a run.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::Path;

use protocol::processes::rank_label;
use rustix::process::{Pid, Signal};
use tracing::warn;

use super::super::event::Event;
use super::super::helper::Helper;
use super::super::helpers::Helpers;
use super::super::output::RunOutput;
use super::{Background, Runner};
use crate::posts::Posts;
use crate::process::child::{self, Pipes, Start, describe_failure};
use crate::process::environment::EnvChanges;
use crate::pump::ProcessOutput;
use crate::stacks::StacksFile;
use crate::warm::News;

impl Runner {
    /// Starts a main process with each of these environments, or asks the warm interpreter to start them.
    pub(super) fn start(&mut self, environments: &[EnvChanges]) {
        if let Some(warm) = self.warm.pid() {
            // A start that was abandoned may have left a process, which is about to exit.
            self.reaper.signal_children_besides(Some(warm), Signal::KILL);
        }
        self.background = Background::New;
        self.memory.begin();
        self.find_helper();
        self.posts = Posts::default();
        let (mut starts, mut helpers, mut files) = (vec![], vec![], vec![]);
        for (index, changes) in environments.iter().enumerate() {
            match self.prepare(index, changes) {
                Ok((start, helper, file)) => {
                    starts.push(start);
                    helpers.push(helper);
                    files.push(file);
                }
                Err(error) => return self.fail_to_start(&error),
            }
        }
        self.helpers = Helpers::of_run(helpers, &mut self.helpers);
        self.stacks.send_replace(files);
        if let Err(starts) = self.warm.take(starts) {
            self.start_cold(starts);
        }
    }

    /// Prepares the start of one process. Only the first process, which has the lowest rank, gets an address for posts.
    fn prepare(&mut self, index: usize, changes: &EnvChanges) -> io::Result<(Start, Helper, Option<StacksFile>)> {
        let mut environment = self.template.environment_with(changes);
        if index == 0 {
            self.posts = Posts::of_run(&mut environment, self.template.helper.as_deref());
        }
        let command = self.template.command_with(&environment)?;
        let (ours, helper) = Helper::open()?;
        let (stacks, file) = open_stacks().unzip();
        Ok((Start { command, environment, helper, stacks }, ours, file))
    }

    /// Notes the folder of the helper, which may have another path than before.
    pub(super) fn find_helper(&mut self) {
        let folder = self.helper_folder.path().map(Path::to_owned);
        let before = mem::replace(&mut self.template.helper, folder);
        if before.is_some() && before != self.template.helper {
            // The interpreter has the old folder in its PYTHONPATH.
            self.warm.begin_again(&self.template);
        }
    }

    pub(super) fn take_news(&mut self, news: News) {
        match news {
            News::Changed => self.publish(),
            News::GaveUp(reason) => {
                self.say(format!("no warm start, because {reason}: the script starts in a new interpreter"));
                self.publish();
            }
            News::Forked(processes) => {
                let started = processes.into_iter().map(|process| (process.pid, process.go())).collect();
                self.have_started(started);
            }
            News::Cold(starts) => self.start_cold(starts),
            News::Outdated(starts) => {
                self.warm.begin_again(&self.template);
                self.start_cold(starts);
            }
        }
    }

    /// Starts the main processes in new interpreters, one after the other. If one cannot be started, the run is killed.
    fn start_cold(&mut self, starts: Vec<Start>) {
        let mut started = Vec::new();
        for start in starts {
            match child::start(&self.template, start) {
                Ok(process) => started.push(process),
                Err(error) if started.is_empty() => return self.fail_to_start(&error),
                Err(error) => {
                    self.have_started(started);
                    return self.fail_to_start(&error);
                }
            }
        }
        self.have_started(started);
    }

    fn have_started(&mut self, started: Vec<(Pid, Pipes)>) {
        let (pids, pipes): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        let assignment = self.state.phase.assignment().filter(|assignment| assignment.has_several());
        let label = |index: usize| {
            let rank = assignment?.rank(index);
            Some(rank.map_or_else(|| rank_label(index), rank_label))
        };
        let output = |(index, pipes)| ProcessOutput { pipes, label: label(index) };
        let outputs = pipes.into_iter().enumerate().map(output).collect();
        self.run_output = RunOutput::read(outputs, &self.output);
        self.apply(Event::Started(pids));
    }

    fn fail_to_start(&mut self, error: &io::Error) {
        let reason = describe_failure(&self.template, error);
        if self.state.phase.run().is_some() {
            self.say(reason.clone());
        }
        self.apply(Event::StartFailed(reason));
    }
}

/// Creates the file of a process's stacks. Returns a descriptor for the process, and the file. A process needs no
/// stacks, so it starts even if this fails.
fn open_stacks() -> Option<(OwnedFd, StacksFile)> {
    let created = StacksFile::create().and_then(|file| Ok((file.for_run()?, file)));
    created.inspect_err(|error| warn!(%error, "a process has no file for its stacks")).ok()
}
