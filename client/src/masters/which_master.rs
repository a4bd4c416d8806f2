//! Which master a verb asks: the master that the user names, else the local master that has the job.

use std::path::PathBuf;

use master_client::{KubePlace, MasterClient, MasterError, MasterUrl, Token};
use protocol::ids::JobName;
use protocol::view::JobList;

use crate::address::config::{ClientConfig, LocalBecause, MasterChoice};
use crate::cluster::{Cluster, Forward};
use crate::ending::error::Error;
use crate::master::announcement::{self, Announced, FoundMaster};
use crate::output::Notes;
use crate::output::command_line::command;

/// The hint for a command that cannot use the local master of a job.
pub(crate) const START_A_MASTER: &str =
    "run `master --backend process` in another terminal and give --master http://127.0.0.1:7897";

/// The masters that a verb asks.
#[derive(Clone)]
pub(crate) enum Masters {
    /// The master that the user names, or the only local master that runs.
    One(MasterClient),
    /// Several local masters run. Each of them has one job.
    Local(Vec<Announced>),
}

impl Masters {
    /// The masters for this verb.
    pub(crate) async fn find(verb: &'static str, config: &ClientConfig, notes: &Notes) -> Result<Self, Error> {
        match choose(verb, config, || running(&config.run_folders, notes))? {
            WayToMaster::Url(url, token) => Ok(Self::One(MasterClient::new(url, token.as_ref())?)),
            WayToMaster::Cluster(place) => through_cluster(place, config.token.clone()).await.map(Self::One),
            WayToMaster::Several(masters) => Ok(Self::Local(masters)),
        }
    }

    /// The local masters that run now.
    pub(crate) fn running_now(run_folders: &[PathBuf]) -> Self {
        Self::Local(sorted(announcement::find(run_folders).masters))
    }

    /// A client of the master that has this job.
    pub(crate) fn of(&self, name: &JobName) -> Result<MasterClient, Error> {
        match self {
            Self::One(client) => Ok(client.clone()),
            Self::Local(masters) => Ok(client_of(&of_job(masters, name)?)?),
        }
    }

    /// Whether the job may be on record: a local master has it, or the master that the user names may have it.
    pub(crate) fn may_have(&self, name: &JobName) -> bool {
        match self {
            Self::One(_) => true,
            Self::Local(masters) => masters.iter().any(|master| master.job == *name),
        }
    }

