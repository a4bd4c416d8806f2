//! The journeys of local jobs, on the cluster; the trainings in images that the examples' own Dockerfiles make.

use e2e::Place;

e2e::journeys_by_one_command!(Place::Cluster, #[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]);
e2e::journeys_at_a_master!(Place::Cluster, #[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]);
e2e::journeys_of_trainings!(Place::Cluster, #[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]);
