//! An address at which a run's script can post its progress without Muster's helper. The Trainer of Hugging Face's
//! Transformers posts by itself if the environment names an address and the file of a token.
//!
//! Each run has an address and a token of its own. The agent's server is not used, for two reasons. It does not always
//! listen on loopback. And a script that has the server's token could start programs. A run's address ends with the run
//! and has one route.

mod body;
mod route;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::future::pending;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use protocol::env::{
    DISABLE_KUBEFLOW_INTEGRATION, KUBEFLOW_TRAINER_SERVER_CA_CERT, KUBEFLOW_TRAINER_SERVER_TOKEN,
    KUBEFLOW_TRAINER_SERVER_URL,
};
use protocol::progress::Progress;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;
use uuid::Uuid;

use self::route::{PATH, serve};
use crate::process::environment::{Environment, keep_off_the_proxy};
use crate::token::TokenHash;

/// What a run's script has posted, and the address to which it posts.
#[derive(Debug)]
pub(crate) struct Posts {
    /// `None` if the run has no address, and after the end of the run.
    open: Option<OpenAddress>,
    newest: watch::Receiver<Option<Progress>>,
}

/// The address of a living run. Dropping this value closes the address, and removes the file of the token.
#[derive(Debug)]
struct OpenAddress {
    address: SocketAddr,
    token_file: PathBuf,
    server: JoinHandle<()>,
}

impl Default for Posts {
    fn default() -> Self {
        Self { open: None, newest: watch::channel(None).1 }
    }
}

impl Posts {
    /// Opens an address for a run, and puts the address and the token's file into its environment. Opens none if the
    /// environment already has one of these variables, or turns the posts off. `folder` is for the file of the token. If
    /// the address cannot be opened, the run starts without it.
    pub(crate) fn of_run(environment: &mut Environment, folder: Option<&Path>) -> Self {
        let Some(folder) = folder.filter(|_| wants_address(environment)) else { return Self::default() };
        let (posted, newest) = watch::channel(None);
        let open = OpenAddress::in_folder(folder, posted);
        let open = open.inspect_err(|error| warn!(%error, "the run has no address for posts of its progress")).ok();
        if let Some(OpenAddress { address, token_file, .. }) = &open {
            environment.insert(KUBEFLOW_TRAINER_SERVER_URL.into(), format!("http://{address}{PATH}").into());
            environment.insert(KUBEFLOW_TRAINER_SERVER_TOKEN.into(), token_file.into());
            keep_off_the_proxy(environment, OsStr::new(&address.ip().to_string()));
        }
        Self { open, newest }
    }

    /// The newest step and values; `None` before the first post.
    pub(crate) fn newest(&self) -> Option<Progress> {
        self.newest.borrow().clone()
    }

    /// Waits for a post. Dropping the future loses no post.
    pub(crate) async fn changed(&mut self) {
        if self.newest.changed().await.is_err() {
            // The address is closed.
            pending().await
        }
    }

    /// Ends the run's address. Keeps what was posted.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }
}

/// Whether a run with this environment gets an address.
fn wants_address(environment: &Environment) -> bool {
    let own = [KUBEFLOW_TRAINER_SERVER_URL, KUBEFLOW_TRAINER_SERVER_TOKEN, KUBEFLOW_TRAINER_SERVER_CA_CERT];
    let is_disabled = environment.get(OsStr::new(DISABLE_KUBEFLOW_INTEGRATION));
    let is_disabled = is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("TRUE"));
    !is_disabled && own.into_iter().all(|name| !environment.contains_key(OsStr::new(name)))
}

impl OpenAddress {
    fn in_folder(folder: &Path, posted: watch::Sender<Option<Progress>>) -> io::Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let token = Uuid::new_v4().simple().to_string();
        let token_file = folder.join(format!("posts-{}", address.port()));
        let server = serve(TcpListener::from_std(listener)?, TokenHash::of(&token), posted);
        // From here on, `open` removes the file if writing fails.
        let open = Self { address, token_file, server: tokio::spawn(server) };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&open.token_file)?;
        file.write_all(token.as_bytes())?;
        Ok(open)
    }
}

impl Drop for OpenAddress {
    fn drop(&mut self) {
        self.server.abort();
        // A program that removes old files may have removed it.
        let _ = fs::remove_file(&self.token_file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_an_address_or_wants_none_gets_none() {
        let wants = |name: &str, value: &str| wants_address(&Environment::from([(name.into(), value.into())]));
        assert!(wants("OTHER", "1") && wants("DISABLE_KUBEFLOW_INTEGRATION", "false"));
        for (name, value) in [
            ("KUBEFLOW_TRAINER_SERVER_URL", ""),
            ("KUBEFLOW_TRAINER_SERVER_TOKEN", "/token"),
            ("KUBEFLOW_TRAINER_SERVER_CA_CERT", "/ca.crt"),
            ("DISABLE_KUBEFLOW_INTEGRATION", "True"),
        ] {
            assert!(!wants(name, value), "{name}={value}");
        }
    }
}
