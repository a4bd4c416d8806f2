//! `doctor`: checks what the user's jobs need: the cluster, the user's rights, the master, the connection to the
//! master, and Docker. If the user gives a master's address, checks only this master. If the user chooses neither a
//! cluster nor an address, checks this machine, where jobs then run. The checks of a cluster are then only warnings.

use master_client::{KubePlace, MasterUrl};
use protocol::master::{BackendKind, MasterView};
use serde_json::json;

use crate::address::config::{ClientConfig, MasterChoice};
use crate::args::DoctorArgs;
use crate::cluster;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::image;
use crate::master::local_checks;
use crate::masters::which_master::{Masters, through_cluster};
use crate::output::{Check, CheckVerdict, Data, Notes, checks_text};

pub(super) async fn run(
    args: DoctorArgs,
    config: &ClientConfig,
    data: &mut Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    let DoctorArgs { place, format } = args;
    let at = config.place().or_namespace(place.namespace.clone());
    let checks = match (&config.master, place.namespace) {
        (MasterChoice::Kube(_), _) | (_, Some(_)) => of_cluster(&at, config).await,
        (MasterChoice::At(url), None) => of_master(url, config, notes).await,
        (MasterChoice::Local(_), None) => {
            let mut checks = local_checks::examine(&config.run_folders).await;
            checks.extend(of_cluster(&at, config).await.into_iter().map(as_warning));
            checks
        }
    };
    data.show(format.output, &json!({ "checks": checks }), || checks_text(&checks))?;
    let has_failed = checks.iter().any(|check| check.verdict == CheckVerdict::Fail);
    Ok(if has_failed { Exit::NotSucceeded } else { Exit::Done })
}

/// The checks of a cluster and of the master in this namespace.
async fn of_cluster(place: &KubePlace, config: &ClientConfig) -> Vec<Check> {
    let (master, docker) = tokio::join!(version(place.clone()), docker(config));
    cluster::examine(place, master, docker).await
}

async fn docker(config: &ClientConfig) -> Result<(), String> {
    image::engine_answers(&config.image.docker).await.map_err(|error| error.to_string())
}

/// The checks of the master at this address. The client needs Docker only for a master in Kubernetes, to add the agent
/// to images.
async fn of_master(url: &MasterUrl, config: &ClientConfig, notes: &Notes) -> Vec<Check> {
    let about = async {
        let masters = Masters::find("doctor", config, notes).await?;
        Ok::<_, Error>(masters.of_all(async |client| Ok(vec![client.about().await?])).await?)
    };
    match about.await {
        Ok(about) => {
            let mut checks: Vec<Check> = about.iter().map(|about| answering(url, about)).collect();
            if about.iter().any(|about| about.backend == BackendKind::Kubernetes) {
                checks.push(cluster::check_docker(docker(config).await));
            }
            checks
        }
        Err(error) => vec![Check::failed("master", &error)],
    }
}

/// The check of a master that answers.
fn answering(url: &MasterUrl, MasterView { version, backend, python, .. }: &MasterView) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        let detail = format!("the master at {url} has version {version}, this client has {own}");
        return Check::warned("master", detail, "use a client of the master's version");
    }
    let (place, hint) = match backend {
        BackendKind::Process => ("processes on its host", None),
        BackendKind::Joined => ("machines that join it", None),
        BackendKind::Kubernetes => ("pods", Some("to check its cluster: client doctor --master kube".to_owned())),
    };
    let python = python.iter().map(|python| format!(", with {}", python.display())).collect::<String>();
    let detail = format!("{url} answers, version {version}, and runs jobs in {place}{python}");
    Check { hint, ..Check::passed("master", detail) }
}

fn as_warning(check: Check) -> Check {
    let verdict = if check.verdict == CheckVerdict::Fail { CheckVerdict::Warn } else { check.verdict };
    Check { verdict, ..check }
}

/// Asks the master in this namespace for its version, with the token from the Secret.
async fn version(place: KubePlace) -> Result<String, Error> {
    Ok(through_cluster(place, None).await?.about().await?.version)
}
