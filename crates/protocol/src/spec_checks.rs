//! The rules that every [`JobSpec`] follows.

use crate::ensure::ensure;
use crate::env::{ENTRY_LIMIT, INPUT_BYTES_MAX};
use crate::group::{self, GROUPS_MAX, Template};
use crate::ids::{LABEL_MAX, PodName, ReplicaId, Role};
use crate::is_default;
use crate::job::{JobSpec, SpecError, Strategy};
use crate::progress::{VALUE_NAME_BYTES, VALUES_MAX, is_value_name};
use crate::routes::AGENT_PORT;
use crate::run_policy::{LEASE_SECONDS_MAX, OnFailure, RunPolicy, SuccessPolicy};
use crate::text::json_length;
use crate::tf_config::{self, COMPUTED_KEYS};
use crate::warm::{MODULES_MAX, Preload};

impl JobSpec {
    pub(crate) fn check_counts(&self) -> Result<(), SpecError> {
        match (self.strategy, self.ps_num) {
            (Strategy::AllReduce, 1..) => return Err(SpecError::PsWithAllReduce(self.ps_num)),
            (Strategy::ParameterServer, 0) => return Err(SpecError::NoPs),
            (Strategy::AllReduce, 0) | (Strategy::ParameterServer, 1..) => {}
        }
        ensure!(self.chief_num <= 1, SpecError::ChiefNum(self.chief_num));
        ensure!(self.evaluator_num <= 1, SpecError::EvaluatorNum(self.evaluator_num));
        // A chief can train alone. A chief with parameter servers needs at least one worker.
        ensure!(self.worker_num > 0 || self.chief_num > 0 && self.ps_num == 0, SpecError::NoWorkers);
        match self.worker_min {
            Some(0) => return Err(SpecError::NoWorkers),
            Some(min) if min > self.worker_num => {
                return Err(SpecError::MinAboveMax { min, max: self.worker_num });
            }
            Some(_) | None => {}
        }
        self.check_tf_config_fits()?;
        self.check_name()
    }

    /// The name of every pod must be a DNS label.
    fn check_name(&self) -> Result<(), SpecError> {
        let last = |role: Role| Some(ReplicaId { role, index: self.count(role).checked_sub(1)? });
        let of_pods = Role::ALL.into_iter().filter_map(last).map(|id| PodName::new(&self.name, id));
        match of_pods.max_by_key(|pod| pod.as_str().len()).filter(|pod| pod.as_str().len() > LABEL_MAX) {
            Some(pod) => Err(SpecError::LongName { name: self.name.clone(), pod }),
            None => Ok(()),
        }
    }

    /// TF_CONFIG lists all members in one variable, and Linux limits the length of a variable.
    fn check_tf_config_fits(&self) -> Result<(), SpecError> {
        let most = tf_config::members_max(&self.tf_config, self.batching.global_batch) / self.nproc_per_node.max(1);
        let room = most.saturating_sub(self.chief_num);
        let most_workers = room.saturating_sub(self.ps_num.min(1));
        if self.worker_num > most_workers {
            // If the parameter servers alone leave no room, this error ignores them. When the user has then lowered the
            // number of workers, the check below reports the parameter servers.
            let beside_servers = room.saturating_sub(self.ps_num);
            let fits = if beside_servers == 0 { most_workers } else { beside_servers };
            return Err(SpecError::TooManyWorkers { asked: self.worker_num, fits });
        }
        let fits = room.saturating_sub(self.worker_num);
        ensure!(self.ps_num <= fits, SpecError::TooManyPs { asked: self.ps_num, fits });
        Ok(())
    }

    /// Checks that the groups of a role contain all replicas of the role, and that each group is valid. Also checks the
    /// additional keys of TF_CONFIG.
    pub(crate) fn check_groups(&self) -> Result<(), SpecError> {
        ensure!(self.groups.len() <= GROUPS_MAX, SpecError::TooManyGroups(self.groups.len()));
        for role in Role::ALL {
            let replicas = self.count(role);
            if let Some(grouped) = group::count(&self.groups, role).filter(|grouped| *grouped != replicas) {
                return Err(SpecError::GroupsCount { role, grouped, replicas });
            }
        }
        if let Some(key) = COMPUTED_KEYS.iter().find(|key| self.tf_config.extra.contains_key(**key)) {
            return Err(SpecError::ComputedKey(key));
        }
        for (place, group) in self.groups.iter().enumerate() {
            let number = place + 1;
            ensure!(group.count > 0, SpecError::EmptyGroup(number));
            if let Some(place) = group.command.iter().position(|word| word.contains('\0')) {
                return Err(SpecError::NulInArgument(place + 1));
            }
            let Some(template) = &group.template else { continue };
            // Each process has a port of its own.
            let port = template.tf_port;
            let last = u32::from(port) + self.nproc_per_node - 1;
            let is_free = last <= u16::MAX.into() && !(u32::from(port)..=last).contains(&AGENT_PORT.into());
            ensure!(port != 0 && is_free, SpecError::GroupPort { group: number, port });
            ensure!(!template.container.is_empty() && template.pod.is_object(), SpecError::NoTemplate(number));
        }
        Ok(())
    }

