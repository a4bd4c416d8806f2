//! `doctor`: checks the cluster, the user's rights, the master, the connection to the master, and Docker. If the user
//! chose no cluster, checks this machine, where jobs then run. The checks of a cluster are then only warnings.

use serde_json::json;

use super::which_master::through_cluster;
use crate::args::{DoctorArgs, Format};
use crate::cluster::{self, Check, Surroundings, Verdict};
use crate::config::{Config, MasterChoice};
use crate::error::Error;
use crate::exit::Exit;
use crate::image;
use crate::kube_place::KubePlace;
use crate::local_checks;
use crate::output::{Data, checks_text};

pub(super) async fn run(args: DoctorArgs, config: &Config, data: &mut Data) -> Result<Exit, Error> {
    let DoctorArgs { place, format } = args;
    let cluster = Cluster::of(config, place.namespace.is_some());
    let place = config.place().or_namespace(place.namespace);
    let (master, docker) = tokio::join!(version(place.clone()), image::engine_answers(&config.image.docker));
    let surroundings = Surroundings {
        master: master.map_err(|error| (error.to_string(), error.hint())),
        docker: docker.map_err(|error| error.to_string()),
    };
    let of_cluster = cluster::examine(&place, surroundings).await;
    let checks = match cluster {
        Cluster::Chosen => of_cluster,
        Cluster::Unused => {
            let mut checks = local_checks::examine(&config.run_folders).await;
            checks.extend(of_cluster.into_iter().map(as_warning));
            checks
        }
    };
    match format.output {
        Format::Json => data.json(&json!({ "checks": checks }))?,
        Format::Text => data.text(&checks_text(&checks))?,
    }
    let has_failed = checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if has_failed { Exit::NotSucceeded } else { Exit::Done })
}

/// Whether the user's jobs run in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cluster {
    /// The user named a cluster, a namespace, or a master that may be in a cluster.
    Chosen,
    /// Jobs run on this machine, with a local master.
    Unused,
}

impl Cluster {
    fn of(config: &Config, has_namespace: bool) -> Self {
        match config.master {
            MasterChoice::Local(_) if !has_namespace => Self::Unused,
            MasterChoice::Local(_) | MasterChoice::At(_) | MasterChoice::Kube(_) => Self::Chosen,
        }
    }
}

fn as_warning(check: Check) -> Check {
    let verdict = if check.verdict == Verdict::Fail { Verdict::Warn } else { check.verdict };
    Check { verdict, ..check }
}

/// Asks the master in this namespace for its version, with the token from the Secret.
async fn version(place: KubePlace) -> Result<String, Error> {
    Ok(through_cluster(place, None).await?.about().await?.version)
}
