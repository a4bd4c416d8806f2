//! Tests of TFJobs without a cluster. The client finds their scripts, and a master runs the scripts as processes.

use std::fs;

use e2e::{Finished, Scene};
use serde_json::{Value, json};
use testkit::registry::{FakeAnswer, FakeRegistry, TestImage};

/// Prints the task and ends. A parameter server does not end; the master stops it when the job ends.
const SCRIPT: &str = "import json, os, time
task = json.loads(os.environ['TF_CONFIG'])['task']
print(task['type'], task['index'], os.environ['BATCH'])
while task['type'] == 'ps': time.sleep(0.05)
";

const HEAD: &str = "apiVersion: kubeflow.org/v1\nkind: TFJob\n";

/// Returns a TFJob with these numbers of replicas per type. `container` contains further fields of each container.
fn tfjob(name: &str, types: &[(&str, u32)], container: &str) -> String {
    let replicas = types.iter().map(|(kind, count)| {
        format!(
            "    {kind}:\n      replicas: {count}\n      template:\n        spec:\n          containers:\n            - \
             {{ name: tensorflow, image: \"mnist:1\", env: [{{ name: BATCH, value: \"64\" }}], {container} }}\n"
        )
    });
    let replicas: String = replicas.collect();
    format!("{HEAD}metadata: {{ name: {name} }}\nspec:\n  tfReplicaSpecs:\n{replicas}")
}

/// A command that runs a script of the image. In place of this script, the client runs the script of the same name that
/// is beside the file of the TFJob.
const COMMAND: &str = "command: [python, /var/of-the-image/mnist.py]";

/// Creates a folder in which `project/` contains [`SCRIPT`] as `mnist.py`, and this TFJob.
fn scene(document: &str) -> Scene {
    let scene = Scene::new("");
    let project = scene.path().join("project");
    fs::create_dir(&project).expect("cannot create the folder");
    fs::write(project.join("mnist.py"), SCRIPT).expect("cannot write the script");
    fs::write(project.join("job.yaml"), document).expect("cannot write the TFJob");
    scene
}

#[test]
fn a_tfjob_runs_on_this_machine_with_the_script_beside_its_file() {
    let types = [("Chief", 1), ("Worker", 2), ("PS", 1), ("Evaluator", 1)];
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: { name: data }\n---\n";
    let scene = scene(&format!("{claim}{}", tfjob("mnist", &types, COMMAND)));
    let run = scene.run(&["apply", "-f", "project/job.yaml"]).code(0);
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    // The chief's success ends the job, so the other replicas may end before they print.
    assert!(lines.contains(&"chief-0     │ chief 0 64"), "{lines:?}");
    run.says(&[
        "left out PersistentVolumeClaim data (project/job.yaml, object 1): without a cluster, only TFJobs have a meaning",
        "running the job on this machine, with a local master",
        "tfjob mnist: spec.tfReplicaSpecs.Chief.template.spec.containers[0].image: it has no meaning here",
        "succeeded",
    ]);
    scene.assert_empty();
}

#[test]
fn a_tfjob_that_cannot_run_on_this_machine_is_refused_and_the_error_names_the_reason_or_the_fix() {
    let variable = "env: [{ name: KEY, valueFrom: { secretKeyRef: { name: keys, key: training } } }]";
    let of_cluster =
        tfjob("mnist", &[("Worker", 1)], COMMAND).replace("env: [{ name: BATCH, value: \"64\" }]", variable);
    let elsewhere = tfjob("mnist", &[("Worker", 1)], "command: [python, /var/other.py]");
    // Nothing listens at this address, so no registry has the image.
    let nobody = tfjob("mnist", &[("Worker", 1)], "args: []").replace("mnist:1", "localhost:1/mnist:1");
    let one = tfjob("mnist", &[("Worker", 1)], COMMAND);
    let number = one.replace("\"64\"", "64");
    let map = one.replace("[{ name: BATCH, value: \"64\" }]", "{ BATCH: b }");
    let two = [tfjob("a", &[("Worker", 1)], COMMAND), tfjob("b", &[("Worker", 1)], COMMAND)].join("---\n");
    for (document, sentence) in [
        (tfjob("mnist", &[("Worker", 1)], "command: [/opt/train]"), "\"/opt/train\" is a program of the image"),
        (elsewhere, "put the script beside the TFJob's file, or name the script's folder with --code DIR"),
        (of_cluster, "its value comes from the cluster: set the value with --env KEY=VALUE"),
        (number, "template.spec.containers[0].env[BATCH].value: it must be a string: write \"64\""),
        (map, "template.spec.containers[0].env: it must be a list"),
        (nobody, "add the field command to containers[tensorflow] of Worker"),
        (two, "2 TFJobs are given, but a local master runs only one"),
        ("kind: TFJob\nkind: TFJob\n".to_owned(), "project/job.yaml is not valid YAML: duplicate mapping key: kind"),
    ] {
        let scene = scene(&document);
        let mut client = scene.client(&["apply", "-f", "project/job.yaml"]);
        // Docker does not answer at this address, so the client cannot ask for the image's program.
        let run = Finished::of(client.env("DOCKER_HOST", "unix:///nowhere/docker.sock")).code(2);
        run.says(&[sentence]);
        scene.assert_empty();
    }
}

