//! The batches of a job: their sum, bounds and first weights, and the rules that they follow.

use crate::batching::{BATCH_SIZE_LIST_KEY, BadBatching, BatchBounds, Batching, GLOBAL_BATCH_MAX};
use crate::ensure::ensure;
use crate::group::Group;
use crate::ids::{ReplicaId, Role};
use crate::job::{JobSpec, SpecError};
use crate::pod::thousandths;
use crate::tf_config::members_max;

impl JobSpec {
    /// Samples of all workers together in one step, if the job divides them. If the spec does not name them, they are the
    /// sum of the workers' fixed batches. An elastic job must name them.
    pub fn global_batch(&self) -> Option<u32> {
        let fixed =
            |place| self.batch_of_group(place).filter(|bounds| bounds.min == bounds.max).map(|bounds| bounds.min);
        let sum = || self.training_places().map(fixed).try_fold(0_u32, |sum, size| Some(sum.saturating_add(size?)));
        self.batching.global_batch.or_else(|| self.worker_min.is_none().then(sum).flatten())
    }

    /// Whether replicas of this role have a batch. With parameter servers, a chief only directs the workers.
    pub fn has_batch(&self, role: Role) -> bool {
        role == Role::Worker || role == Role::Chief && self.ps_num == 0
    }

    /// The batch bounds of a replica: those of its group, or those of the job. `min` is the minimum if neither names
    /// one.
    pub fn batch_bounds(&self, place: ReplicaId, global_batch: u32, min: u32) -> BatchBounds {
        let Batching { min_batch, max_batch, .. } = self.batching;
        let of_job = BatchBounds { min: min_batch.unwrap_or(min), max: max_batch.unwrap_or(global_batch) };
        self.batch_of_group(place).unwrap_or(of_job)
    }

    /// The fewest workers with which every start can divide the global batch. `limit` is the largest batch for which
    /// the memory of a replica may be enough. An elastic job may start with any of its workers, so the workers with the
    /// smallest limits are counted first.
    ///
    /// # Errors
    ///
    /// If all workers together are too few, returns the largest global batch for which they are enough. Returns 0 if a
    /// limit is less than the smallest batch of its replica.
    pub fn workers_for_batch(&self, limit: impl Fn(ReplicaId) -> Option<u32>) -> Result<u32, u64> {
        let least_workers = self.worker_min.unwrap_or(self.worker_num);
        let Some(global) = self.global_batch() else { return Ok(least_workers) };
        let multiple = self.batching.unit();
        let most = |place: ReplicaId| {
            let bounds = self.batch_bounds(place, global, 1).at_most(limit(place));
            bounds.in_multiples(multiple).map(|(_, high)| u64::from(high) * u64::from(multiple))
        };
        let most: Option<Vec<u64>> = self.training_places().map(most).collect();
        let mut most = most.ok_or(0_u64)?;
        let chiefs = most.len() - self.worker_num as usize;
        let (chiefs, workers) = most.split_at_mut(chiefs);
        workers.sort_unstable();
        let sum_of = |count: u32| chiefs.iter().chain(workers.iter().take(count as usize)).sum::<u64>();
        let is_enough = |count: &u32| sum_of(*count) >= u64::from(global);
        (least_workers..=self.worker_num).find(is_enough).ok_or_else(|| sum_of(self.worker_num))
    }

    /// The estimated speeds of these replicas before a measurement. If all workers of the job have GPUs, a speed is a
    /// replica's number of GPUs. Otherwise, if all workers request CPUs, a speed is a replica's requested CPUs.
    /// Otherwise, each speed is 1.
    pub fn batch_weights(&self, places: &[ReplicaId]) -> Vec<f64> {
        let gpus = |place: ReplicaId| self.gpus_of(place).filter(|gpus| *gpus > 0).map(f64::from);
        let cpus = |place: ReplicaId| {
            let of_group = self.group_of(place).and_then(|group| group.cpu.as_ref());
            thousandths(&of_group.or(self.pod.cpu.as_ref())?.request).map(|amount| amount as f64)
        };
        let known = |of: &dyn Fn(ReplicaId) -> Option<f64>| -> Option<Vec<f64>> {
            let is_known = self.training_places().all(|place| of(place).is_some());
            is_known.then(|| places.iter().filter_map(|place| of(*place)).collect())
        };
        known(&gpus).or_else(|| known(&cpus)).unwrap_or_else(|| vec![1.0; places.len()])
    }

