//! Jobs on the cluster that KUBECONFIG names, whose nodes run what the local Docker has: each test has a namespace and
//! a master of its own. `make test-kubernetes` runs them.

mod journeys;
mod options;
mod reasons;
mod remains;
mod takeover;
