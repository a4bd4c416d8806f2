//! `rerun`: submits the job of an earlier run again, also a job that is only in the history.

use protocol::error::ErrorCode;
use protocol::job::JobSpec;

use super::order::Order;
use super::past;
use super::submit::{at_own_master, no_detach, send};
use super::which_master::running_master;
use crate::address::config::Config;
use crate::args::RerunArgs;
use crate::ending::error::{Cause, Error, MasterError};
use crate::ending::exit::Exit;
use crate::output::command_line::command;
use crate::output::{Data, Notes, Output};
use crate::request::name_after;

/// Submits the job again, under a new name unless the new job replaces the earlier one.
pub(super) async fn run(args: RerunArgs, config: &Config, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let seen = past::find("rerun", &args.job.name, config, notes).await?;
    let spec = again(seen.view().spec.clone(), &args)?;
    let order = Order::of_job(spec, None);
    let out = Output { format: args.format.output, data, notes: notes.clone() };
    let Some(client) = running_master(config).await? else {
        if args.detach {
            return Err(no_detach());
        }
        return at_own_master(order, config, out).await;
    };
    send(client, order, (args.replace, args.detach), out).await.map_err(about_code)
}

/// The job of the earlier run, with the changes of the command line.
fn again(spec: JobSpec, args: &RerunArgs) -> Result<JobSpec, Error> {
    let RerunArgs { job, task, replace, script_args, detach: _, format: _ } = args;
    if spec.origin.is_some() {
        let sentence = format!("job {} came from the file or the command of another launcher", job.name);
        return Err(Error::input(sentence).hint(format!("submit it as before, such as {}", command("apply -f FILE"))));
    }
    let name = match task {
        Some(task) => task.clone(),
        None if *replace => job.name.clone(),
        None => name_after(job.name.as_str(), uuid::Uuid::new_v4().into_bytes()),
    };
    let args = if script_args.is_empty() { spec.args.clone() } else { script_args.clone() };
    Ok(JobSpec { name, args, ..spec })
}

/// Adds the next step for a job whose code the master no longer has.
fn about_code(error: Error) -> Error {
    let Cause::Master(cause) = &error.cause else { return error };
    if matches!(cause.as_ref(), MasterError::Refused(problem) if problem.code == ErrorCode::CodeMissing) {
        return error.hint("the master keeps code only while a job uses it: submit the script from its folder again");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Format, FormatArgs, NameArg};
    use crate::output::narrate::tests::pending;

    fn args(task: Option<&str>, replace: bool, script_args: &[&str]) -> RerunArgs {
        RerunArgs {
            job: NameArg { name: "digits".parse().unwrap() },
            task: task.map(|task| task.parse().unwrap()),
            replace,
            detach: false,
            format: FormatArgs { output: Format::Text },
            script_args: script_args.iter().map(|arg| (*arg).to_owned()).collect(),
        }
    }

    #[test]
    fn a_job_runs_again_under_a_new_name_unless_it_is_replaced_or_named() {
        let before = JobSpec { args: vec!["--epochs".to_owned(), "3".to_owned()], ..pending(2).spec };
        let renamed = again(before.clone(), &args(None, false, &[])).unwrap();
        assert!(renamed.name.as_str().starts_with("digits-"), "{}", renamed.name);
        assert_eq!(JobSpec { name: before.name.clone(), ..renamed }, before);
        assert_eq!(again(before.clone(), &args(None, true, &[])).unwrap(), before);
        let named = again(before.clone(), &args(Some("letters"), false, &["--epochs", "9"])).unwrap();
        assert_eq!((named.name.as_str(), named.args.join(" ").as_str()), ("letters", "--epochs 9"));
    }
}
