//! The fakes pass the conformance suites. Otherwise, the tests that use a fake would prove nothing.

use master::agents::token::AgentKey;
use testkit::conformance;
use testkit::fake::{Arrival, FakeBackend, FakeStore};

#[tokio::test]
async fn the_fake_store_passes_the_conformance_suite() {
    conformance::store::check(&FakeStore::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_back_end_passes_the_conformance_suite() {
    let spec = conformance::store::record("pods").spec;
    conformance::backend::check(&FakeBackend::new(Arrival::AtOnce), &spec, "uid", &AgentKey::random()).await;
}