    /// Collects the answers of all masters. Leaves out local masters that have ended meanwhile, because their jobs have
    /// ended too.
    pub(crate) async fn of_all<T>(
        &self,
        ask: impl AsyncFn(&MasterClient) -> Result<Vec<T>, MasterError>,
    ) -> Result<Vec<T>, MasterError> {
        let masters = match self {
            Self::One(client) => return ask(client).await,
            Self::Local(masters) => masters,
        };
        let mut answers = Vec::new();
        for master in masters {
            match ask(&client_of(master)?).await {
                Ok(answer) => answers.extend(answer),
                Err(MasterError::NotConnected { .. } | MasterError::Unreachable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(answers)
    }

    /// All jobs on record.
    pub(crate) async fn list(&self) -> Result<JobList, MasterError> {
        match self {
            Self::One(client) => client.list().await,
            Self::Local(_) => {
                Ok(JobList { seq: 0, jobs: self.of_all(async |client| Ok(client.list().await?.jobs)).await? })
            }
        }
    }
}

fn client_of(master: &Announced) -> Result<MasterClient, MasterError> {
    MasterClient::new(master.url.clone(), Some(&master.token))
}

/// The local master that has this job.
fn of_job(masters: &[Announced], name: &JobName) -> Result<Announced, Error> {
    let mut with_job: Vec<Announced> = masters.iter().filter(|master| master.job == *name).cloned().collect();
    match (with_job.len(), with_job.pop()) {
        (1, Some(master)) => Ok(master),
        (_, Some(last)) => {
            with_job.push(last);
            let hint = format!("choose one, for example with --master {}", with_job[0].url);
            Err(Error::input(listed(&with_job)).hint(hint))
        }
        (_, None) if masters.is_empty() => Err(Error::input(format!("no local master runs job {name}"))),
        (_, None) => Err(Error::input(format!("no local master runs job {name}: {}", listed(masters)))
            .hint(format!("to see all local jobs: {}", command("list")))),
    }
}

fn listed(masters: &[Announced]) -> String {
    let named: Vec<String> = masters.iter().map(|master| format!("{} (job {})", master.url, master.job)).collect();
    format!("{} local masters run: {}", named.len(), named.join(", "))
}

/// A client of the master that the user names, for a new job or an image. `None` if the master is local: a new job then
/// gets its own local master. The local master of another command is not used, because it ends with its own job.
pub(crate) async fn running_master(config: &ClientConfig) -> Result<Option<MasterClient>, Error> {
    match &config.master {
        MasterChoice::At(url) => Ok(Some(MasterClient::new(url.clone(), config.token.as_ref())?)),
        MasterChoice::Kube(place) => through_cluster(place.clone(), config.token.clone()).await.map(Some),
        MasterChoice::Local(_) => Ok(None),
    }
}

/// A client of the master in this place. Without a token, reads the token in the Secret.
pub(crate) async fn through_cluster(place: KubePlace, token: Option<Token>) -> Result<MasterClient, Error> {
    let cluster = Cluster::connect(&place).await?;
    let token = match token {
        Some(token) => token,
        None => cluster.token().await?,
    };
    Ok(MasterClient::through(place, &token, Forward::open(cluster)?)?)
}

/// If a namespace is given, chooses the master in this namespace. If the user has named an address or `local`, keeps
/// the user's choice.
pub(crate) fn with_namespace(config: &ClientConfig, namespace: Option<&String>) -> ClientConfig {
    let Some(namespace) = namespace else { return config.clone() };
    let in_namespace = |place: KubePlace| MasterChoice::Kube(place.or_namespace(Some(namespace.clone())));
    let master = match &config.master {
        MasterChoice::Local(LocalBecause::Default) => in_namespace(KubePlace::default()),
        MasterChoice::Kube(place) => in_namespace(place.clone()),
        MasterChoice::Local(LocalBecause::Asked) | MasterChoice::At(_) => config.master.clone(),
    };
    ClientConfig { master, ..config.clone() }
}

/// The local masters that run, sorted by the names of their jobs. Names the files that are ignored.
pub(crate) fn running(folders: &[PathBuf], notes: &Notes) -> Vec<Announced> {
    let FoundMaster { masters, ignored } = announcement::find(folders);
    for (path, reason) in ignored {
        notes.say(&format!("ignored {}: it {reason}", path.display()));
    }
    sorted(masters)
}

fn sorted(mut masters: Vec<Announced>) -> Vec<Announced> {
    masters.sort_by(|one, other| one.job.cmp(&other.job));
    masters
}

/// The way to a master.
enum WayToMaster {
    /// Requests to this address, with this token.
    Url(MasterUrl, Option<Token>),
    /// Requests through the Kubernetes API.
    Cluster(KubePlace),
    /// Requests to each of these local masters.
    Several(Vec<Announced>),
}

/// The way to the master. Calls `running` only if the master may be local.
fn choose(
    verb: &'static str,
    config: &ClientConfig,
    running: impl FnOnce() -> Vec<Announced>,
) -> Result<WayToMaster, Error> {
    match &config.master {
        MasterChoice::At(url) if config.token.is_some() || !url.is_loopback() => {
            Ok(WayToMaster::Url(url.clone(), config.token.clone()))
        }
        MasterChoice::At(url) => {
            let named = running().into_iter().find(|master| master.url == *url);
            Ok(WayToMaster::Url(url.clone(), named.map(|master| master.token)))
        }
        MasterChoice::Local(because) => local(running(), *because, verb),
        MasterChoice::Kube(place) => Ok(WayToMaster::Cluster(place.clone())),
    }
}

fn local(mut masters: Vec<Announced>, because: LocalBecause, verb: &'static str) -> Result<WayToMaster, Error> {
    if masters.len() > 1 {
        return Ok(WayToMaster::Several(masters));
    }
    match (masters.pop(), because) {
        (Some(Announced { url, token, .. }), _) => Ok(WayToMaster::Url(url, Some(token))),
        (None, LocalBecause::Default) => Err(Error::input(format!("no master is given, but \"{verb}\" needs one"))
            .hint("give --master URL or set MUSTER_MASTER; you have no running local master")),
        (None, LocalBecause::Asked) => {
            Err(Error::input("you have no running local master: a local master ends with its job").hint(START_A_MASTER))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::config::ImageConfig;

    fn master(port: u16) -> Announced {
        let (url, token) = (format!("http://127.0.0.1:{port}"), format!("token-{port}"));
        Announced {
            url: url.parse().unwrap(),
            token: token.parse().unwrap(),
            job: format!("job-{port}").parse().unwrap(),
        }
    }

    fn config(master: MasterChoice, token: Option<&str>) -> ClientConfig {
        let token = token.map(|text| text.parse().unwrap());
        ClientConfig {
            master,
            token,
            run_folders: Vec::new(),
            history: None,
            notify: None,
            image: ImageConfig::default(),
        }
    }

    fn at(url: &str) -> MasterChoice {
        MasterChoice::At(url.parse().unwrap())
    }

    fn chosen(config: &ClientConfig, running: &[u16]) -> Result<(String, Option<String>), Error> {
        let running = || running.iter().map(|port| master(*port)).collect();
        let WayToMaster::Url(url, token) = choose("list", config, running)? else {
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
    fn a_name_chooses_one_of_several_local_masters() {
        let config = config(MasterChoice::Local(LocalBecause::Default), None);
        let running = || [1, 2, 3].map(|port| Announced { job: "twin".parse().unwrap(), ..master(port) });
        let running = || running().into_iter().skip(1).chain([master(1)]).collect();
        let WayToMaster::Several(masters) = choose("list", &config, running).unwrap() else {
            panic!("one master was chosen")
        };
        let url = |job: &str| of_job(&masters, &job.parse().unwrap()).map(|master| master.url.to_string());
        assert_eq!(url("job-1").unwrap(), "http://127.0.0.1:1");
        let twins = url("twin").unwrap_err();
        let sentence = "2 local masters run: http://127.0.0.1:2 (job twin), http://127.0.0.1:3 (job twin)";
        assert_eq!(twins.to_string(), sentence);
        assert_eq!(twins.hint.unwrap(), "choose one, for example with --master http://127.0.0.1:2");
        let none = url("job-9").unwrap_err().to_string();
        assert!(none.starts_with("no local master runs job job-9: 3 local masters run: "), "{none}");
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
