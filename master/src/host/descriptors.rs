//! File descriptors: how many this process may open, and for how many pods of this host they suffice.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// Descriptors of this process that serve no pod: records, runtime, listener, some callers.
const OWN: u64 = 64;
/// Descriptors for one pod of this host: its stdin, its pidfd, its TensorFlow port, its output file, the file of the
/// output's times, and connections for its status, its output and one call.
const PER_POD: u64 = 8;

/// The descriptor limits of this process.
#[derive(Debug, Clone, Copy)]
pub struct Descriptors {
    inherited: Rlimit,
    most: u64,
}

/// The job needs more descriptors than this process may open.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the job has {replicas} replicas, but this master can run at most {fit}: each replica needs {PER_POD} open files, \
     and the master's limit is {most}; ask for fewer replicas, or raise the limit (ulimit -Hn) and restart the master"
)]
pub struct TooMany {
    replicas: u64,
    fit: u64,
    most: u64,
}

impl Descriptors {
    /// Raises this process's soft limit of open files to its hard limit.
    pub fn raise() -> io::Result<Self> {
        let inherited = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: inherited.maximum, maximum: inherited.maximum })?;
        // Without a hard limit, the number is unlimited.
        Ok(Self { inherited, most: inherited.maximum.unwrap_or(u64::MAX) })
    }

    /// Gives a child the limits that this process inherited. Programs that close all descriptors up to their limit, or
    /// use select(2), expect the usual limit.
    ///
    /// # Errors
    /// Fails with the error of the kernel, for example because the child has ended.
    pub(crate) fn give_back(self, child: Pid) -> io::Result<()> {
        prlimit(Some(child), Resource::Nofile, self.inherited)?;
        Ok(())
    }

    /// Refuses a job whose own replicas need too many descriptors. Does not consider other jobs.
    pub(crate) fn admit(self, replicas: u64) -> Result<(), TooMany> {
        let fit = self.most.saturating_sub(OWN) / PER_POD;
        if replicas <= fit { Ok(()) } else { Err(TooMany { replicas, fit, most: self.most }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_admitted_up_to_the_descriptor_limit() {
        let inherited = Rlimit { current: Some(1024), maximum: Some(1024) };
        let limits = Descriptors { inherited, most: 1024 };
        assert_eq!(limits.admit(120), Ok(()));
        assert_eq!(limits.admit(121), Err(TooMany { replicas: 121, fit: 120, most: 1024 }));
        assert_eq!(Descriptors { most: 10, ..limits }.admit(1), Err(TooMany { replicas: 1, fit: 0, most: 10 }));
    }
}
