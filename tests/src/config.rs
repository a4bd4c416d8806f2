//! The tests' environment variables. Only this file reads the environment.

/// `MUSTER_TEST_REGISTRY`, such as `localhost:5000`: the registry from which the cluster's nodes pull images. If the
/// variable is not set, the nodes must use this machine's Docker.
pub fn registry() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    std::env::var("MUSTER_TEST_REGISTRY").ok().filter(|registry| !registry.is_empty())
}

/// `MUSTER_WRITE_DOCS`: whether the test of docs/reference/cli.md writes this page. `make docs` sets the variable.
pub fn writes_docs() -> bool {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    std::env::var("MUSTER_WRITE_DOCS").is_ok_and(|value| !value.is_empty())
}
