//! Turns the arguments of a submit into a valid job before anything starts.

pub(crate) mod about;
pub(crate) mod again;
pub(crate) mod env_file;
pub(crate) mod script;
pub(crate) mod spawn;
pub(crate) mod tfjob;

use std::collections::BTreeMap;
use std::convert::identity;
use std::io;
use std::path::Path;

use protocol::env::EnvName;
use protocol::ids::{JobName, SHORT_NAME_MAX};
use protocol::job::{JobRequest, JobSpec, SpecError};

use crate::args::{EnvArg, JobFlags, Metric};
use crate::ending::error::Error;
use crate::output::command_line::command;
use crate::request::script::no_script;

/// Number of characters of a name's random suffix. The suffix distinguishes jobs of the same folder.
const TAIL_LENGTH: usize = 5;

/// A value is invalid, or values contradict each other.
impl From<SpecError> for Error {
    fn from(error: SpecError) -> Self {
        let hint = error.hint().replace("{train}", &command("train.py --image IMAGE"));
        Self::input(error.to_string()).hint(hint)
    }
}

/// The error for a file or folder that cannot be read.
pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::input(format!("read {}", path.display())).because(error)
}

/// Looks up a variable of the client's environment.
pub(crate) type VariableLookup<'a> = &'a dyn Fn(&EnvName) -> Result<Option<String>, Error>;

/// The request `base` with the changes of the given flags. Checks the values. A new strategy has its own default
/// numbers of chiefs and parameter servers.
pub(crate) fn job_request(
    flags: JobFlags,
    base: JobRequest,
    variable: VariableLookup<'_>,
) -> Result<JobRequest, Error> {
    let JobFlags {
        strategy,
        worker_num,
        worker,
        ps_num,
        chief_num,
        evaluator_num,
        nproc_per_node,
        task,
        env,
        env_file,
        allow_env,
        args,
        batching,
        metric,
        policy,
        pod,
    } = flags;
    let pod = pod.over(base.pod);
    if let Some(path) = pod.path_mounted_twice() {
        return Err(Error::input(format!("--volume: two volumes have the path {path}"))
            .hint("give the volumes different paths"));
    }
    let is_other = strategy.is_some_and(|strategy| strategy != base.strategy);
    let (ps, chiefs) = if is_other { (None, None) } else { (base.ps_num, base.chief_num) };
    let (max, min) = match worker_num {
        Some(workers) => (Some(workers.max), workers.min),
        None if worker.is_empty() => (base.worker_num, base.worker_min),
        None => (None, None),
    };
    let metrics = metric.into_iter().map(|Metric(name, pattern)| (name, pattern));
    let request = JobRequest {
        name: task.unwrap_or(base.name),
        strategy: strategy.unwrap_or(base.strategy),
        worker_num: max,
        worker_min: min,
        ps_num: ps_num.or(ps),
        chief_num: chief_num.or(chiefs),
        evaluator_num: evaluator_num.or(base.evaluator_num),
        nproc_per_node: nproc_per_node.or(base.nproc_per_node),
        pod,
        groups: if worker.is_empty() { base.groups } else { worker },
        batching: batching.batches_over(&base.batching),
        tf_config: batching.tf_config_over(base.tf_config),
        metrics: base.metrics.into_iter().chain(metrics).collect(),
        run_policy: policy.over(base.run_policy),
        args: if args.is_empty() { base.args } else { args },
        env: base.env.into_iter().chain(variables(env, env_file.as_deref(), variable)?).collect(),
        allow_env: base.allow_env.into_iter().chain(allow_env).collect(),
        image: base.image,
        work_dir: base.work_dir,
        code: base.code,
        script: base.script,
        origin: base.origin,
        about: base.about,
    };
    // Report a mistake before anything starts.
    JobSpec::try_from(request.clone())?;
    Ok(request)
}

/// The job whose replicas are processes. The replicas run the script in `folder`, which must be absolute.
pub(crate) fn in_folder(request: JobRequest, folder: &Path) -> Result<JobSpec, Error> {
    if folder.to_str().is_none() {
        // The request is JSON, which cannot contain such a path.
        return Err(Error::input(format!("the folder {} has a name that is not valid UTF-8", folder.display())));
    }
    let script = request.script.clone().unwrap_or_default();
    match folder.join(script.as_str()).metadata() {
        Ok(found) if found.is_file() => {
            Ok(JobSpec::try_from(JobRequest { work_dir: Some(folder.to_owned()), ..request })?)
        }
        Ok(_) => Err(Error::input(format!("{script} in {} is not a file", folder.display()))),
        Err(_) => {
            let hint = format!("name the training script, for example {}", command("train.py"));
            Err(no_script(&script, folder).hint(hint))
        }
    }
}

