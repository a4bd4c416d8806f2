//! Reaches a master through the Kubernetes API. The requests use a Unix socket of this process. Each connection to the
//! socket gets its own port-forward to the master's pod. The pod is looked up for each connection, so new connections
//! reach the new master after the old master was replaced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use master_client::{Tunnel, TunnelTrouble};
use protocol::routes::MASTER_PORT;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Cluster, no_master, pods, rights};
use crate::ending::error::{Cause, Error};

/// Maximum number of concurrent connections. A command uses about three.
const MOST_CONNECTIONS: usize = 16;
/// Time without traffic after which a connection is closed: a load balancer may have dropped it silently. Long polls
/// are shorter. If a quiet log stream is closed, its reader resumes the stream.
const IDLE: Duration = Duration::from_secs(120);
/// Maximum bytes of one read.
const PIECE: usize = 16 * 1024;

/// A socket that leads to the master. When this value is dropped, all connections are closed and the socket is removed.
#[derive(Debug)]
pub(crate) struct Forward {
    socket: PathBuf,
    trouble: ForwardTrouble,
    /// The task that accepts connections. It owns the tasks that pass on bytes.
    _accepting: JoinSet<()>,
    // The folder of the socket. Only this user can open the folder.
    _folder: TempDir,
}

/// The error of the last failed connection, until another connection succeeds. Failed requests report this error.
type ForwardTrouble = Arc<Mutex<Option<Arc<TunnelTrouble>>>>;

impl Forward {
    /// Creates the socket. Sends no request to the cluster yet.
    ///
    /// # Errors
    /// Fails if there is no folder for temporary files, or if its path is too long for a socket.
    pub(crate) fn open(cluster: Cluster) -> Result<Self, Error> {
        let failed = |error| Error::master("create a socket for the port-forward").because(error);
        let folder = tempfile::Builder::new().prefix("muster-").tempdir().map_err(failed)?;
        let socket = folder.path().join("master");
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        let trouble = ForwardTrouble::default();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, cluster, Arc::clone(&trouble)));
        Ok(Self { socket, trouble, _accepting: accepting, _folder: folder })
    }
}

impl Tunnel for Forward {
    fn socket(&self) -> &Path {
        &self.socket
    }

    fn trouble(&self) -> Option<Arc<TunnelTrouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn set(trouble: &ForwardTrouble, error: Option<Error>) {
    let new = error.map(|error| TunnelTrouble {
        sentence: error.to_string(),
        hint: error.hint,
        is_passing: matches!(error.cause, Cause::Passing),
    });
    *trouble.lock().unwrap_or_else(PoisonError::into_inner) = new.map(Arc::new);
}

async fn accept(listener: UnixListener, cluster: Cluster, trouble: ForwardTrouble) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= MOST_CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        // Only a lack of file descriptors makes `accept` fail. The socket is then closed, so the next request fails.
        let Ok((mut stream, _)) = listener.accept().await else { return };
        let (cluster, trouble) = (cluster.clone(), Arc::clone(&trouble));
        connections.spawn(async move {
            if let Err(error) = carry(&mut stream, &cluster, &trouble).await {
                // Store the error before the stream is dropped. The failed request then reports this error.
                set(&trouble, Some(error));
            }
            drop(stream);
        });
    }
}

/// Connects to the master's pod, and passes on bytes until one side ends.
async fn carry(stream: &mut UnixStream, cluster: &Cluster, trouble: &ForwardTrouble) -> Result<(), Error> {
    let pod = ready_pod(cluster).await?;
    let api = cluster.api::<Pod>();
    let mut forward = cluster.call(rights::FORWARD, api.portforward(&pod, &[MASTER_PORT])).await?;
    let mut far = forward.take_stream(MASTER_PORT).expect("the port was asked for, and its stream is taken once");
    let failed = forward.take_error(MASTER_PORT).expect("the port was asked for, and its errors are taken once");
    set(trouble, None);
    let outcome = tokio::select! {
        // The kubelet sends an error if nothing listens at the port. `pass_on` notices any other end of the connection.
        Some(reason) = failed => {
            let sentence = format!("the port-forward to pod {pod} failed: {}", reason.trim());
            Err(Error::master(sentence).cause(Cause::Passing))
        }
        // If the connection breaks, the request that uses it reports the error.
        _ = pass_on(stream, &mut far) => Ok(()),
    };
    forward.abort();
    outcome
}

/// The name of the master's newest ready pod.
async fn ready_pod(cluster: &Cluster) -> Result<String, Error> {
    let found = cluster.master_pods().await?;
    if let Some(pod) = pods::newest_ready(&found) {
        return Ok(pod.name_any());
    }
    let Some(pod) = pods::newest_kept(&found) else { return Err(no_master(&cluster.place)) };
    let sentence = format!("the master in namespace {} is not ready: {}", cluster.namespace(), pods::state(pod));
    let hint = format!("client doctor --master {} checks the installation", cluster.place);
    Err(Error::master(sentence).hint(hint).cause(Cause::Passing))
}

/// Passes on bytes in both directions until one side ends or fails, or until nothing is sent for [`IDLE`].
async fn pass_on(
    near: &mut (impl AsyncRead + AsyncWrite + Unpin),
    far: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<()> {
    let (mut up, mut down) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let length = tokio::select! {
            read = near.read(&mut up) => sent(far, &up[..read?]).await?,
            read = far.read(&mut down) => sent(near, &down[..read?]).await?,
            () = sleep(IDLE) => return Err(io::ErrorKind::TimedOut.into()),
        };
        if length == 0 {
            return Ok(());
        }
    }
}

async fn sent(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
    timeout(IDLE, to.write_all(bytes)).await??;
    Ok(bytes.len())
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn bytes_pass_in_both_directions_until_one_side_ends() {
        let ((mut client, mut near), (mut far, mut master)) = (duplex(64), duplex(64));
        let passing = tokio::spawn(async move { pass_on(&mut near, &mut far).await });
        let sent = vec![7_u8; 1000];
        let (mut received, mut answer) = (vec![0; 1000], [0; 2]);
        let (written, read) = tokio::join!(client.write_all(&sent), master.read_exact(&mut received));
        written.unwrap();
        read.unwrap();
        assert_eq!(received, sent);
        master.write_all(b"ok").await.unwrap();
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ok");
        drop(master);
        passing.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed() {
        let ((_client, mut near), (mut far, _master)) = (duplex(64), duplex(64));
        let error = pass_on(&mut near, &mut far).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
