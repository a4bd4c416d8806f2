//! Tests of the TFJobs in `crates/launchers/tests/tfjob`, the corpus, in a cluster. `make tfjobs` submits all files that are
//! for a cluster. The master must refuse some files, and run the others. The files that the master must run get
//! another image and script, because their images do not exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use e2e::cluster::Image;
use e2e::programs::root;
use e2e::{Place, Stage, within};
use protocol::ids::{ReplicaId, Role};
use protocol::job::JobSpec;
use protocol::pod::RunAs;
use protocol::view::JobState;
use serde_json::{Value, json};

/// Prints the process's TF_CONFIG, arguments, user and variables. A parameter server then waits for the job's end.
const SCRIPT: &str = "import json, os, sys, time
config = json.loads(os.environ.get('TF_CONFIG', '{}'))
known = {name: os.environ[name] for name in ('BATCH', 'KEY') if name in os.environ}
print(json.dumps({'tf_config': config, 'args': sys.argv[1:], 'user': os.getuid(), 'env': known}))
if config.get('task', {}).get('type') == 'ps': time.sleep(600)
";

/// A file of the corpus.
struct File {
    /// The file's name, changed to a valid name of a job.
    name: String,
    document: String,
    /// The JSON in the file's first comment: the options with which the master reads the file.
    given: Value,
    /// The expected job or refusal.
    golden: Value,
}