/// The variables of flags and of a file. `variable` looks up a variable of the client's environment.
pub(crate) fn variables(
    flags: Vec<EnvArg>,
    file: Option<&Path>,
    variable: VariableLookup<'_>,
) -> Result<BTreeMap<EnvName, String>, Error> {
    let from_file = file.map(env_file::read).transpose()?.unwrap_or_default();
    let pair = |flag, written: fn(String) -> String| match flag {
        EnvArg::Set(name, value) => Ok((name, written(value))),
        EnvArg::PassOn(name) => {
            let unset = || {
                Error::input(format!("--env {name}: {name} is not set in your environment"))
                    .hint(format!("set {name}, or give --env {name}=VALUE"))
            };
            let value = variable(&name).map_err(|error| error.at("--env"))?.ok_or_else(unset)?;
            Ok((name, not_expanded(value)))
        }
    };
    // A file and the client's environment may have secrets with `$`, so only the values in flags are expanded.
    let from_file = from_file.into_iter().map(|variable| pair(variable, not_expanded));
    // The last value of a name wins, so flags win over the file.
    from_file.chain(flags.into_iter().map(|flag| pair(flag, identity))).collect()
}

/// Writes a value so that the master does not expand it.
pub(crate) fn not_expanded(value: String) -> String {
    if value.contains("$(") || value.contains("$$") { value.replace('$', "$$") } else { value }
}

/// A random suffix for a name.
pub(crate) fn tail(random: [u8; 16]) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    random[..TAIL_LENGTH].iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// A name for a new job: the words of `folder`, which is the name of a folder or of an earlier job, and a random
/// suffix.
pub(crate) fn name_after(folder: &str, random: [u8; 16]) -> JobName {
    let stem = words_of(folder, SHORT_NAME_MAX - TAIL_LENGTH - 1);
    let stem = if stem.is_empty() { "job" } else { &stem };
    format!("{stem}-{}", tail(random)).parse().expect("words of [a-z0-9] joined by '-' make a label")
}

