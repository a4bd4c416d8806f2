//! Pods with several processes.

use e2e::Place;

e2e::journeys_of_several_processes!(Place::Cluster, #[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]);
