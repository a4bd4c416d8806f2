//! Tests of `spawn/`.

use std::path::Path;

use clap::Parser;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use serde_json::json;

use super::*;

/// A command line of `spawn` alone.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    spawn: SpawnArgs,
}

fn args(words: &[&str]) -> SpawnArgs {
    Line::parse_from([&["tf-spawner"], words].concat()).spawn
}

fn inputs() -> Inputs {
    Inputs { script: "mnist.py".to_owned(), content: b"print()".to_vec(), commands: None, pod: None, env: vec![] }
}

fn spawned(words: &[&str], inputs: Inputs, is_local: bool) -> (JobSpec, Vec<(String, String)>) {
    let args = args(words);
    let tag = Tag::of(&args, uuid::Uuid::nil()).unwrap();
    let (request, files) = job(&args, tag, inputs, is_local).unwrap();
    let text = |(path, content): (CodePath, Vec<u8>)| (path.to_string(), String::from_utf8(content).unwrap());
    (JobSpec::try_from(request).unwrap(), files.into_iter().map(text).collect())
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: { name: PODNAME, labels: { app: APPNAME, team: vision } }
spec:
  initContainers:
    - { name: wait, volumeMounts: [{ name: script, mountPath: /script }] }
  containers:
    - name: main
      image: mnist:2
      env:
      resources: { limits: { nvidia.com/gpu: 1 } }
      command: [python, /script/training-script.py, --fast]
      volumeMounts: [{ name: script, mountPath: /script }, { name: data, mountPath: /data }]
  volumes:
    - { name: script, configMap: { name: script } }
    - { name: data, emptyDir: {} }
";

fn read(text: &str) -> Result<PodFile, String> {
    pod_file(text, Path::new("pod.yaml")).map_err(|error| error.to_string())
}

#[test]
fn a_tag_names_the_job_and_an_invalid_or_second_tag_is_refused() {
    let tag = |words: &[&str]| Tag::of(&args(words), uuid::Uuid::nil()).map(|tag| (tag.text, tag.job.to_string()));
    let is = |text: &str, job: &str| (text.to_owned(), job.to_owned());
    assert_eq!(tag(&["a.py"]).unwrap(), is("tf-spawner", "tf-spawner"));
    assert_eq!(tag(&["-t", "Run_1.b", "a.py"]).unwrap(), is("Run_1.b", "run-1-b"));
    assert_eq!(tag(&["-t", "x", "-r", "a.py"]).unwrap(), is("00000000", "00000000"));
    assert_eq!(tag(&["-d", "run1"]).unwrap(), is("run1", "run1"));
    assert_eq!(tag(&["-d", "-t", "run1"]).unwrap(), is("run1", "run1"));
    let refused = |words: &[&str]| tag(words).unwrap_err().to_string();
    assert!(refused(&["-t", "a b", "a.py"]).starts_with("tag \"a b\" cannot be a label"));
    assert!(Line::try_parse_from(["tf-spawner", "-d", "run1", "-r"]).is_err(), "-r was accepted together with -d TAG");
    assert_eq!(refused(&["-d", "run1", "-t", "run2"]), "-d run1 and -t run2 both name a tag: give only one of them");
}

#[test]
fn without_a_pod_file_workers_have_the_resources_and_image_of_tf_spawner() {
    let (spec, files) = spawned(&["-w", "3", "mnist.py"], inputs(), false);
    assert_eq!((spec.worker_num, spec.run_policy.max_restarts), (3, 0));
    assert_eq!(spec.image.as_ref().map(ToString::to_string).as_deref(), Some("tensorflow/tensorflow"));
    let last: ReplicaId = "worker-2".parse().unwrap();
    let group = spec.group_of(last).unwrap();
    let template = group.template.as_ref().unwrap();
    assert_eq!((template.tf_port, template.container.as_str()), (1999, "tensorflow"));
    assert_eq!(template.pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1000m");
    assert_eq!(spec.command_of(last), ["python", "training-script.py"]);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["mnist.py", "training-script.py"]);
    let labels = spec.labels_of(last);
    assert_eq!((labels["app"].as_str(), labels["training_attempt"].as_str()), ("worker2", "tf-spawner"));
}

#[test]
fn a_pod_file_gives_the_pod_its_image_and_its_command_and_a_flag_replaces_the_image() {
    let pod = Some(read(POD).unwrap());
    let (spec, _) = spawned(&["-p", "2222", "mnist.py"], Inputs { pod: pod.clone(), ..inputs() }, false);
    let first: ReplicaId = "worker-0".parse().unwrap();
    assert_eq!(spec.image, None, "the job has an image, which would replace that of the pod file");
    assert_eq!(spec.command_of(first), ["python", "/script/training-script.py", "--fast"]);
    let template = spec.group_of(first).unwrap().template.clone().unwrap();
    assert_eq!((template.container.as_str(), template.tf_port), ("main", 2222));
    let container = &template.pod["spec"]["containers"][0];
    assert_eq!(container["volumeMounts"], json!([{ "name": "data", "mountPath": "/data" }]));
    assert_eq!(template.pod["spec"]["initContainers"][0]["volumeMounts"], json!([]));
    assert_eq!(template.pod["spec"]["volumes"], json!([{ "name": "data", "emptyDir": {} }]));
    assert_eq!(template.pod["metadata"]["labels"]["team"], "vision");
    let (spec, _) = spawned(&["-i", "other:1", "mnist.py"], Inputs { pod, ..inputs() }, false);
    assert_eq!(spec.image.map(|image| image.to_string()).as_deref(), Some("other:1"));
}

#[test]
fn commands_run_in_bash_and_for_a_local_job_the_path_of_the_script_is_replaced() {
    let commands = Some("pip install x\npython /script/training-script.py\n".to_owned());
    let with_commands = Inputs { commands, pod: Some(read(POD).unwrap()), ..inputs() };
    let (spec, files) = spawned(&["-i", "other:1", "mnist.py"], with_commands.clone(), false);
    let first: ReplicaId = "worker-0".parse().unwrap();
    assert_eq!(spec.command_of(first), ["bash", "-e", ".tf-spawner/command.sh"]);
    assert_eq!(files[2].1, "pip install x\npython /script/training-script.py\n");
    let (spec, files) = spawned(&["-i", "other:1", "mnist.py"], with_commands, true);
    assert_eq!(files[2].1, "pip install x\npython training-script.py\n");
    let group = spec.group_of(first).unwrap();
    assert_eq!((&spec.image, &group.template), (&None, &None), "the local job has an image or a template");
}

#[test]
fn an_environment_file_is_read_literally_and_may_set_variables_that_run_other_code_and_needs_valid_lines() {
    let text = "# keys\n  S3_KEY= a=\"b\" \n\nLD_PRELOAD=/lib/tcmalloc.so\nCOST=$$5 of $(NAME)\n";
    let env = environment(text, Path::new("env")).unwrap();
    let pairs: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // The master turns `$$` into `$`.
    let cost = ("COST", "$$$$5 of $$(NAME)");
    assert_eq!(pairs, [("S3_KEY", " a=\"b\""), ("LD_PRELOAD", "/lib/tcmalloc.so"), cost]);
    let (spec, _) = spawned(&["mnist.py"], Inputs { env, ..inputs() }, false);
    assert_eq!(spec.allow_env.len(), 1);
    for (text, sentence) in [
        ("A=1\nB", "env, line 2: not of the form NAME=VALUE"),
        ("1A=2", "env, line 1: environment name \"1A\" is not allowed"),
    ] {
        let error = environment(text, Path::new("env")).unwrap_err().to_string();
        assert!(error.starts_with(sentence), "{error}");
    }
}

#[test]
fn an_invalid_pod_file_is_refused() {
    for (text, sentence) in [
        ("kind: Deployment\nspec: {}\n", "its kind is not Pod"),
        ("kind: Pod\n", "spec is missing"),
        ("kind: Pod\nspec: { containers: [] }\n", "spec.containers has no container"),
        ("kind: Pod\nspec: { containers: [{ image: a }] }\n", "spec.containers[0].name is missing"),
        ("kind: Pod\nspec:\n  containers:\n  - name: a\n   image: b\n", "is not valid YAML"),
        ("kind: Pod\nspec: { containers: [{ name: a, command: [1] }] }\n", "command must be a list of strings"),
        ("kind: Pod\nspec: { containers: [{ name: a, args: --fast }] }\n", "args must be a list of strings"),
        ("kind: Pod\n---\nkind: Pod\n", "it has 2 documents"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with("pod.yaml") && error.contains(sentence), "{error}");
    }
}