/// Returns the files of the corpus that are for a cluster. Replaces the namespace in the files with this namespace.
fn corpus(namespace: &str) -> Vec<File> {
    let folder = root().join("crates/launchers/tests/tfjob");
    let read = |path: &PathBuf| fs::read_to_string(path).expect("cannot read a file of the corpus");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("cannot read the corpus")
        .map(|file| file.expect("cannot read an entry of the corpus").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    paths.sort();
    let file = |path: PathBuf| {
        let document = read(&path).replace("namespace: team", &format!("namespace: {namespace}"));
        let first = document.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
        let given: Value =
            serde_json::from_str(&first.replace("\"team\"", &format!("{namespace:?}"))).unwrap_or_default();
        let golden = serde_json::from_str(&read(&path.with_extension("json"))).expect("not JSON");
        let name = path.file_stem().expect("no file name").to_string_lossy().replace('_', "-");
        File { name, document, given, golden }
    };
    // Files with a `place` are for machines without a cluster.
    paths.into_iter().map(file).filter(|file| file.given["place"].is_null()).collect()
}

impl File {
    /// Returns the request of `client apply` for this document.
    fn request(&self, document: &str, entrypoints: &Value) -> String {
        let options = self.given.get("options").cloned().unwrap_or(json!({}));
        json!({ "document": document, "entrypoints": entrypoints, "options": options }).to_string()
    }

    /// Returns the request with this image and [`SCRIPT`] in place of the file's image and script.
    fn runnable(&self, image: &str) -> String {
        let mut document: Value = serde_saphyr::from_str(&self.document).expect("not YAML");
        document["metadata"]["name"] = self.name.as_str().into();
        let spec = document["spec"].as_object_mut().expect("not a spec");
        let replicas: Vec<&mut Value> = match (spec.remove("tfReplicaSpecs"), spec.get_mut("replicaSpecs")) {
            (Some(types), _) => {
                spec.insert("tfReplicaSpecs".to_owned(), types);
                spec["tfReplicaSpecs"].as_object_mut().expect("not an object of replica types").values_mut().collect()
            }
            (None, old) => old.and_then(Value::as_array_mut).expect("not a list").iter_mut().collect(),
        };
        for of_type in replicas {
            let pod = &mut of_type["template"]["spec"];
            for kind in ["initContainers", "containers"] {
                pod[kind].as_array_mut().into_iter().flatten().for_each(|container| run_here(container, image));
            }
            if pod["initContainers"].is_null() {
                pod.as_object_mut().expect("not a pod").remove("initContainers");
            }
        }
        let known = self.given.get("entrypoints").and_then(Value::as_object).into_iter().flatten();
        let known = known.map(|(_, known)| {
            let mut known = known.clone();
            known["command"] = json!(["python", "-c", SCRIPT]);
            (image.to_owned(), known)
        });
        self.request(&document.to_string(), &json!(known.collect::<BTreeMap<_, _>>()))
    }
}

/// Gives a container an image that exists, and a command of this image. Removes the container's resources. A container
/// `tensorflow` without a command gets no command.
fn run_here(container: &mut Value, image: &str) {
    let command = match container["name"].as_str() {
        Some("tensorflow") => json!(["python", "-c", SCRIPT]),
        Some("proxy") => json!(["sleep", "600"]),
        _ => json!(["true"]),
    };
    let has_command = container["name"] != "tensorflow" || !container["command"].is_null();
    let fields = container.as_object_mut().expect("not a container");
    fields.remove("resources");
    fields.insert("image".to_owned(), image.into());
    fields.insert("imagePullPolicy".to_owned(), "IfNotPresent".into());
    if has_command {
        fields.insert("command".to_owned(), command);
    }
}

/// Returns the TF_CONFIG that a replica of a golden job must print, with ports in place of the members' addresses.
fn expected(spec: &JobSpec, replica: ReplicaId) -> Value {
    let is_master = |role: Role| role == Role::Chief && spec.tf_config.chief_is_master;
    let name = |role: Role| if is_master(role) { "master".to_owned() } else { role.to_string() };
    let listed = Role::ALL.into_iter().filter(|role| *role != Role::Evaluator && spec.count(*role) > 0);
    let cluster: BTreeMap<String, Vec<u16>> = listed
        .map(|role| {
            let of_role = spec.groups.iter().find(|group| group.role == role).expect("no such group");
            let port = of_role.template.as_ref().expect("no template").tf_port;
            (name(role), vec![port; spec.count(role) as usize])
        })
        .collect();
    let task = json!({ "type": name(replica.role), "index": replica.index });
    let is_alone = Role::ALL.into_iter().map(|role| spec.count(role)).sum::<u32>() == 1;
    if is_alone { json!({}) } else { json!({ "cluster": cluster, "task": task, "environment": "cloud" }) }
}

/// Returns what a replica has printed, with ports in place of the members' addresses.
fn found(printed: &str) -> Value {
    // The dynamic linker may print a complaint about LD_PRELOAD before the script's line.
    let line = printed.lines().last().unwrap_or_default();
    let mut found: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {printed}"));
    let port = |address: &Value| address.as_str()?.rsplit_once(':')?.1.parse::<u16>().ok();
    if let Some(cluster) = found.pointer_mut("/tf_config/cluster").and_then(Value::as_object_mut) {
        for addresses in cluster.values_mut() {
            *addresses = addresses.as_array().into_iter().flatten().map(port).collect();
        }
    }
    found
}

/// Returns the user id of the processes of a golden job. All templates of a job name the same user.
fn user(spec: &JobSpec) -> u64 {
    let template = spec.groups[0].template.as_ref().expect("no template");
    match (template.pod["spec"]["securityContext"]["runAsUser"].as_u64(), spec.pod.run_as) {
        (Some(user), _) => user,
        // The user of the shared image.
        (None, Some(RunAs::Image)) => 1000,
        (None, _) => 65532,
    }
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn each_tfjob_of_the_corpus_becomes_the_expected_job_or_is_refused() {
    let image = Image::shared().wrapped();
    let stage = Stage::with_master(Place::Cluster, "", &["--state-dir", "state", "--agent-image", &image]);
    let namespace = &stage.cluster().namespace;
    namespace.kubectl(&["create", "serviceaccount", "trainer"]);
    namespace.kubectl(&["create", "secret", "generic", "keys", "--from-literal=training=secret"]);
    // This may fail, because an earlier run may have created the priority class, which belongs to the whole cluster.
    namespace.try_kubectl(&["create", "priorityclass", "high", "--value=1"]);
    let post = |body: &str| {
        let answer = stage.curl(&["-H", "content-type: application/json", "-d", body], "/v1/tfjobs");
        serde_json::from_str::<Value>(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    };
    let (accepted, refused): (Vec<File>, Vec<File>) =
        corpus(namespace.name()).into_iter().partition(|file| file.golden["refused"].is_null());
    for file in &refused {
        let answer = post(&file.request(&file.document, &file.given.get("entrypoints").cloned().unwrap_or(json!({}))));
        assert_eq!(
            (&answer["code"], &answer["status"]),
            (&json!("bad_tfjob"), &json!(422)),
            "{}: {answer:#}",
            file.name
        );
        let detail = answer["detail"].as_str().expect("not text").replace(namespace.name(), "team");
        for note in file.golden["refused"].as_array().expect("not a list") {
            assert!(detail.contains(note.as_str().expect("not text")), "{}: {note} is not in {detail}", file.name);
        }
    }
    for file in &accepted {
        let answer = post(&file.runnable(&image));
        assert_eq!(answer["job"]["name"], file.name.as_str(), "{answer:#}");
    }
    for file in &accepted {
        check(&stage, file);
        println!("{}: as expected", file.name);
    }
    println!("{} files ran, {} were refused", accepted.len(), refused.len());
}

/// Waits for the end of a file's job, and compares each replica with the golden job. If the golden job is suspended,
/// only waits until the file's job is suspended.
fn check(stage: &Stage, file: &File) {
    let mut golden = file.golden["spec"].clone();
    golden["name"] = file.name.as_str().into();
    let spec: JobSpec = serde_json::from_value(golden).expect("not a job spec");
    if file.golden["is_suspended"] == true {
        let is_suspended = || (stage.status(&file.name).state == JobState::Suspended).then_some(());
        return within("the job is suspended", is_suspended, || stage.cluster().to_string());
    }
    let view = stage.finished(&file.name);
    assert_eq!(view.state, JobState::Succeeded, "{}: {view:#?}", file.name);
    assert_eq!(view.replicas.len() as u32, Role::ALL.into_iter().map(|role| spec.count(role)).sum::<u32>());
    for replica in view.replicas.iter().map(|view| view.replica) {
        let printed = stage.verb(&["logs", &file.name, "--replica", &replica.to_string()]).code(0).stdout;
        // If another replica decides the job's success, the job may succeed before this replica has printed anything.
        if printed.is_empty() && replica.role != Role::Chief && replica.to_string() != "worker-0" {
            continue;
        }
        let found = found(&printed);
        assert_eq!(found["user"], user(&spec), "{} {replica}: {found:#}", file.name);
        let args: Vec<String> = serde_json::from_value(found["args"].clone()).expect("not a list of texts");
        assert!(
            spec.group_of(replica).expect("no such group").command.ends_with(&args),
            "{} {replica}: {found:#}",
            file.name
        );
        for (variable, value) in &spec.env {
            assert_eq!(found["env"][variable.as_str()], value.as_str(), "{} {replica}", file.name);
        }
        // An elastic job may start with fewer members than the golden job.
        if spec.worker_min.is_none() {
            assert_eq!(found["tf_config"], expected(&spec, replica), "{} {replica}", file.name);
        }
    }
}
