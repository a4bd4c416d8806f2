//! Tests of the files with TFJobs.

use std::fs;

use super::*;

fn documents(text: &str) -> Result<Vec<FileObject>, String> {
    files::split(text, "job.yaml", Path::new("/jobs")).map_err(|error| error.to_string())
}

fn origins(text: &str) -> Vec<String> {
    documents(text).unwrap().into_iter().map(|document| format!("{}: {}", document.origin, document.name())).collect()
}

#[test]
fn a_file_has_one_object_or_several_or_a_list_and_invalid_yaml_is_refused() {
    assert_eq!(origins("{kind: TFJob, metadata: {name: a}}"), ["job.yaml: a"]);
    assert_eq!(
        origins("---\nmetadata: {name: a}\n---\n---\nmetadata: {name: b}\n"),
        ["job.yaml, object 1: a", "job.yaml, object 2: b"]
    );
    let list = "{kind: List, items: [{metadata: {name: a}}, {metadata: {name: b}}]}";
    assert_eq!(origins(list), ["job.yaml, object 1: a", "job.yaml, object 2: b"]);
    // As from `jq -c '.items[]'`.
    let json = "{\"metadata\": {\"name\": \"a\"}}\n{\"metadata\": {\"name\": \"b\"}}\n";
    assert_eq!(origins(json), ["job.yaml, object 1: a", "job.yaml, object 2: b"]);
    assert_eq!(origins("# nothing\n"), Vec::<String>::new());
    let aliases_without_end = include_str!("../../../../crates/launchers/tests/tfjob/broken_bomb.yaml");
    for (text, reason) in [
        ("a: 1\na: 2\n", "duplicate mapping key"),
        ("{\"b\": 1}{\"a\": 1, \"a\": 2}", "duplicate mapping key"),
        (aliases_without_end, "budget breached"),
    ] {
        let error = documents(text).unwrap_err();
        assert!(error.starts_with(&format!("job.yaml is not valid YAML: {reason}")), "{error}");
    }
}

#[test]
fn from_a_folder_only_yaml_and_json_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let json = r#"{"metadata": {"name": "d"}}"#;
    let files =
        [("b.yml", "metadata: {name: b}"), ("a.yaml", "metadata: {name: a}"), ("c.py", "x = 1"), ("d.json", json)];
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let found = read(&[folder.path().to_owned()], Path::new("/")).unwrap();
    assert_eq!(found.iter().map(FileObject::name).collect::<Vec<_>>(), ["a", "b", "d"]);
    assert_eq!(found[0].folder, folder.path().canonicalize().unwrap());
    let missing = read(&[folder.path().join("c.py"), folder.path().join("none")], Path::new("/"));
    assert!(missing.is_err(), "a missing file was accepted");
}

#[test]
fn a_generated_name_is_completed_once() {
    let mut document = documents("metadata: {generateName: mnist-}").unwrap().remove(0);
    document.name_it("abcde");
    document.name_it("fghij");
    assert_eq!(document.name(), "mnist-abcde");
}

/// A TFJob whose worker has a container with these fields.
fn with_worker(container: &Value) -> FileObject {
    let mut container = container.clone();
    container["name"] = TFJOB_CONTAINER.into();
    let worker = json!({ "template": { "spec": { "containers": [{ "name": "proxy" }, container] } } });
    let object = json!({ "spec": { "tfReplicaSpecs": { "Worker": worker } } });
    FileObject { origin: "job.yaml".to_owned(), folder: PathBuf::from("/jobs"), object }
}

