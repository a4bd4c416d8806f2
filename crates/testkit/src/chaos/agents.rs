//! Calls to agents. A fault can strike before each call and after its answer.

use std::net::SocketAddr;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::Uri;
use master::agents::client::{AgentError, Interceptor, PendingCall};

use super::{Chaos, Deed};

#[async_trait]
impl Interceptor for Chaos {
    async fn intercept(&self, agent: SocketAddr, uri: &Uri, call: PendingCall<'_>) -> Result<Bytes, AgentError> {
        let error = |struck| AgentError::Unreachable { agent, source: Box::new(struck) };
        self.around(Deed::of_request(uri), call, error).await
    }
}
