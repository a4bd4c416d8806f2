//! `doctor`: checks the cluster, the user's rights, the master, the connection to the master, and Docker.

use serde_json::json;

use super::which_master::through_cluster;
use crate::args::{DoctorArgs, Format};
use crate::cluster::{self, Surroundings, Verdict};
use crate::config::Config;
use crate::error::Error;
use crate::exit::Exit;
use crate::image;
use crate::kube_place::KubePlace;
use crate::output::{Data, checks_text};

pub(super) async fn run(args: DoctorArgs, config: &Config, data: &mut Data) -> Result<Exit, Error> {
    let DoctorArgs { place, format } = args;
    let place = config.place().or_namespace(place.namespace);
    let (master, docker) = tokio::join!(version(place.clone()), image::engine_answers(&config.image.docker));
    let surroundings = Surroundings {
        master: master.map_err(|error| (error.to_string(), error.hint())),
        docker: docker.map_err(|error| error.to_string()),
    };
    let checks = cluster::examine(&place, surroundings).await;
    match format.output {
        Format::Json => data.json(&json!({ "checks": checks }))?,
        Format::Text => data.text(&checks_text(&checks))?,
    }
    let has_failed = checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if has_failed { Exit::NotSucceeded } else { Exit::Done })
}

/// Asks the master in this namespace for its version, with the token from the Secret.
async fn version(place: KubePlace) -> Result<String, Error> {
    Ok(through_cluster(place, None).await?.about().await?.version)
}
