//! Tests of jobs on the cluster in KUBECONFIG. The cluster's nodes use the images of the local Docker or of a registry.
//! Each test has its own namespace and master. `make test` runs these tests if there is a cluster.

mod api_faults;
mod code;
mod elastic;
mod journeys;
mod options;
mod programs;
mod prototype;
mod reasons;
mod remains;
mod several;
mod spawn;
mod takeover;
mod tfjob;
mod tfjob_corpus;
mod turns;
mod why;
