//! `uninstall`: asks the user, and then removes the master of a namespace with all its jobs.

use super::ask::ask;
use crate::address::config::{ClientConfig, MasterChoice};
use crate::args::UninstallArgs;
use crate::cluster::{self, Cluster, Removable};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::{Notes, command_line};

pub(super) async fn run(args: UninstallArgs, config: &ClientConfig, notes: &Notes) -> Result<Exit, Error> {
    let UninstallArgs { place, yes, dry_run, force } = args;
    let place = config.place().or_namespace(place.namespace);
    command_line::remember_choice(&config.master, &MasterChoice::Kube(place.clone()));
    let cluster = Cluster::connect(&place).await?;
    let found = cluster::find(&cluster).await?;
    let (namespace, context) = (cluster.namespace(), cluster.context());
    if found == Removable::default() {
        notes.say(&format!("nothing of Muster is in namespace {namespace} of context {context}"));
        return Ok(Exit::Done);
    }
    notes.say(&format!("to be removed from namespace {namespace} of context {context}:"));
    notes.say(&listed(&found));
    if dry_run {
        return Ok(Exit::Done);
    }
    if !found.unfinished.is_empty() && !force {
        let names = found.unfinished.join(", ");
        let cancel = command_line::command(&format!("cancel {}", found.unfinished[0]));
        return Err(Error::input(format!("jobs in namespace {namespace} have not ended: {names}"))
            .hint(format!("add --force to stop all jobs, or cancel these jobs, for example: {cancel}")));
    }
    if !yes && !is_wanted(notes).await? {
        notes.say("nothing was removed");
        return Ok(Exit::NotSucceeded);
    }
    cluster::remove(&cluster, notes).await?;
    notes.say("Muster is uninstalled from this namespace");
    Ok(Exit::Done)
}

fn listed(found: &Removable) -> String {
    let Removable { jobs, unfinished, objects } = found;
    let job = |name: &String| {
        let state = if unfinished.contains(name) { "has not ended" } else { "has ended" };
        format!("  job {name} ({state})")
    };
    jobs.iter().map(job).chain(objects.iter().map(|object| format!("  {object}"))).collect::<Vec<_>>().join("\n")
}

/// Asks the user at the terminal.
async fn is_wanted(notes: &Notes) -> Result<bool, Error> {
    let no_consent = || {
        Error::input("uninstalling needs your consent, and stdin is not a terminal")
            .hint("add -y to uninstall without a question")
    };
    let answer = ask("remove all of this? [y/N]", notes).await.ok_or_else(no_consent)?;
    Ok(matches!(answer.as_str(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_listed_with_their_state() {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let found = Removable {
            jobs: texts(&["a", "b"]),
            unfinished: texts(&["b"]),
            objects: texts(&["deployment/muster", "secret/muster"]),
        };
        let expected = "  job a (has ended)\n  job b (has not ended)\n  deployment/muster\n  secret/muster";
        assert_eq!(listed(&found), expected);
    }
}