    /// Checks the variables of the groups' templates.
    pub(crate) fn check_variables(&self) -> Result<(), SpecError> {
        self.groups.iter().enumerate().try_for_each(|(place, group)| {
            let checked = group.template.as_ref().map_or(Ok(()), Template::check_variables);
            checked.map_err(|why| SpecError::GroupVariable { group: place + 1, why })
        })
    }

    /// Checks the run policy, and whether it fits the job's replicas.
    pub(crate) fn check_run_policy(&self) -> Result<(), SpecError> {
        let RunPolicy {
            start_timeout_seconds,
            deadline_seconds,
            success_policy,
            preload,
            on_failure,
            lease_seconds,
            ..
        } = &self.run_policy;
        ensure!(*start_timeout_seconds > 0, SpecError::NoTime("start-timeout"));
        ensure!(*deadline_seconds != Some(0), SpecError::NoTime("deadline"));
        match *lease_seconds {
            0 => return Err(SpecError::NoTime("lease")),
            long if long > LEASE_SECONDS_MAX => return Err(SpecError::LongLease(long)),
            _ => {}
        }
        ensure!(*on_failure != OnFailure::Wait || self.takes_new_code(), SpecError::WaitWithoutCode);
        if let Some(Preload::Modules(modules)) = preload
            && modules.len() > MODULES_MAX
        {
            return Err(SpecError::TooManyModules(modules.len()));
        }
        match success_policy {
            Some(SuccessPolicy::Chief) if self.chief_num == 0 => Err(SpecError::NoChiefToDecide),
            // With a chief, the workers of a ParameterServer job are servers, which never end by themselves.
            Some(policy @ (SuccessPolicy::All | SuccessPolicy::Worker0)) if self.ps_num > 0 && self.chief_num > 0 => {
                Err(SpecError::ServersNeverEnd(*policy))
            }
            Some(SuccessPolicy::All | SuccessPolicy::Chief | SuccessPolicy::Worker0) | None => Ok(()),
        }
    }

    /// Whether the job can start again with new code: it brings its code, or runs in a folder. The code of other jobs
    /// is in their images.
    pub fn takes_new_code(&self) -> bool {
        self.code.is_some() || self.image.is_none() && self.groups.iter().all(|group| group.template.is_none())
    }

    pub(crate) fn check_metrics(&self) -> Result<(), SpecError> {
        ensure!(self.metrics.len() <= VALUES_MAX, SpecError::TooManyMetrics(self.metrics.len()));
        match self.metrics.keys().find(|name| !is_value_name(name)) {
            Some(name) => Err(SpecError::MetricName(name.chars().take(VALUE_NAME_BYTES).collect())),
            None => Ok(()),
        }
    }

    pub(crate) fn check_inputs(&self) -> Result<(), SpecError> {
        for (name, value) in &self.env {
            ensure!(!name.is_reserved(), SpecError::ReservedEnv(name.clone()));
            name.check_value(value)?;
        }
        if let Some(place) = self.args.iter().position(|arg| arg.contains('\0')) {
            return Err(SpecError::NulInArgument(place + 1));
        }
        // JSON adds four quotes, a colon and a comma to each variable, and two quotes and a comma to each argument.
        let of_variables = self.env.iter().map(|(name, value)| json_length(name.as_str()) + json_length(value) + 6);
        let of_arguments = self.args.iter().map(|arg| json_length(arg) + 3);
        let bytes: usize = of_variables.chain(of_arguments).sum();
        // Linux has the same limit for one argument as for one variable.
        let mut arguments = self.args.iter().chain(self.groups.iter().flat_map(|group| &group.command));
        if let Some(long) = arguments.find(|arg| arg.len() >= ENTRY_LIMIT) {
            return Err(SpecError::LongArgument { bytes: long.len() });
        }
        ensure!(bytes <= INPUT_BYTES_MAX, SpecError::TooMuchInput { bytes });
        if !self.groups.is_empty() || !is_default(&self.tf_config) || self.origin.is_some() {
            // The conversion cannot fail, because all keys are strings.
            let parts = (&self.groups, &self.tf_config, &self.origin);
            let of_groups = serde_json::to_string(&parts).map_or(0, |json| json.len());
            ensure!(bytes + of_groups <= INPUT_BYTES_MAX, SpecError::GroupsTooLarge { bytes: bytes + of_groups });
        }
        match (&self.work_dir, &self.code) {
            (Some(dir), _) if !dir.is_absolute() => Err(SpecError::RelativeWorkDir(dir.clone())),
            (Some(_), Some(_)) => Err(SpecError::CodeAndWorkDir),
            (Some(_), None) | (None, _) => Ok(()),
        }
    }
}