/// Applies the TFJob of the scene, on a machine without Docker whose user has this `config.json` of Docker.
fn apply_without_docker(scene: &Scene, config: &Value) -> Finished {
    fs::write(scene.path().join("config.json"), config.to_string()).expect("cannot write the logins");
    let mut client = scene.client(&["apply", "-f", "project/job.yaml"]);
    client.env("DOCKER_HOST", "unix:///nowhere/docker.sock").env("DOCKER_CONFIG", scene.path());
    Finished::of(&mut client)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tfjob_without_a_command_runs_the_program_that_the_registry_of_its_image_names() {
    let registry = FakeRegistry::start().await;
    for (name, config) in [
        ("entrypoint", json!({ "Entrypoint": ["python", "/var/of-the-image/mnist.py"], "User": "tf" })),
        ("cmd", json!({ "Cmd": ["/usr/local/bin/python", "/var/of-the-image/mnist.py"] })),
        ("both", json!({ "Entrypoint": ["python"], "Cmd": ["/var/of-the-image/mnist.py"] })),
    ] {
        let image = registry.push(&format!("{name}:1"), &TestImage::new(&config)).await;
        let scene = scene(&tfjob("mnist", &[("Worker", 2)], "args: []").replace("mnist:1", &image));
        let run = apply_without_docker(&scene, &json!({})).code(0);
        assert!(run.stdout.contains(" worker 0 64\n"), "{name}: {}", run.stdout);
        scene.assert_empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_users_login_is_sent_to_the_registry_of_the_image_only_and_an_identity_token_is_refused_by_name() {
    const BASIC: &str = "Basic dGVhbTpzZWNyZXQ=";
    let registry = FakeRegistry::start().await;
    let image = TestImage::new(&json!({ "Entrypoint": ["python", "/var/of-the-image/mnist.py"] }));
    let name = registry.push("team/closed:1", &image).await;
    let headers = vec![("www-authenticate", "Basic realm=\"r\"".to_owned())];
    let answer = FakeAnswer { headers, wants: Some(BASIC.to_owned()), ..FakeAnswer::ok(image.manifest.clone()) };
    registry.set("/v2/team/closed/manifests/1", answer).await;
    let scene = scene(&tfjob("mnist", &[("Worker", 2)], "args: []").replace("mnist:1", &name));
    let auths = |server: &str, login: Value| json!({ "auths": { server: login } });
    let login = json!({ "auth": "dGVhbTpzZWNyZXQ=" });

    let elsewhere = apply_without_docker(&scene, &auths("registry.example.com", login.clone())).code(2);
    elsewhere.says(&[&format!("image {name}: its program is unknown: {} answered 401", registry.host())]);
    assert!(registry.received().await.iter().all(|request| request.authorization.is_none()));
    let token = json!({ "auth": "dGVhbTpzZWNyZXQ=", "identitytoken": "abc" });
    let refused = apply_without_docker(&scene, &auths(&registry.host(), token)).code(2);
    refused.says(&[&format!("the login for {} is an identity token, which only Docker can use", registry.host())]);
    let of_another_part = auths(&format!("{}/other", registry.host()), login.clone());
    apply_without_docker(&scene, &of_another_part).code(2).says(&["answered 401"]);
    let wrong = json!({ "auth": "d3Jvbmc6d3Jvbmc=" });
    let of_its_part = json!({ "auths": { registry.host(): wrong, format!("{}/team", registry.host()): login } });
    for config in [auths(&registry.host(), login), of_its_part] {
        let run = apply_without_docker(&scene, &config).code(0);
        assert!(run.stdout.contains(" worker 0 64\n"), "{}", run.stdout);
    }
}

#[test]
fn an_apply_of_a_known_tfjob_prints_what_changes() {
    let elastic = |workers: u32, policy: &str| {
        let job = tfjob("grows", &[("Worker", workers)], "command: [python, -c, \"import time; time.sleep(600)\"]");
        job.replace("spec:\n  tfR", &format!("spec:\n  enableDynamicWorker: true\n  runPolicy: {policy}\n  tfR"))
    };
    let scene = scene(&elastic(2, "{ suspend: true }"));
    let master = scene.master();
    let client = |args: &[&str]| Finished::of(&mut scene.client(&[&["--master", &master.url], args].concat()));
    let applied = |document: &str| {
        fs::write(scene.path().join("project/job.yaml"), document).expect("cannot write the file");
        client(&["apply", "-f", "project"]).code(0).stdout
    };
    assert_eq!(applied(&elastic(2, "{ suspend: true }")), "tfjob/grows created\n");
    assert_eq!(applied(&elastic(3, "{ suspend: true }")), "tfjob/grows scaled to 3 workers\n");
    assert_eq!(applied(&elastic(3, "{ suspend: true }")), "tfjob/grows is up to date\n");
    assert_eq!(applied(&elastic(2, "{}")), "tfjob/grows resumed and scaled to 2 workers\n");
    client(&["suspend", "grows"]).code(0);
    assert_eq!(applied(&elastic(2, "{}")), "tfjob/grows resumed\n");
    client(&["delete", "grows"]).code(0);
}

#[test]
fn all_documents_are_checked_before_the_first_is_sent_and_a_good_document_becomes_a_job() {
    let good = tfjob("good", &[("Worker", 2)], COMMAND);
    let scene = scene(&[good.clone(), good.replace("good", "Bad")].join("---\n"));
    let master = scene.master();
    let client = |args: &[&str]| Finished::of(&mut scene.client(&[&["--master", &master.url], args].concat()));
    let refused = "project/job.yaml, object 2: metadata.name: task name \"Bad\" is not a DNS label";
    client(&["apply", "-f", "project"]).code(2).says(&[refused]);
    let unknown = good.replace("good", "other").replace("Worker:", "Scheduler:");
    fs::write(scene.path().join("project/job.yaml"), [good.clone(), unknown].join("---\n"))
        .expect("cannot write the file");
    client(&["apply", "-f", "project"]).code(2).says(&["object 2: ", "this replica type is not known"]);
    assert_eq!(client(&["get"]).code(0).stdout, "NAME  STATE  AGE\n");

    fs::write(scene.path().join("project/job.yaml"), &good).expect("cannot write the file");
    assert_eq!(client(&["apply", "-f", "project"]).code(0).stdout, "tfjob/good created\n");
    assert_eq!(client(&["apply", "-f", "project/job.yaml"]).code(0).stdout, "tfjob/good is up to date\n");
    client(&["wait", "good"]).code(0);
    assert_eq!(client(&["logs", "good", "--replica", "worker-0"]).code(0).stdout, "worker 0 64\n");
    let table = client(&["get", "good"]).code(0).stdout;
    assert!(table.contains("good  Succeeded  "), "{table}");
    let yaml = client(&["get", "good", "-o", "yaml"]).code(0).stdout;
    for line in ["apiVersion: kubeflow.org/v1", "kind: TFJob", "reason: TFJobSucceeded", "succeeded: 2"] {
        assert!(yaml.contains(line), "no {line:?} in {yaml}");
    }
    client(&["apply", "-f", "project", "--follow"])
        .code(2)
        .says(&["tfjob good has already ended", "client delete good"]);
    fs::write(scene.path().join("project/job.yaml"), good.replace("64", "65")).expect("cannot write the file");
    client(&["apply", "-f", "project"]).code(2).says(&["tfjob good is on record with another spec"]);
}

/// Prints the path of the script. A parameter server does not end, and a worker ends after all have printed.
const PRINTS_ITS_PATH: &str = "import json, os, time
role = json.loads(os.environ.get('TF_CONFIG', '{}')).get('task', {}).get('type', 'worker')
print('ran', role, os.path.relpath(__file__))
open('ran-' + role, 'w').close()
while role == 'ps' or os.environ.get('PS_HOSTS') and not os.path.exists('ran-ps'): time.sleep(0.01)
";

#[test]
fn of_the_files_in_the_codes_folder_that_fit_a_path_in_the_image_the_one_with_the_most_folders_runs() {
    let with_servers = [("PS", 1), ("Worker", 1)];
    let one = tfjob("mnist", &[("Worker", 1)], "command: [python, /opt/app/src/train.py]");
    let two = tfjob("mnist", &with_servers, "command: [python, /app/ROLE/main.py]");
    let two = two.replacen("ROLE", "ps", 1).replacen("ROLE", "worker", 1);
    for (files, document, expected) in [
        (&["src/train.py"][..], &one, &["worker src/train.py"][..]),
        (&["train.py", "src/train.py"], &one, &["worker src/train.py"]),
        (&["ps/main.py", "worker/main.py", "main.py"], &two, &["ps ps/main.py", "worker worker/main.py"]),
    ] {
        let scene = scene(document);
        for file in files {
            let path = scene.path().join("code").join(file);
            fs::create_dir_all(path.parent().expect("no folder")).expect("cannot create a folder");
            fs::write(path, PRINTS_ITS_PATH).expect("cannot write a script");
        }
        let run = scene.run(&["apply", "-f", "project/job.yaml", "--code", "code"]).code(0);
        let mut ran = run.lines("ran ");
        ran.sort();
        assert_eq!(ran, expected, "{files:?}\n{}", run.stderr);
        let file = expected[expected.len() - 1].split(' ').next_back().expect("no file");
        run.says(&[&format!("code/{file} runs in place of /")]);
    }
}

#[test]
fn the_file_of_the_code_runs_as_in_a_pod_even_if_this_machine_has_a_file_at_the_path_in_the_image() {
    let (image, code) = ("image/app/src/train.py", "code/src/train.py");
    let scene = scene("");
    let path = scene.path().join(image);
    let document = tfjob("mnist", &[("Worker", 1)], &format!("command: [python, {}]", path.display()));
    fs::write(scene.path().join("project/job.yaml"), document).expect("cannot write the TFJob");
    for (file, text) in [(image, "print('ran the file of this machine')"), (code, "print('ran the code')")] {
        let file = scene.path().join(file);
        fs::create_dir_all(file.parent().expect("no folder")).expect("cannot create a folder");
        fs::write(file, text).expect("cannot write a script");
    }
    let with_code = scene.run(&["apply", "-f", "project/job.yaml", "--code", "code"]).code(0);
    assert_eq!(with_code.lines("ran "), ["the code"]);
    with_code.says(&[&format!("{code} runs in place of {}", path.display())]);
    let without_code = scene.run(&["apply", "-f", "project/job.yaml"]).code(0);
    assert_eq!(without_code.lines("ran "), ["the file of this machine"]);
}

#[test]
fn two_scripts_of_an_image_that_fall_on_the_same_file_are_refused() {
    let document = tfjob("mnist", &[("PS", 1), ("Worker", 1)], "command: [python, /app/ROLE/mnist.py]");
    let scene = scene(&document.replacen("ROLE", "ps", 1).replacen("ROLE", "worker", 1));
    scene
        .run(&["apply", "-f", "project/job.yaml"])
        .code(2)
        .says(&["/app/ps/mnist.py and /app/worker/mnist.py are two scripts"]);
}

#[test]
fn a_value_of_the_template_contains_the_values_of_earlier_variables_as_in_a_cluster() {
    let env = "env: [{ name: BASE, value: /data }, { name: DIR, value: $(BASE)/x }, { name: ESC, value: $$(BASE) },
              { name: EARLY, value: $(LATE) }, { name: LATE, value: late }, { name: OWN, value: theirs }, { name: NONE },
              { name: POD, valueFrom: { fieldRef: { fieldPath: metadata.name } } }, { name: DEEP, value: $(POD)/y }]";
    let document = tfjob("mnist", &[("Worker", 1)], "command: [python, /of/mnist.py], args: [\"--dir=$(DIR)\"]");
    let scene = scene(&document.replace("env: [{ name: BATCH, value: \"64\" }]", env));
    let script = "import os, sys\nprint('is', *[os.environ[name] for name in ('DIR', 'ESC', 'EARLY', 'OWN', 'BASE', 'DEEP')], sys.argv[1:], repr(os.environ['NONE']))\n";
    fs::write(scene.path().join("project/mnist.py"), script).expect("cannot write the script");
    let own = ["apply", "-f", "project/job.yaml", "--env", "OWN=$(DIR)", "--env", "BASE=/own", "--env", "POD=$(DIR)"];
    let run = scene.run(&own).code(0);
    assert_eq!(run.lines("is "), ["/data/x $(BASE) $(LATE) $(DIR) /own /data/x/y ['--dir=/data/x'] ''"]);
}
