//! The request of a job that runs again, from the job of an earlier run.

use protocol::elastic::Workers;
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec};
use protocol::view::JobView;

use super::{VariableLookup, job_request, name_after};
use crate::args::JobFlags;
use crate::ending::error::{Cause, Error};
use crate::output::command_line::command;

/// The job of the earlier run, with the changes of the command line. Without `replace`, it has a name of its own.
/// `variable` looks up a variable of the client's environment.
pub(crate) fn again(
    before: &JobView,
    changes: JobFlags,
    replace: bool,
    variable: VariableLookup<'_>,
) -> Result<JobRequest, Error> {
    let name = if replace { before.name.clone() } else { new_name(&before.name) };
    job_request(changes, repeated(before, name)?, variable)
}

/// A new name for another run of this job.
pub(crate) fn new_name(before: &JobName) -> JobName {
    name_after(before.as_str(), uuid::Uuid::new_v4().into_bytes())
}

/// The job with its latest code and number of workers, under this name.
pub(crate) fn repeated(before: &JobView, name: JobName) -> Result<JobRequest, Error> {
    if before.spec.origin.is_some() {
        let sentence = format!("job {} came from the file or the command of another launcher", before.name);
        return Err(Error::input(sentence).hint(format!("submit it as before, such as {}", command("apply -f FILE"))));
    }
    Ok(JobRequest { name, ..JobRequest::from(&last_spec(before)) })
}

/// The spec with the code and the workers that the user wanted last.
pub(crate) fn last_spec(view: &JobView) -> JobSpec {
    let mut spec = JobSpec::clone(&view.spec);
    spec.code = view.code.or(spec.code);
    if let Some(Workers { min, max }) = view.workers {
        (spec.worker_min, spec.worker_num) = (Some(min), max);
    }
    spec
}

/// Adds the next step for a job whose code the master no longer has.
pub(crate) fn about_code(error: Error) -> Error {
    let Cause::Master(cause) = &error.cause else { return error };
    if cause.lacks_code() { error.hint("submit the script from its folder again") } else { error }
}

#[cfg(test)]
mod tests {
    use protocol::env::EnvName;
    use serde_json::{Value, json};

    use super::*;
    use crate::args::{Parsed, Verb, parse};
    use crate::output::narrate::tests::pending;

    /// The new job of a command line, after a job with two workers.
    fn rerun(before: &JobSpec, flags: &str) -> Result<JobSpec, String> {
        rerun_of(&JobView { name: before.name.clone(), spec: before.clone().into(), ..pending(2) }, flags)
    }

    fn rerun_of(before: &JobView, flags: &str) -> Result<JobSpec, String> {
        let line = format!("client rerun digits {flags}");
        let parsed = parse(line.split_whitespace().map(Into::into)).map_err(|error| error.to_string())?;
        let Parsed::Command(cli) = parsed else { panic!("{flags} contains --help") };
        let Some(Verb::Rerun(args)) = cli.verb else { panic!("{line} is not a rerun") };
        let unset = |_: &EnvName| Ok(None);
        let request = again(before, args.changes, args.replace, &unset).map_err(|error| error.to_string())?;
        JobSpec::try_from(request).map_err(|error| error.to_string())
    }

    fn earlier() -> JobSpec {
        let line = "client rerun digits --task digits --worker-num 2:3 --env A=1 --env B=1 --memory 1Gi --volume empty:/a \
            --max-restarts 5 --requeue --global-batch 64 --tf-config a=1 --metric loss=(.*)x -- --epochs 3";
        let flags = line.strip_prefix("client rerun digits").unwrap();
        rerun(&pending(2).spec, flags).unwrap()
    }

    #[test]
    fn a_job_runs_again_under_a_new_name_unless_it_is_replaced_or_named() {
        let before = earlier();
        let renamed = rerun(&before, "").unwrap();
        assert!(renamed.name.as_str().starts_with("digits-"), "{}", renamed.name);
        assert_eq!(JobSpec { name: before.name.clone(), ..renamed }, before);
        assert_eq!(rerun(&before, "--replace").unwrap(), before);
        assert_eq!(rerun(&before, "--task letters").unwrap().name.as_str(), "letters");
        assert!(rerun(&before, "--task letters --replace").unwrap_err().contains("--replace"));
    }

    #[test]
    fn a_given_flag_changes_only_its_own_part_of_the_job() {
        for (flags, at, value) in [
            ("-- --epochs 9", "/args", json!(["--epochs", "9"])),
            ("--worker-num 5", "/worker_num", json!(5)),
            ("--env B=2", "/env/B", json!("2")),
            ("--memory 2Gi", "/pod/memory", json!("2Gi")),
            ("--cpu 2", "/pod/cpu", json!("2")),
            ("--volume empty:/b", "/pod/volumes", json!(["empty:/b"])),
            ("--max-restarts 3", "/run_policy/max_restarts", json!(3)),
            ("--deadline 1h", "/run_policy/deadline_seconds", json!(3600)),
            ("--no-preload", "/run_policy/preload", json!("never")),
            ("--global-batch 32", "/batching/global_batch", json!(32)),
            ("--min-batch 4", "/batching/min_batch", json!(4)),
            ("--tf-config a=2", "/tf_config/extra/a", json!(2)),
            ("--metric loss=(y)", "/metrics/loss", json!("(y)")),
        ] {
            let before = serde_json::to_value(earlier()).unwrap();
            let mut after = serde_json::to_value(rerun(&earlier(), &format!("--replace {flags}")).unwrap()).unwrap();
            assert_eq!(after.pointer(at), Some(&value), "{flags}");
            let is_new = before.pointer(at).is_none();
            assert_ne!(before.pointer(at), Some(&value), "{flags} changes nothing");
            let (parent, key) = at.rsplit_once('/').unwrap();
            let parent = after.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
            match before.pointer(at) {
                Some(old) => drop(parent.insert(key.to_owned(), old.clone())),
                None => drop(parent.remove(key)),
            }
            if flags.starts_with("--worker-num") {
                // One number makes the job fixed.
                parent.insert("worker_min".to_owned(), json!(2));
            }
            assert_eq!(after, before, "{flags} changes more than {at}; new: {is_new}");
        }
    }

    #[test]
    fn pushed_code_and_wanted_workers_are_those_of_the_new_job() {
        let code = Some("cd".repeat(32).parse().unwrap());
        let (mut view, workers) = (pending(2), Some(Workers { min: 2, max: 7 }));
        let spec = view.spec_mut();
        (spec.worker_min, spec.code) = (Some(2), Some("ab".repeat(32).parse().unwrap()));
        let again = rerun_of(&JobView { code, workers, ..view }, "").unwrap();
        assert_eq!((again.code, again.worker_min, again.worker_num), (code, Some(2), 7));
    }

    #[test]
    fn another_strategy_has_its_own_default_numbers() {
        let servers = rerun(&pending(2).spec, "--strategy ps").unwrap();
        assert_eq!((servers.worker_num, servers.ps_num, servers.chief_num), (2, 1, 1));
        let same = rerun(&servers, "--strategy ps --ps-num 3").unwrap();
        assert_eq!((same.ps_num, same.chief_num), (3, 1));
    }

    #[test]
    fn workers_of_a_group_are_counted_anew_if_groups_are_given() {
        let grouped = rerun(&pending(2).spec, "--worker memory=1Gi:3").unwrap();
        assert_eq!((grouped.worker_num, grouped.groups.len()), (3, 1));
        let refused = rerun(&grouped, "--worker-num 5").unwrap_err();
        assert!(refused.contains('5') && refused.contains('3'), "{refused}");
    }
}