/// The ASCII letters and digits of a folder's name in lower case, at most `max` characters, with `-` between words.
pub(crate) fn words_of(folder: &str, max: usize) -> String {
    let lower = folder.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut joined = words.collect::<Vec<_>>().join("-");
    joined.truncate(max);
    joined.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use protocol::job::Strategy;
    use protocol::pod::PodOptions;
    use protocol::run_policy::RunPolicy;
    use serde_json::json;

    use super::*;

    const RANDOM: [u8; 16] = [0, 25, 26, 35, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn spec(flags: &[&str]) -> Result<JobSpec, String> {
        JobSpec::try_from(request(flags)?).map_err(|error| error.to_string())
    }

    fn request(flags: &[&str]) -> Result<JobRequest, String> {
        let line = ["client"].iter().chain(flags).map(Into::into);
        let crate::args::Parsed::Command(cli) = crate::args::parse(line).map_err(|error| error.to_string())? else {
            panic!("{flags:?} contains --help");
        };
        let variable = |name: &EnvName| Ok((name.as_str() == "MINE").then(|| "my own".to_owned()));
        let base = JobRequest::new(name_after("digits", RANDOM), Strategy::AllReduce);
        job_request(cli.submit.job, base, &variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_job_is_named_after_its_folder_with_a_suffix() {
        for (folder, name) in [
            ("digits", "digits-az09a"),
            ("My Project (2)", "my-project-2-az09a"),
            ("--x__y--", "x-y-az09a"),
            ("", "job-az09a"),
            ("数字", "job-az09a"),
            ("é-1", "1-az09a"),
            ("a23456789012345678901234567890123-5678901234", "a23456789012345678901234567890123-az09a"),
        ] {
            assert_eq!(name_after(folder, RANDOM).as_str(), name, "{folder}");
        }
    }

    #[test]
    fn omitted_flags_have_their_defaults() {
        let spec = spec(&[]).unwrap();
        assert_eq!((spec.worker_num, spec.ps_num, spec.chief_num, spec.evaluator_num), (2, 0, 0, 0));
        assert_eq!((spec.work_dir, spec.image, spec.pod), (None, None, PodOptions::default()));
        assert_eq!(spec.name.as_str(), "digits-az09a");
    }

    #[test]
    fn flags_for_pods_reach_the_job() {
        let line = "--cpu 2 --memory 1Gi:2Gi --gpus 1 --shm 2Gi --volume pvc:data:/data:ro --volume empty:/tmp/x --env-secret keys \
            --node-selector disk=ssd --node-selector disk=nvme --toleration spot=true:NoSchedule --priority-class high \
            --service-account trainer --image-pull-policy always --termination-grace 1m30s --allow-root";
        let pod = spec(&line.split_whitespace().collect::<Vec<_>>()).unwrap().pod;
        let expected = json!({
            "cpu": "2", "memory": "1Gi:2Gi", "gpus": 1, "shm": "2Gi", "volumes": ["pvc:data:/data:ro", "empty:/tmp/x"],
            "env_secrets": ["keys"], "node_selector": {"disk": "nvme"}, "tolerations": ["spot=true:NoSchedule"],
            "priority_class": "high", "service_account": "trainer", "image_pull_policy": "Always",
            "termination_grace_seconds": 90, "allow_root": true,
        });
        assert_eq!(serde_json::to_value(&pod).unwrap(), expected);
        // --volume and --node-selector are given twice, and --termination-grace does not need a pod.
        assert_eq!(pod.asked_for().len(), line.matches("--").count() - 3, "asked_for does not list each given flag");
    }

    #[test]
    fn flags_of_the_run_policy_reach_the_job() {
        let defaults = spec(&["--chief-num", "1"]).unwrap().run_policy;
        assert_eq!(defaults, RunPolicy::default());
        for (flags, change) in [
            ("--max-restarts 7", json!({"max_restarts": 7})),
            ("--backoff 1m30s", json!({"backoff_seconds": 90})),
            ("--no-retry-exit-codes 2,200", json!({"no_retry_exit_codes": [2, 200]})),
            ("--start-timeout 2h", json!({"start_timeout_seconds": 7200})),
            ("--on-failure wait", json!({"on_failure": "wait"})),
            ("--retry-same", json!({"on_same_failure": "restart"})),
            ("--requeue", json!({"on_start_timeout": "requeue"})),
            ("--deadline 1d", json!({"deadline_seconds": 86400})),
            ("--ttl-after-finished 0s", json!({"ttl_after_finished_seconds": 0})),
            ("--clean-pods none", json!({"clean_pods": "none"})),
            ("--clean-pods all", json!({"clean_pods": "all"})),
            ("--success-policy chief", json!({"success_policy": "chief"})),
            ("--grow-interval 10s", json!({"grow_interval_seconds": 10})),
            ("--evaluator-grace 0s", json!({"evaluator_grace_seconds": 0})),
            ("--preload", json!({"preload": {"modules": []}})),
            ("--preload=tensorflow.keras,numpy", json!({"preload": {"modules": ["tensorflow.keras", "numpy"]}})),
            ("--no-preload", json!({"preload": "never"})),
            ("--success-policy worker-0", json!({"success_policy": "worker-0"})),
        ] {
            let line: Vec<&str> = ["--chief-num", "1"].into_iter().chain(flags.split_whitespace()).collect();
            let mut expected = serde_json::to_value(&defaults).unwrap();
            expected.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            assert_eq!(serde_json::to_value(spec(&line).unwrap().run_policy).unwrap(), expected, "{flags}");
        }
    }

    #[test]
    fn the_flags_on_unreachable_and_lease_reach_every_job_and_wrong_combinations_are_refused() {
        let flags = ["--worker-num", "1:2", "--on-unreachable", "replace", "--lease", "2s"];
        for flags in [&flags[..], &flags[2..]] {
            let policy = serde_json::to_value(spec(flags).unwrap().run_policy).unwrap();
            assert_eq!((&policy["on_unreachable"], &policy["lease_seconds"]), (&json!("replace"), &json!(2)));
        }
        assert!(
            spec(&flags[4..]).unwrap_err().contains("--on-unreachable"),
            "the error for --lease alone does not name --on-unreachable"
        );
        assert!(spec(&["--on-unreachable", "wait", "--lease", "0s"]).unwrap_err().starts_with("lease is 0"));
    }

    #[test]
    fn a_job_whose_script_is_in_its_image_cannot_wait_for_new_code() {
        let in_image = |choice| {
            let image = Some("digits_pod:1".parse().unwrap());
            JobSpec::try_from(JobRequest { image, ..request(&["--on-failure", choice]).unwrap() })
        };
        let refused = in_image("wait").unwrap_err().to_string();
        assert!(refused.starts_with("on-failure wait needs a job that brings its code"), "{refused}");
        assert!(in_image("restart").is_ok());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_last_flag_wins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.env");
        std::fs::write(&file, "A=file\nB=file\nMINE\nSECRET=pa$$(RANK)$x\n").unwrap();
        let spec = spec(&["--env", "B=one", "--env", "B=two$(A)", "--env-file", file.to_str().unwrap()]).unwrap();
        let env: Vec<_> = spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("A", "file"), ("B", "two$(A)"), ("MINE", "my own"), ("SECRET", "pa$$$$(RANK)$$x")]);
    }

    #[test]
    fn a_variable_that_runs_other_code_is_refused_unless_allow_env_names_it() {
        let refused = spec(&["--env", "LD_PRELOAD=/x.so", "--allow-env", "LD_AUDIT"]).unwrap_err();
        assert!(refused.starts_with("LD_PRELOAD makes a program load or run code"), "{refused}");
        let allowed = spec(&["--env", "LD_PRELOAD=/x.so", "--allow-env", "LD_PRELOAD"]).unwrap();
        assert_eq!((allowed.env.len(), allowed.allow_env.len()), (1, 1));
    }
}