#[test]
fn a_script_of_an_image_is_found_in_the_folder_of_the_code_or_beside_the_file() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let code = root.join("code");
    for file in ["beside/mnist.py", "beside/train.py", "code/train.py"] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), "").unwrap();
    }
    let beside = root.join("beside/mnist.py").to_string_lossy().into_owned();
    let of_code = root.join("code/train.py").to_string_lossy().into_owned();
    let words = |words: &str| words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for (command, args, expected) in [
        ("python /var/none/mnist.py", "--a /var/none/b", Some(format!("python {beside} --a /var/none/b"))),
        ("python -u", "/var/none/train.py --x", Some(format!("python -u {of_code} --x"))),
        ("python -W error", "/var/none/train.py", Some(format!("python -W error {of_code}"))),
        ("python -X dev -W", "-W /var/none/train.py", Some(format!("python -X dev -W -W {of_code}"))),
        ("python -Werror -m", "package", Some("python -Werror -m package".to_owned())),
        ("python", "mnist.py", Some(format!("python {beside}"))),
        ("python ./train.py", "", Some("python ./train.py".to_owned())),
        ("python", "src/train.py --x", Some(format!("python {of_code} --x"))),
        ("python", "$(SCRIPT)", Some("python $(SCRIPT)".to_owned())),
        ("bash -ec", "/var/none/x.sh", Some("bash -ec /var/none/x.sh".to_owned())),
        ("/bin/bash -lc", "/var/none/x.sh", Some("/bin/bash -lc /var/none/x.sh".to_owned())),
        ("sh -x -ec", "/var/none/x.sh", Some("sh -x -ec /var/none/x.sh".to_owned())),
        ("bash -eo pipefail", "/var/none/train.py", Some(format!("bash -eo pipefail {of_code}"))),
        ("bash -s", "/var/none/x.sh", Some("bash -s /var/none/x.sh".to_owned())),
        ("python -cprint(1)", "/var/none/x", Some("python -cprint(1) /var/none/x".to_owned())),
        ("python -um", "package", Some("python -um package".to_owned())),
        ("python -Wc", "/var/none/train.py", Some(format!("python -Wc {of_code}"))),
        ("python -uX dev", "/var/none/train.py", Some(format!("python -uX dev {of_code}"))),
        ("python -", "/var/none/x", Some("python - /var/none/x".to_owned())),
        ("bash -c", "/var/none/x.sh", Some("bash -c /var/none/x.sh".to_owned())),
        ("python -m", "package", Some("python -m package".to_owned())),
        ("python /var/none/other.py", "", None),
        ("python other.py", "", None),
    ] {
        let mut document = with_worker(&json!({ "command": words(command), "args": words(args) }));
        document.folder = root.join("beside");
        let outcome = document.without_images(&BTreeMap::new(), Some(&code));
        let container = document.containers().next().unwrap().clone();
        let found = [&container["command"], &container["args"]].map(|list| {
            list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>().join(" ")
        });
        let found = outcome.map(|_| found.join(" ").trim().to_owned()).map_err(|error| error.to_string());
        match expected {
            Some(expected) => assert_eq!(found, Ok(expected)),
            None => {
                assert!(found.as_ref().unwrap_err().contains("other.py is a path in the image"), "{found:?}")
            }
        }
    }
}

