//! Finds the agent to put into an image: the file of `--agent-binary`, else the file `agent` beside this program, else
//! the master's agent.

use std::path::PathBuf;

use bytes::Bytes;
use master_client::{MasterClient, MasterError};

use super::elf::{ElfMachine, machine_of_static};
use super::layer::digest;
use crate::ending::error::Error;
use crate::output::Notes;
use crate::programs;

const AGENT_HINT: &str = "make build puts an agent beside the client; or give --agent-binary PATH";

/// An agent that is a static program, so it starts in any image for its processor.
#[derive(Debug, Clone)]
pub(super) struct AgentProgram {
    pub(super) bytes: Bytes,
    pub(super) sha256: String,
    machine: ElfMachine,
    /// The agent's path, or the master's address, for messages.
    origin: String,
}

/// Where to look for agents.
pub(crate) struct AgentSources {
    /// `--agent-binary`. With this flag, no other agent is used.
    pub(crate) named: Option<PathBuf>,
    pub(crate) master: Option<MasterClient>,
}

impl AgentSources {
    /// Returns a static agent, whatever its processor. If the file beside this program is missing or not static,
    /// fetches the master's agent.
    pub(super) async fn find(&self, notes: &Notes) -> Result<AgentProgram, Error> {
        if let Some(path) = &self.named {
            let unreadable = |error| Error::input(format!("--agent-binary: read {}", path.display())).because(error);
            let bytes = std::fs::read(path).map_err(unreadable)?;
            return program(bytes.into(), path.display().to_string());
        }
        let found = programs::agent().and_then(|path| std::fs::read(&path).ok().map(|bytes| (path, bytes.into())));
        let Some((path, bytes)) = found else {
            return self.fetch("there is none beside this program").await;
        };
        match program(bytes, path.display().to_string()) {
            Ok(program) => Ok(program),
            Err(error) if self.master.is_some() => {
                notes.say(&format!("{error}; using the master's agent"));
                self.fetch("").await
            }
            Err(error) => Err(error),
        }
    }

    /// `found`, or the master's agent if `found` is for another processor than the image.
    pub(super) async fn fitting(
        &self,
        found: AgentProgram,
        image: &str,
        architecture: &str,
    ) -> Result<AgentProgram, Error> {
        // An agent cannot be checked against a processor whose ELF number Muster does not know.
        let Some(wanted) = ElfMachine::of_architecture(architecture) else { return Ok(found) };
        if found.machine == wanted {
            return Ok(found);
        }
        let may_fetch = self.named.is_none() && self.master.is_some();
        let other = if may_fetch { self.fetch("").await? } else { found };
        if other.machine == wanted {
            return Ok(other);
        }
        let AgentProgram { origin, machine: agent, .. } = other;
        let sentence = format!("the agent {origin} is for {agent}, but the image {image} is for {wanted}");
        let hint = "give an agent for that processor with --agent-binary PATH, or another --image";
        Err(Error::input(sentence).hint(hint))
    }

    async fn fetch(&self, otherwise: &str) -> Result<AgentProgram, Error> {
        let Some(master) = &self.master else {
            return Err(Error::input(format!("no agent to put into the image: {otherwise}")).hint(AGENT_HINT));
        };
        let bytes = master.agent_program().await.map_err(not_fetched)?;
        program(bytes, format!("from {}", master.url()))
    }
}

fn program(bytes: Bytes, origin: String) -> Result<AgentProgram, Error> {
    match machine_of_static(&bytes) {
        Ok(machine) => Ok(AgentProgram { sha256: digest(&bytes), bytes, machine, origin }),
        Err(fault) => {
            let hint = "build a static agent with make build, or name one with --agent-binary PATH";
            Err(Error::input(format!("the agent {origin} {fault}")).hint(hint))
        }
    }
}

/// The error for an agent that the master did not send. If the master cannot be reached, a hint about the master is
/// more useful than a hint about the agent.
fn not_fetched(error: MasterError) -> Error {
    let has_no_agent = error.is_not_found();
    let source = Error::from(error);
    let of_master = source.hint.clone();
    let mut error = Error::master("fetch the agent from the master").hint(AGENT_HINT).because(source);
    if !has_no_agent {
        error.hint = of_master;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::super::elf;
    use super::*;

    #[tokio::test]
    async fn an_agent_from_the_flag_must_be_static_and_must_fit_the_image_if_its_processor_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let sources = AgentSources { named: Some(path.clone()), master: None };
        let missing = sources.find(&Notes::new()).await.unwrap_err();
        assert_eq!(missing.to_string(), format!("--agent-binary: read {}", path.display()));
        std::fs::write(&path, elf::program(62, &[3])).unwrap();
        let dynamic = sources.find(&Notes::new()).await.unwrap_err().to_string();
        assert!(dynamic.ends_with("is dynamically linked: it does not start in an image that lacks its libraries"));
        std::fs::write(&path, elf::program(62, &[1])).unwrap();
        let found = sources.find(&Notes::new()).await.unwrap();
        assert!(sources.fitting(found.clone(), "digits", "amd64").await.is_ok());
        assert!(sources.fitting(found.clone(), "digits", "mips").await.is_ok());
        let foreign = sources.fitting(found, "digits", "arm64").await.unwrap_err();
        let expected = format!("the agent {} is for amd64, but the image digits is for arm64", path.display());
        assert_eq!(foreign.to_string(), expected);
    }

    #[test]
    fn the_hint_about_a_missing_agent_is_about_the_master_unless_the_master_has_no_agent() {
        let unreachable = not_fetched(MasterError::Silent { url: "http://h:1".into() });
        assert_eq!(unreachable.to_string(), "fetch the agent from the master");
        assert!(unreachable.hint.unwrap().starts_with("is the master running"));
        let answer = r#"{"status": 404, "code": "unknown_route", "detail": "no agent"}"#;
        let without_agent = not_fetched(MasterError::Refused(serde_json::from_str(answer).unwrap()));
        assert_eq!(without_agent.hint.unwrap(), AGENT_HINT);
    }

    #[tokio::test]
    async fn a_missing_agent_is_an_error_if_there_is_no_master() {
        let error = AgentSources { named: None, master: None }.fetch("there is none").await.unwrap_err();
        assert_eq!(error.to_string(), "no agent to put into the image: there is none");
    }
}
