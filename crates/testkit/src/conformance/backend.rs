//! The rules for every back end. The tests of each back end run this whole suite.

use std::time::Duration;

use job::key::JobKey;
use job::observation::PodState;
use job::plan;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use tokio::sync::watch;
use tokio::time::timeout;

use master::agents::client::{AgentAnswer, AgentClient};
use master::agents::token::{AgentKey, AgentToken};
use master::backend::{PodBackend, PodSpec, PodTable};

/// Maximum time for a back end to carry out a request.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs the suite on a back end without pods of this job. The spec needs at least two replicas. The suite starts no
/// exec.py. `uid` is the uid of the job, as in its record if a record exists. The agents' token is derived from `key`.
///
/// # Panics
/// If the back end breaks a rule. The message describes how.
pub async fn check(backend: &dyn PodBackend, spec: &JobSpec, uid: &str, key: &AgentKey) {
    let token = key.token(uid);
    let agents = AgentClient::new().with_token(&token);
    let job = JobKey { name: spec.name.clone(), uid: uid.to_owned() };
    let suite = Suite { backend, spec, job, replicas: plan::replicas(spec), agents, token };
    suite.a_supported_spec_is_admitted().await;
    suite.a_job_can_be_prepared_twice().await;
    suite.a_created_pod_gets_an_agent_that_answers().await;
    suite.creating_a_pod_again_changes_nothing().await;
    suite.every_pod_has_addresses_of_its_own().await;
    suite.a_new_watch_begins_with_all_present_pods().await;
    suite.a_pod_whose_agent_finishes_stays_ended_even_if_it_is_created_again().await;
    suite.a_deleted_pod_is_gone_and_may_be_deleted_again().await;
    suite.a_deleted_pod_can_be_created_again().await;
    suite.all_pods_of_a_job_can_be_deleted_at_once().await;
}

struct Suite<'a> {
    backend: &'a dyn PodBackend,
    spec: &'a JobSpec,
    job: JobKey,
    replicas: Vec<ReplicaId>,
    agents: AgentClient,
    token: AgentToken,
}

impl Suite<'_> {
    async fn a_supported_spec_is_admitted(&self) {
        assert_eq!(self.backend.admit(self.spec).await, Ok(()));
    }

    async fn a_job_can_be_prepared_twice(&self) {
        for _ in 0..2 {
            self.backend.prepare(&self.job).await.expect("could not prepare the job");
        }
    }

    async fn a_created_pod_gets_an_agent_that_answers(&self) {
        for replica in &self.replicas {
            self.create(*replica).await;
        }
        let table = self.until("all pods run", |table| self.replicas.iter().all(|id| is_running(table, *id))).await;
        for (id, pod) in &table {
            let PodState::Running(addresses) = pod.state else { panic!("{id} does not run: {pod:?}") };
            let answer = self.agents.status(addresses.agent, None).await;
            assert!(matches!(answer, Ok(AgentAnswer::Status(_))), "{id} gives no status: {answer:?}");
        }
    }

    async fn creating_a_pod_again_changes_nothing(&self) {
        let before = self.table();
        self.create(self.replicas[0]).await;
        assert_eq!(self.table(), before);
    }

    async fn every_pod_has_addresses_of_its_own(&self) {
        let mut seen = std::collections::HashSet::new();
        for (id, pod) in self.table() {
            let PodState::Running(addresses) = pod.state else { panic!("{id} does not run: {pod:?}") };
            assert!(seen.insert(addresses.agent), "another pod uses the address of the agent of {id}");
            assert!(seen.insert(addresses.tensorflow), "another pod uses the address of TensorFlow in {id}");
        }
    }

    async fn a_new_watch_begins_with_all_present_pods(&self) {
        let listed: Vec<ReplicaId> = self.table().keys().copied().collect();
        assert_eq!(listed, self.replicas);
    }

    async fn a_pod_whose_agent_finishes_stays_ended_even_if_it_is_created_again(&self) {
        let first = self.replicas[0];
        let PodState::Running(addresses) = self.table()[&first].state else { panic!("{first} does not run") };
        self.agents.finish(addresses.agent).await.expect("an idle agent did not finish");
        self.until("the pod has ended", |table| matches!(state(table, first), Some(PodState::Terminated { .. }))).await;
        self.create(first).await;
        assert!(
            matches!(self.table()[&first].state, PodState::Terminated { .. }),
            "creating an ended pod has changed it"
        );
    }

    async fn a_deleted_pod_is_gone_and_may_be_deleted_again(&self) {
        for replica in &self.replicas {
            self.delete(*replica).await;
        }
        self.until("no pod is listed", PodTable::is_empty).await;
        self.delete(self.replicas[0]).await;
    }

    async fn a_deleted_pod_can_be_created_again(&self) {
        let first = self.replicas[0];
        self.create(first).await;
        let earlier = self.until("the first pod runs", |table| is_running(table, first)).await;
        self.delete(first).await;
        self.until("no pod is listed", PodTable::is_empty).await;
        self.create(first).await;
        let later = self.until("the second pod runs", |table| is_running(table, first)).await;
        assert_ne!(
            earlier[&first].incarnation, later[&first].incarnation,
            "the second pod has the incarnation of the first pod"
        );
        self.delete(first).await;
        self.until("no pod is listed", PodTable::is_empty).await;
    }

    async fn all_pods_of_a_job_can_be_deleted_at_once(&self) {
        for replica in &self.replicas {
            self.create(*replica).await;
        }
        self.until("all pods are listed", |table| table.len() == self.replicas.len()).await;
        self.backend.delete_all(&self.job).await.expect("could not delete the pods of the job");
        self.until("no pod is listed", PodTable::is_empty).await;
        self.backend.delete_all(&self.job).await.expect("could not delete the pods of a job without pods");
    }

    async fn create(&self, replica: ReplicaId) {
        let pod = PodSpec::new(self.job.clone(), self.spec, replica, self.token.sha256());
        self.backend.create(pod).await.expect("could not create the pod");
    }

    async fn delete(&self, replica: ReplicaId) {
        self.backend.delete(&self.job, replica).await.expect("could not delete the pod");
    }

    fn table(&self) -> PodTable {
        self.backend.watch(&self.job).borrow().clone()
    }

    async fn until(&self, what: &str, test: impl FnMut(&PodTable) -> bool) -> PodTable {
        let mut table: watch::Receiver<PodTable> = self.backend.watch(&self.job);
        match timeout(DEADLINE, table.wait_for(test)).await {
            Ok(seen) => seen.expect("the back end dropped its table of pods").clone(),
            Err(_) => panic!("timed out waiting until {what}; the pods are {:?}", self.table()),
        }
    }
}

fn is_running(table: &PodTable, id: ReplicaId) -> bool {
    matches!(state(table, id), Some(PodState::Running(_)))
}

fn state(table: &PodTable, id: ReplicaId) -> Option<&PodState> {
    table.get(&id).map(|pod| &pod.state)
}
