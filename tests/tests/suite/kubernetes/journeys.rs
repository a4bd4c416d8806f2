//! Runs on a cluster the journeys for which Muster's code differs between a cluster and one machine. The image of the
//! training is built from the example's Dockerfile.

use e2e::Place;

e2e::journeys! {
    Place::Cluster, #[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"],
    four_workers_see_one_cluster_of_four_addresses,
    the_first_failure_is_named_and_the_other_replicas_are_stopped,
    when_the_chief_succeeds_the_other_replicas_are_stopped_and_the_job_succeeds,
    variables_and_arguments_reach_exec_py,
    concurrent_jobs_succeed_and_share_no_address,
    killing_an_agent_ends_its_run_and_fails_the_job_with_sigkill_as_the_reason,
    a_name_is_free_again_when_its_job_is_deleted,
    an_elastic_job_shrinks_restarts_grows_and_is_suspended_and_resumed,
    a_tfjob_means_the_same_with_and_without_a_cluster_but_for_the_rows_of_the_table,
    workers_of_an_all_reduce_training_reduce_the_loss_and_end_with_the_same_weights,
}