#[test]
fn scripts_in_the_folder_of_the_code_get_their_path_in_that_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    for name in ["mnist.py", "src/eval.py"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let brought = |command: &[&str]| {
        let mut document = with_worker(&json!({ "command": command }));
        let (script, _) = document.with_code(&BTreeMap::new(), folder.path()).map_err(|error| error.to_string())?;
        let command = document.containers().next().unwrap()["command"].to_string();
        Ok((script.to_string(), command))
    };
    let is = |script: &str, command: &str| Ok::<_, String>((script.to_owned(), command.to_owned()));
    assert_eq!(brought(&["python", "/var/mnist.py", "--fast"]), is("mnist.py", r#"["python","mnist.py","--fast"]"#));
    assert_eq!(brought(&["python", "-u", "src/eval.py"]), is("src/eval.py", r#"["python","-u","src/eval.py"]"#));
    assert_eq!(brought(&["python", "./src/eval.py"]), is("src/eval.py", r#"["python","src/eval.py"]"#));
    let refused = format!("job.yaml: no container runs a script that is in {}", folder.path().display());
    assert_eq!(brought(&["python", "/var/other.py"]), Err(refused.clone()));
    assert_eq!(brought(&["python", "-m", "mnist"]), Err(refused));
}

#[test]
fn pods_run_the_file_of_the_code_that_has_most_of_the_path_in_the_image() {
    let words = |path: &str| json!({ "name": TFJOB_CONTAINER, "command": ["python"], "args": [path, "--fast"] });
    let replica = |path: &str| json!({ "template": { "spec": { "containers": [words(path)] } } });
    let two = "/app/ps/main.py and /app/worker/main.py are two scripts, but one file fits both";
    for (files, paths, expected) in [
        (&["src/train.py"][..], ["/opt/app/src/train.py"; 2], Ok(["src/train.py"; 2])),
        (&["train.py", "src/train.py"], ["/opt/app/src/train.py", "/opt/train.py"], Ok(["src/train.py", "train.py"])),
        (
            &["main.py", "ps/main.py", "worker/main.py"],
            ["/app/ps/main.py", "/app/worker/main.py"],
            Ok(["ps/main.py", "worker/main.py"]),
        ),
        (&["main.py", "worker/main.py"], ["/app/ps/main.py", "/app/worker/main.py"], Ok(["main.py", "worker/main.py"])),
        (&["main.py"], ["/app/ps/main.py", "/app/worker/main.py"], Err(two)),
        (&["main.py"], ["/app/main.py", "main.py"], Ok(["main.py"; 2])),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
            fs::write(folder.path().join(file), "").unwrap();
        }
        let object = json!({ "spec": { "tfReplicaSpecs": { "PS": replica(paths[0]), "Worker": replica(paths[1]) } } });
        let mut document = FileObject { origin: "job.yaml".to_owned(), folder: PathBuf::from("/jobs"), object };
        let outcome = document.with_code(&BTreeMap::new(), folder.path());
        match expected {
            Err(why) => assert_eq!(outcome.unwrap_err().to_string(), format!("job.yaml: {why}")),
            Ok(scripts) => {
                let (script, told) = outcome.unwrap();
                let args: Vec<_> =
                    document.containers().map(|one| one["args"][0].as_str().unwrap().to_owned()).collect();
                assert_eq!((script.as_str(), &args[..]), (scripts[0], &scripts.map(str::to_owned)[..]), "{files:?}");
                assert!(told[0].ends_with(&format!(" runs in place of {}", paths[0])), "{told:?}");
            }
        }
    }
}

#[test]
fn the_program_of_an_image_replaces_a_missing_command() {
    let mut document = with_worker(&json!({ "image": "mnist:1", "args": ["--steps", "3"] }));
    assert_eq!(document.images_without_command(), BTreeSet::from(["mnist:1".to_owned()]));
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let known = Entrypoint { command: words(&["python", "-m", "mnist"]), args: words(&["--all"]), user: String::new() };
    let entrypoints = BTreeMap::from([("mnist:1".to_owned(), known)]);
    document.without_images(&entrypoints, None).unwrap();
    let container = document.containers().next().unwrap();
    assert_eq!(
        (&container["command"], &container["args"]),
        (&json!(["python", "-m", "mnist"]), &json!(["--steps", "3"]))
    );
}

#[test]
fn images_in_v1alpha1_and_of_containers_with_an_empty_command_are_found() {
    let oldest = "spec: {replicaSpecs: [{template: {spec: {containers: [{name: tensorflow, image: a}]}}}]}";
    let empty =
        "spec: {tfReplicaSpecs: {PS: {template: {spec: {containers: [{name: tensorflow, image: b, command: []}]}}}}}";
    for (text, image) in [(oldest, "a"), (empty, "b")] {
        let mut document = documents(text).unwrap().remove(0);
        assert_eq!(document.images_without_command(), BTreeSet::from([image.to_owned()]));
    }
}
