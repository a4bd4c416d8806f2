//! Which master a verb asks: the master that the user names, else the only local master that runs.

use std::path::PathBuf;

use crate::announcement::{self, Announced, Found};
use crate::cluster::{Cluster, Forward};
use crate::config::{Config, LocalBecause, MasterChoice, Token};
use crate::error::Error;
use crate::kube_place::KubePlace;
use crate::master_client::MasterClient;
use crate::master_url::MasterUrl;
use crate::output::Notes;

/// A client of the master that this verb asks.
pub(super) async fn client_for(verb: &'static str, config: &Config, notes: &Notes) -> Result<MasterClient, Error> {
    match choose(verb, config, || running(&config.run_folders, notes))? {
        Way::Url(url, token) => Ok(MasterClient::new(url, token.as_ref())?),
        Way::Cluster(place) => through_cluster(place, config.token.clone()).await,
    }
}

/// A client of the master that the user names, for a new job or an image. `None` if the master is local: a new job then
/// gets its own local master. The local master of another command is not used, because it ends with its own job.
pub(super) async fn running_master(config: &Config) -> Result<Option<MasterClient>, Error> {
    match &config.master {
        MasterChoice::At(url) => Ok(Some(MasterClient::new(url.clone(), config.token.as_ref())?)),
        MasterChoice::Kube(place) => through_cluster(place.clone(), config.token.clone()).await.map(Some),
        MasterChoice::Local(_) => Ok(None),
    }
}

/// A client of the master in this place. Without a token, reads the token in the Secret.
pub(super) async fn through_cluster(place: KubePlace, token: Option<Token>) -> Result<MasterClient, Error> {
    let cluster = Cluster::connect(&place).await?;
    let token = match token {
        Some(token) => token,
        None => cluster.token().await?,
    };
    Ok(MasterClient::through(place, &token, Forward::open(cluster)?)?)
}

/// If a namespace is given, chooses the master in this namespace. If the user has named an address or `local`, keeps
/// the user's choice.
pub(super) fn with_namespace(config: &Config, namespace: Option<&String>) -> Config {
    let Some(namespace) = namespace else { return config.clone() };
    let in_namespace = |place: KubePlace| MasterChoice::Kube(place.or_namespace(Some(namespace.clone())));
    let master = match &config.master {
        MasterChoice::Local(LocalBecause::Default) => in_namespace(KubePlace::default()),
        MasterChoice::Kube(place) => in_namespace(place.clone()),
        MasterChoice::Local(LocalBecause::Asked) | MasterChoice::At(_) => config.master.clone(),
    };
    Config { master, ..config.clone() }
}

/// The local masters that run, sorted by the names of their jobs.
fn running(folders: &[PathBuf], notes: &Notes) -> Vec<Announced> {
    let Found { mut masters, ignored } = announcement::find(folders);
    masters.sort_by(|one, other| one.job.cmp(&other.job));
    for (path, reason) in ignored {
        notes.say(&format!("ignored {}: it {reason}", path.display()));
    }
    masters
}

/// The way to a master.
enum Way {
    /// A request to this address, with this token.
    Url(MasterUrl, Option<Token>),
    /// Through the Kubernetes API.
    Cluster(KubePlace),
}

/// The way to the master. Calls `running` only if the master may be local.
fn choose(verb: &'static str, config: &Config, running: impl FnOnce() -> Vec<Announced>) -> Result<Way, Error> {
    match &config.master {
        MasterChoice::At(url) if config.token.is_some() || !url.is_loopback() => {
            Ok(Way::Url(url.clone(), config.token.clone()))
        }
        MasterChoice::At(url) => {
            let named = running().into_iter().find(|master| master.url == *url);
            Ok(Way::Url(url.clone(), named.map(|master| master.token)))
        }
        MasterChoice::Local(because) => {
            let Announced { url, token, .. } = only(running(), *because, verb)?;
            Ok(Way::Url(url, Some(token)))
        }
        MasterChoice::Kube(place) => Ok(Way::Cluster(place.clone())),
    }
}

fn only(mut masters: Vec<Announced>, because: LocalBecause, verb: &'static str) -> Result<Announced, Error> {
    if masters.len() > 1 {
        return Err(Error::SeveralLocalMasters(masters));
    }
    match (masters.pop(), because) {
        (Some(master), _) => Ok(master),
        (None, LocalBecause::Default) => Err(Error::NeedsMaster { verb }),
        (None, LocalBecause::Asked) => Err(Error::NoLocalMaster),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ImageConfig;

    fn master(port: u16) -> Announced {
        let (url, token) = (format!("http://127.0.0.1:{port}"), format!("token-{port}"));
        Announced {
            url: url.parse().unwrap(),
            token: token.parse().unwrap(),
            job: format!("job-{port}").parse().unwrap(),
        }
    }

    fn config(master: MasterChoice, token: Option<&str>) -> Config {
        let token = token.map(|text| text.parse().unwrap());
        Config { master, token, run_folders: Vec::new(), image: ImageConfig::default() }
    }

    fn at(url: &str) -> MasterChoice {
        MasterChoice::At(url.parse().unwrap())
    }

    fn chosen(config: &Config, running: &[u16]) -> Result<(String, Option<String>), Error> {
        let running = || running.iter().map(|port| master(*port)).collect();
        let Way::Url(url, token) = choose("list", config, running)? else {
            panic!("a cluster was chosen instead of a URL")
        };
        Ok((url.to_string(), token.map(|token| token.text().to_owned())))
    }

    #[test]
    fn the_only_local_master_is_asked_with_its_own_token() {
        for because in [LocalBecause::Default, LocalBecause::Asked] {
            for token in [None, Some("of-another-master")] {
                let found = chosen(&config(MasterChoice::Local(because), token), &[1]).unwrap();
                assert_eq!(found, ("http://127.0.0.1:1".to_owned(), Some("token-1".to_owned())));
            }
        }
    }

    #[test]
    fn without_a_local_master_the_error_depends_on_whether_local_was_asked_for() {
        let default = chosen(&config(MasterChoice::Local(LocalBecause::Default), None), &[]);
        assert!(matches!(default, Err(Error::NeedsMaster { verb: "list" })));
        let asked = chosen(&config(MasterChoice::Local(LocalBecause::Asked), None), &[]);
        assert!(matches!(asked, Err(Error::NoLocalMaster)));
    }

    #[test]
    fn the_error_names_all_local_masters_if_several_run() {
        let error = chosen(&config(MasterChoice::Local(LocalBecause::Default), None), &[1, 2]).unwrap_err();
        let sentence = "2 local masters run: http://127.0.0.1:1 (job job-1), http://127.0.0.1:2 (job job-2)";
        assert_eq!(error.to_string(), sentence);
        assert_eq!(error.hint().unwrap(), "choose one, for example with --master http://127.0.0.1:1");
    }

    #[test]
    fn a_named_local_master_is_asked_with_its_own_token_if_no_token_is_given() {
        let token = |url, given| chosen(&config(at(url), given), &[1, 2]).unwrap().1;
        assert_eq!(token("http://127.0.0.1:2", None).as_deref(), Some("token-2"));
        assert_eq!(token("http://127.0.0.1:2/", None).as_deref(), Some("token-2"));
        assert_eq!(token("http://127.0.0.1:2", Some("given")).as_deref(), Some("given"));
        assert_eq!(token("http://127.0.0.1:3", None), None);
        assert_eq!(token("http://192.0.2.1:2", None), None);
    }
}
