//! Journeys. A journey is a test that is written once and run in several places.

mod at_a_master;
mod by_one_command;
mod causes;
mod elastic;
mod several;
mod tfjob;
mod training;

pub use at_a_master::*;
pub use by_one_command::*;
pub use causes::*;
pub use elastic::*;
pub use several::*;
pub use tfjob::*;
pub use training::*;

/// Defines a test for each journey of one command. Each test has the given attribute, for example `#[ignore]`.
#[macro_export]
macro_rules! journeys_by_one_command {
    ($place:expr, #[$attribute:meta]) => {
        $crate::journeys! {
            $place, #[$attribute],
            four_workers_see_one_cluster_of_four_addresses,
            the_first_failure_is_named_and_the_other_replicas_are_stopped,
            when_the_chief_succeeds_the_other_replicas_are_stopped_and_the_job_succeeds,
            a_daemon_that_a_run_leaves_behind_is_killed,
            variables_and_arguments_reach_exec_py,
            output_that_is_not_utf8_is_shown_with_replacement_characters,
            a_tfjob_means_the_same_with_and_without_a_cluster_but_for_the_rows_of_the_table,
        }
    };
}

/// Defines a test for each journey with a permanent master.
#[macro_export]
macro_rules! journeys_at_a_master {
    ($place:expr, #[$attribute:meta]) => {
        $crate::journeys! {
            $place, #[$attribute],
            concurrent_jobs_succeed_and_share_no_address,
            curl_submits_follows_and_deletes_a_job,
            verbs_show_cancel_and_delete_a_detached_job,
            ctrl_c_does_not_stop_a_job_of_a_permanent_master,
            killing_an_agent_ends_its_run_and_fails_the_job_with_sigkill_as_the_reason,
            a_name_is_free_again_when_its_job_is_deleted,
            an_elastic_job_shrinks_restarts_grows_and_is_suspended_and_resumed,
        }
    };
}

/// Defines a test for each journey that ends with `client why`.
#[macro_export]
macro_rules! journeys_of_causes {
    ($place:expr, #[$attribute:meta]) => {
        $crate::journeys! {
            $place, #[$attribute],
            why_names_the_replica_that_exited_first_and_the_replicas_that_ended_because_of_it,
            why_names_the_replica_that_crashed,
        }
    };
}

/// Defines a test for each journey of replicas with several processes.
#[macro_export]
macro_rules! journeys_of_several_processes {
    ($place:expr, #[$attribute:meta]) => {
        $crate::journeys! {
            $place, #[$attribute],
            each_process_of_each_worker_is_a_rank,
            why_names_the_rank_that_failed_first,
        }
    };
}

/// Defines a test for each journey with real TensorFlow.
#[macro_export]
macro_rules! journeys_of_trainings {
    ($place:expr, #[$attribute:meta]) => {
        $crate::journeys! {
            $place, #[$attribute],
            workers_of_an_all_reduce_training_reduce_the_loss_and_end_with_the_same_weights,
            a_parameter_server_training_succeeds_with_a_falling_loss,
        }
    };
}

/// Defines a test for each of these journeys.
#[macro_export]
macro_rules! journeys {
    ($place:expr, #[$attribute:meta], $($journey:ident,)*) => {
        $(
            #[test]
            #[$attribute]
            fn $journey() {
                $crate::journeys::$journey($place);
            }
        )*
    };
}
