//! Jobs on the cluster in KUBECONFIG, whose nodes use the local Docker's images. Each test has its own namespace and
//! master. `make test` runs them if there is a cluster.

mod api_faults;
mod code;
mod elastic;
mod journeys;
mod options;
mod prototype;
mod reasons;
mod remains;
mod spawn;
mod takeover;
mod tfjob;
mod tfjob_corpus;
mod why;
