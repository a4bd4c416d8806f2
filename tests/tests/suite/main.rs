//! The end-to-end tests. They are in one program, because linking takes most of the build time. Modules whose names
//! begin with `kubernetes` need a cluster. The module `namespaces` needs root.

mod abuse;
mod architecture;
mod bad_input;
mod batching;
mod code;
mod docs;
mod examples;
mod folders;
mod kubernetes;
mod kubernetes_conformance;
mod kubernetes_examples;
mod kubernetes_in_cluster;
mod kubernetes_rights;
mod local;
mod machines;
mod namespaces;
mod other_launchers;
mod packaging;
mod prototype;
mod remote;
mod second_terminal;
mod several;
mod spawn;
mod stacks;
mod tensorflow;
mod tfjob;
mod timeline;
mod why;
mod wire;