    fn training_places(&self) -> impl Iterator<Item = ReplicaId> {
        let roles = [Role::Chief, Role::Worker].into_iter().filter(|role| self.has_batch(*role));
        roles.flat_map(|role| (0..self.count(role)).map(move |index| ReplicaId { role, index }))
    }

    fn batch_of_group(&self, place: ReplicaId) -> Option<BatchBounds> {
        self.group_of(place).and_then(|group| group.batch)
    }

    /// Checks that every start can divide the global batch within all bounds. This must hold for any number of workers
    /// that the job may have, and for any of its places.
    pub(crate) fn check_batching(&self) -> Result<(), SpecError> {
        if self.batching == Batching::default() && self.groups.iter().all(|group| group.batch.is_none()) {
            return Ok(());
        }
        ensure!(!self.tf_config.extra.contains_key(BATCH_SIZE_LIST_KEY), SpecError::ComputedKey(BATCH_SIZE_LIST_KEY));
        let has_no_batch = |group: &&Group| group.batch.is_some() && !self.has_batch(group.role);
        if let Some(group) = self.groups.iter().find(has_no_batch) {
            return Err(BadBatching::Role(group.role).into());
        }
        let global = self.global_batch().ok_or(BadBatching::NoGlobal)?;
        ensure!((1..=GLOBAL_BATCH_MAX).contains(&global), BadBatching::Global(global).into());
        let multiple = self.batching.unit();
        ensure!(multiple > 0 && global.is_multiple_of(multiple), BadBatching::Multiple { global, multiple }.into());
        let fits = members_max(&self.tf_config, Some(global)).saturating_sub(self.ps_num + self.chief_num);
        ensure!(self.worker_num <= fits, SpecError::TooManyWorkers { asked: self.worker_num, fits });
        self.check_bounds(global, multiple)?;
        let with_gpus =
            self.training_places().filter(|place| self.gpus_of(*place).is_some_and(|gpus| gpus > 0)).count();
        let is_open = self.training_places().any(|place| self.batch_of_group(place).is_none());
        let have_only_some_gpus = with_gpus > 0 && with_gpus < self.training_places().count();
        ensure!(!is_open || !have_only_some_gpus, BadBatching::SomeGpus.into());
        Ok(())
    }

    fn check_bounds(&self, global: u32, multiple: u32) -> Result<(), BadBatching> {
        let (mut least, mut most) = (vec![], vec![]);
        for place in self.training_places() {
            let bounds @ BatchBounds { min, max } = self.batch_bounds(place, global, 1);
            ensure!(min > 0 && min <= max, BadBatching::Bounds { min, max });
            let (low, high) = bounds.in_multiples(multiple).ok_or(BadBatching::NoMultiple { min, max, multiple })?;
            least.push(u64::from(low) * u64::from(multiple));
            most.push(u64::from(high) * u64::from(multiple));
        }
        let sum = least.iter().sum();
        ensure!(sum <= u64::from(global), BadBatching::TooSmall { global, workers: least.len(), sum });
        // The fewest workers may be those with the smallest maxima. A chief is never absent.
        let chiefs = most.len() - self.worker_num as usize;
        most[chiefs..].sort_unstable();
        let absent = self.worker_min.map_or(0, |min| self.worker_num.saturating_sub(min)) as usize;
        let workers = most.len().saturating_sub(absent);
        let sum = most.iter().take(workers).sum();
        if sum < u64::from(global) { Err(BadBatching::TooLarge { global, workers, sum }) } else { Ok(()) }
    }
}
