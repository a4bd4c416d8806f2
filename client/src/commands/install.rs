//! `install`: installs or upgrades the master of a namespace, and prints the variable by which the client finds
//! the master.

use master_client::{MasterClient, MasterError};

use crate::address::config::ClientConfig;
use crate::args::InstallArgs;
use crate::cluster::{self, Cluster};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::patience::Patience;
use crate::masters::which_master::through_cluster;
use crate::output::{Data, Notes};

pub(super) async fn run(
    args: InstallArgs,
    config: &ClientConfig,
    data: &mut Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    let InstallArgs { place, order, export } = args;
    if export {
        data.json(&cluster::exported(&order))?;
        notes.say("the Secret muster is not in the list; to create the Secret: make token");
        return Ok(Exit::Done);
    }
    let place = config.place().or_namespace(place.namespace);
    let cluster = Cluster::connect(&place).await?;
    let (namespace, context) = (cluster.namespace(), cluster.context());
    notes.say(&format!(
        "installing version {} in namespace {namespace} of context {context}",
        env!("CARGO_PKG_VERSION")
    ));
    cluster::install(&cluster, &order, notes).await?;
    // Reads the token from the Secret. The token in the environment may belong to another master.
    let client = through_cluster(place.clone(), None).await?;
    notes.say(&format!("the master serves, version {}", version(&client).await?));
    data.text(&format!("export MUSTER_MASTER={place}"))?;
    Ok(Exit::Done)
}

/// The version of the master. Waits while the master takes over from its predecessor.
async fn version(client: &MasterClient) -> Result<String, MasterError> {
    let mut patience = Patience::new();
    loop {
        match client.about().await {
            Ok(master) => return Ok(master.version),
            Err(error) => patience.wait_after(error).await?,
        }
    }
}
