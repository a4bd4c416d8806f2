//! The fakes conform. Tests with a fake that does not conform would prove nothing.

use master::agent_token::AgentKey;
use testkit::conformance;
use testkit::fake::{Arrival, FakeBackend, FakeStore};

#[tokio::test]
async fn the_fake_store_conforms() {
    conformance::store::check(&FakeStore::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_back_end_conforms() {
    let spec = conformance::store::record("pods").spec;
    conformance::backend::check(&FakeBackend::new(Arrival::AtOnce), &spec, "uid", &AgentKey::random()).await;
}
