//! The end-to-end tests, in one program: linking it is most of what building tests costs. Those that need a cluster are the
//! modules whose names begin with `kubernetes`.

mod abuse;
mod architecture;
mod bad_input;
mod docs;
mod kubernetes;
mod kubernetes_conformance;
mod kubernetes_in_cluster;
mod kubernetes_rights;
mod local;
mod packaging;
mod prototype;
mod remote;
mod tensorflow;
mod why;
