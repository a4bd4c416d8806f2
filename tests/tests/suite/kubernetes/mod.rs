//! Jobs on the cluster that KUBECONFIG names, whose nodes run what the local Docker has: each test has a namespace and
//! a master of its own. `make test` runs them when there is one.

mod api_faults;
mod journeys;
mod options;
mod prototype;
mod reasons;
mod remains;
mod takeover;
mod why;
