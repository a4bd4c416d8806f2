//! The processes of a job's replicas: how many there are, and which jobs may have several.

use crate::group::Group;
use crate::ids::ReplicaId;
use crate::job::{JobSpec, SpecError, Strategy};
use crate::processes::{NprocName, NprocPerNode, PROCESSES_MAX};
use crate::routes::AGENT_PORT;

impl JobSpec {
    /// The number of processes of this replica. Only replicas that train have several.
    pub fn processes_of(&self, replica: ReplicaId) -> u32 {
        if replica.role.trains() { self.nproc_per_node } else { 1 }
    }

    /// Sets the number of processes.
    pub(crate) fn with_processes(self, wish: Option<NprocPerNode>) -> Result<Self, SpecError> {
        let nproc_per_node = match wish {
            None => 1,
            Some(NprocPerNode::Number(number)) => number,
            Some(NprocPerNode::Named(NprocName::Gpu)) => self.gpus_of_each().ok_or(SpecError::NoGpusToCount)?,
        };
        Ok(Self { nproc_per_node, ..self })
    }

    /// The number of GPUs of each replica that trains; `None` if it is 0, or differs.
    fn gpus_of_each(&self) -> Option<u32> {
        let mut numbers = self.trainers().map(|replica| self.gpus_of(replica));
        let first = numbers.next()??;
        (first > 0 && numbers.all(|number| number == Some(first))).then_some(first)
    }

    pub(crate) fn check_processes(&self) -> Result<(), SpecError> {
        match self.nproc_per_node {
            1 => return Ok(()),
            0 => return Err(SpecError::ProcessCount(0)),
            many if many > PROCESSES_MAX => return Err(SpecError::ProcessCount(many)),
            _ => {}
        }
        if self.strategy == Strategy::ParameterServer {
            return Err(SpecError::ProcessesWithServers);
        }
        if self.chief_num > 0 {
            return Err(SpecError::ProcessesWithChief);
        }
        if self.global_batch().is_some() {
            return Err(SpecError::ProcessesWithBatch);
        }
        let ports = |group: &Group| group.template.as_ref().map(|template| template.tf_port);
        for (place, port) in self.groups.iter().map(ports).enumerate() {
            let Some(port) = port else { continue };
            let last = u32::from(port) + self.nproc_per_node - 1;
            if (u32::from(port)..=last).contains(&AGENT_PORT.into()) || last > u16::MAX.into() {
                return Err(SpecError::GroupPort { group: place + 1, port });
            }
        }
        Ok(())
    }
}
