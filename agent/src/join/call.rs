//! The only request that an agent sends: its message to the master.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use protocol::error::Problem;
use protocol::ids::JobName;
use protocol::join::{JoinAnswer, JoinRequest};
use protocol::routes::{JOB_MEMBERS, MASTER_PORT};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::join::Endpoint;

/// How long the master may take to accept a connection. The limit is short, so that a machine that was cut off notices
/// soon that its network works again.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How long the whole exchange may take. A master needs up to 25 s to write a record.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(30);

/// Maximum bytes of an answer. The limit is needed because some other program may answer instead of a master.
const ANSWER_BYTES: usize = 64 * 1024;

/// The master of a job.
#[derive(Debug)]
pub(super) struct MasterOfJob {
    pub(super) endpoint: Endpoint,
    pub(super) token: Option<String>,
    pub(super) task: JobName,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The master has not answered.
    #[error("the master cannot be reached at {endpoint}")]
    Unreachable {
        endpoint: Endpoint,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The master refuses the message.
    #[error("{}", .0.detail)]
    Refused(Problem),
    /// Some other program has answered with this status.
    #[error("the program that answers is not a master: its answer has status {0}")]
    NoMaster(StatusCode),
}

impl MasterOfJob {
    /// Sends a message.
    pub(super) async fn ask(&self, message: &JoinRequest) -> Result<JoinAnswer, CallError> {
        let body = serde_json::to_vec(message).expect("messages have text keys and no failing parts");
        let answer = timeout(EXCHANGE_LIMIT, self.exchange(body.into())).await;
        let unreachable = |source| CallError::Unreachable { endpoint: self.endpoint.clone(), source };
        let (status, body) = answer.map_err(|late| unreachable(late.into()))?.map_err(unreachable)?;
        if status.is_success() {
            serde_json::from_slice(&body).map_err(|_| CallError::NoMaster(status))
        } else {
            Err(serde_json::from_slice(&body).map_or(CallError::NoMaster(status), CallError::Refused))
        }
    }

    async fn exchange(&self, body: Bytes) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
        let Endpoint { host, port } = &self.endpoint;
        let connecting = TcpStream::connect((host.as_str(), port.unwrap_or(MASTER_PORT)));
        let stream = timeout(CONNECT_LIMIT, connecting).await??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut request = Request::post(JOB_MEMBERS.replace("{name}", self.task.as_str()))
            .header(HOST, self.endpoint.to_string())
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body))?;
        let answer = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, Limited::new(response.into_body(), ANSWER_BYTES).collect().await?.to_bytes()))
        };
        // The connection ends when `sender` is dropped. If the connection fails, `answer` returns the same error.
        tokio::join!(answer, connection).0
    }
}

impl fmt::Display for MasterOfJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the master at {}", self.endpoint)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port.unwrap_or(MASTER_PORT);
        if self.host.contains(':') { write!(f, "[{}]:{port}", self.host) } else { write!(f, "{}:{port}", self.host) }
    }
}
