//! The processes of a job's replicas: how many there are, and which jobs may have several.

use crate::ensure::ensure;
use crate::ids::ReplicaId;
use crate::job::{JobSpec, SpecError, Strategy};
use crate::processes::{NprocName, NprocPerNode, PROCESSES_MAX};

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
        let processes = self.nproc_per_node;
        ensure!((1..=PROCESSES_MAX).contains(&processes), SpecError::ProcessCount(processes));
        if processes == 1 {
            return Ok(());
        }
        ensure!(self.strategy == Strategy::AllReduce, SpecError::ProcessesWithServers);
        ensure!(self.chief_num == 0, SpecError::ProcessesWithChief);
        ensure!(self.global_batch().is_none(), SpecError::ProcessesWithBatch);
        Ok(())
    }
}
