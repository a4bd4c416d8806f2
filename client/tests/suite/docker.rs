//! Makes wrapped images with a real engine. Needs `docker` and the image python:3.11-slim:
//! `cargo test -p client --test suite docker -- --ignored`.

#![expect(clippy::disallowed_methods, reason = "a test extends the PATH")]

use std::path::Path;
use std::process::Command;

use protocol::master::BackendKind;
use rustix::process::Signal;
use serde_json::json;

use crate::support::docker::{Image, Listener, agent_file, docker, program_file};
use crate::support::fake_master::{FakeMaster, Script};
use crate::support::{Ended, client, finish, interrupt, until};

const SCRIPT_IN_WORK: &str = "WORKDIR /work\nCOPY exec.py .\nUSER 1000";

/// Runs `client build` on an image.
#[track_caller]
fn wrap(image: &Image, agent: &Path, engine: Option<&Listener>) -> Ended {
    let mut command = client(agent.parent().unwrap());
    command.args(["build", "--image", &image.name, "--agent-binary"]).arg(agent);
    if let Some(engine) = engine {
        command.env("DOCKER_HOST", engine.address());
    }
    finish(command.spawn().unwrap())
}

fn kubernetes() -> FakeMaster {
    FakeMaster::of(BackendKind::Kubernetes)
}

/// Checks that no container of the image is left.
#[track_caller]
fn nothing_is_left_of(image: &Image) {
    let containers = docker(&["ps", "--all", "--quiet", "--filter", &format!("ancestor={}", image.name)]);
    assert_eq!(containers, "", "containers of {} are left", image.name);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_wrapped_image_runs_the_agent_and_keeps_the_other_settings_of_the_training_image() {
    let image = Image::built(
        "keeps",
        "RUN useradd trainer\nENV BATCH=64\nLABEL mine=kept\nVOLUME /data\nEXPOSE 80\nWORKDIR /work\nCOPY exec.py .\nUSER trainer\nENTRYPOINT [\"/bin/sh\"]\nCMD [\"-c\", \"true\"]",
    );
    let folder = tempfile::tempdir().unwrap();
    let ended = wrap(&image, &agent_file(folder.path(), "one"), None).expect_code(0);
    assert_eq!(ended.stdout, format!("{}\n", image.wrapped_by_content()));
    let ended = ended.expect_stderr(&format!("image {}_pod: wrapped in ", image.name));
    let config = image.inspect_wrapped()["Config"].take();
    assert_eq!((&config["Entrypoint"], &config["Cmd"]), (&json!(["/muster/agent"]), &json!(null)));
    assert_eq!((&config["User"], &config["WorkingDir"]), (&json!("trainer"), &json!("/work")));
    assert!(config["Env"].as_array().unwrap().contains(&json!("BATCH=64")), "{}", config["Env"]);
    assert_eq!((&config["Volumes"], &config["ExposedPorts"]), (&json!({"/data": {}}), &json!({"80/tcp": {}})));
    assert_eq!(config["Labels"]["mine"], "kept");
    ended.expect_stderr("warning: pods do not run its ENTRYPOINT [\"/bin/sh\"], ");
    assert_eq!(config["Labels"]["muster.base"], json!(docker(&["images", "--quiet", "--no-trunc", &image.name])));
    nothing_is_left_of(&image);
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_entrypoint_that_is_a_shell_script_is_passed_to_the_agent_as_a_flag() {
    let script =
        "RUN printf '#!/bin/sh\\nexport A=1\\nexec \"$@\"\\n' > /e.sh && chmod +x /e.sh\nENTRYPOINT [\"/e.sh\"]";
    let (image, engine) = (Image::built("prepares", &format!("{script}\n{SCRIPT_IN_WORK}")), Listener::start());
    let folder = tempfile::tempdir().unwrap();
    let ended = wrap(&image, &agent_file(folder.path(), "one"), Some(&engine)).expect_code(0);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(engine.asked().contains(&"POST /images/load".to_owned()), "the engine did not load the agent's layer");
    assert_eq!(image.inspect_wrapped()["Config"]["Entrypoint"], json!(["/muster/agent", "--entrypoint=/e.sh"]));
    nothing_is_left_of(&image);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_layer_contains_only_the_agent_as_an_executable_owned_by_root() {
    let image = Image::built("layer", SCRIPT_IN_WORK);
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    wrap(&image, &agent, None).expect_code(0);
    let container = docker(&["create", &image.wrapped()]);
    let tar = Command::new("docker").args(["cp", &format!("{container}:/muster"), "-"]).output().unwrap();
    docker(&["rm", &container]);
    let mut archive = tar::Archive::new(tar.stdout.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let header = entry.header();
        let path = entry.path().unwrap().display().to_string();
        (path, header.mode().unwrap() & 0o777, header.uid().unwrap(), header.mtime().unwrap())
    });
    let found: Vec<_> = entries.collect();
    assert_eq!(found, [("muster/".to_owned(), 0o755, 0, 0), ("muster/agent".to_owned(), 0o755, 0, 0)]);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_client_uses_the_same_engine_as_the_docker_command() {
    let (image, engine) = (Image::built("context", SCRIPT_IN_WORK), Listener::start());
    let folder = tempfile::tempdir().unwrap();
    let config = |program: &mut Command| {
        program.env("DOCKER_CONFIG", folder.path()).env_remove("DOCKER_HOST").env_remove("DOCKER_CONTEXT");
    };
    for arguments in [&["create", "other", "--docker", &format!("host={}", engine.address())][..], &["use", "other"]] {
        let mut docker = Command::new("docker");
        config(&mut docker);
        assert!(docker.arg("context").args(arguments).output().unwrap().status.success());
    }
    let mut command = client(folder.path());
    config(&mut command);
    command.args(["build", "--image", &image.name, "--agent-binary"]).arg(agent_file(folder.path(), "one"));
    finish(command.spawn().unwrap()).expect_code(0);
    assert_eq!(engine.asked().first().map(String::as_str), Some("GET /_ping"));
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_image_is_wrapped_again_only_if_its_wrapped_image_has_lost_its_name_by_content_or_is_outdated() {
    let (image, engine) = (Image::built("warm", SCRIPT_IN_WORK), Listener::start());
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    wrap(&image, &agent, Some(&engine)).expect_code(0);
    let (cold, first) = (engine.asked(), image.inspect_wrapped()["Id"].take());
    assert!(!cold.iter().any(|request| request.contains("/build") || request.contains("/start")), "{cold:?}");

    let again = wrap(&image, &agent, Some(&engine)).expect_code(0);
    assert_eq!(again.stderr, format!("image {}_pod: up to date\n", image.name));
    let submitted = image.wrapped_by_content();
    assert_eq!(again.stdout, format!("{submitted}\n"));
    let inspect = |name: &str| format!("GET /images/{name}/json");
    assert_eq!(engine.asked(), ["GET /_ping", &inspect(&format!("{}:latest", image.name)), &inspect(&submitted)]);

    docker(&["rmi", &image.wrapped()]);
    wrap(&image, &agent, Some(&engine)).expect_code(0).expect_stderr("up to date");
    assert_eq!(image.inspect_wrapped()["Id"], first);
    let asked = engine.asked();
    assert!(
        asked.len() == 4 && asked[3].starts_with("POST /images/sha256:"),
        "the client did more than add the missing name: {asked:?}"
    );
    docker(&["rmi", &submitted]);
    let named = wrap(&image, &agent, Some(&engine)).expect_code(0).expect_stderr("wrapped in");
    assert_eq!((named.stdout, image.inspect_wrapped()["Id"].take()), (format!("{submitted}\n"), first.clone()));

    wrap(&image, &agent_file(folder.path(), "two"), None).expect_code(0).expect_stderr("wrapped in");
    assert_eq!(
        docker(&["image", "inspect", "--format", "{{.Id}}", &submitted]),
        first,
        "the name by content that the first build printed now belongs to another image"
    );
    let second = image.inspect_wrapped()["Id"].take();
    assert_ne!(first, second, "another agent did not change the image");
    image.build(&format!("{SCRIPT_IN_WORK}\nENV NEW=1"));
    wrap(&image, &agent, None).expect_code(0).expect_stderr("wrapped in");
    assert_ne!(second, image.inspect_wrapped()["Id"].take(), "another base did not change the image");
}

#[test]
#[ignore = "needs a Docker engine"]
fn if_the_engine_refuses_an_archive_with_only_the_agents_layer_the_client_asks_it_to_build_the_image() {
    let (image, engine) = (Image::built("fallback", SCRIPT_IN_WORK), Listener::refusing("/images/load"));
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    let ended = wrap(&image, &agent, Some(&engine)).expect_code(0);
    let ended = ended.expect_stderr(" (refused by the test); building instead").expect_stderr("wrapped in");
    let config = image.inspect_wrapped()["Config"].take();
    assert_eq!((&config["Entrypoint"], &config["Cmd"]), (&json!(["/muster/agent"]), &json!(null)));
    assert_eq!(ended.stdout, format!("{}\n", image.wrapped_by_content()));
    wrap(&image, &agent, None).expect_code(0).expect_stderr("up to date");

    let none = Image::built("nofallback", "WORKDIR /work");
    wrap(&none, &agent, Some(&engine)).expect_code(2).expect_stderr("has no exec.py");
}

#[test]
#[ignore = "needs a Docker engine"]
fn each_build_for_a_local_cluster_loads_the_image_with_the_clusters_tool() {
    let image = Image::built("loaded", SCRIPT_IN_WORK);
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    let build = |tool: &str, more: &[&str]| {
        let kind = folder.path().join("kind");
        std::fs::write(&kind, format!("#!/bin/sh\n{tool}\n")).unwrap();
        std::fs::set_permissions(&kind, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut command = client(folder.path());
        command.args(["build", "--image", &image.name, "--agent-binary"]).arg(&agent).args(more).env("PATH", path);
        finish(command.env("MUSTER_LOAD_CLUSTER", "dev").spawn().unwrap())
    };
    let note = "echo \"$@\" >> calls";
    build(note, &["--load", "kind"]).expect_code(0).expect_stderr(&format!("image {}_pod: loaded in ", image.name));
    build(note, &["--load", "kind"]).expect_code(0).expect_stderr("up to date");
    let call = format!("load docker-image {} --name dev\n", image.wrapped_by_content());
    assert_eq!(std::fs::read_to_string(folder.path().join("calls")).unwrap(), call.repeat(2));
    let failed = build("echo no nodes found >&2; exit 3", &["--load", "kind"]).expect_code(4);
    failed.expect_stderr("failed (exit status: 3)\n  no nodes found");
    let missing = build(note, &["--load", "k3d"]).expect_code(4);
    let call = format!("`k3d image import {} -c dev`", image.wrapped_by_content());
    let missing = missing.expect_stderr(&format!("{call} could not be started: No such file"));
    missing.expect_stderr("hint: install this program, or give --push REGISTRY");
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_same_base_and_agent_make_the_same_image() {
    let image = Image::built("same", SCRIPT_IN_WORK);
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    wrap(&image, &agent, None).expect_code(0);
    let first = image.inspect_wrapped()["Id"].take();
    docker(&["rmi", "--force", first.as_str().unwrap()]);
    wrap(&image, &agent, None).expect_code(0).expect_stderr("wrapped in");
    assert_eq!(image.inspect_wrapped()["Id"], first);
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_image_that_cannot_train_is_refused_and_not_wrapped() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    for (purpose, instructions, sentence) in [
        ("noscript", "WORKDIR /work", "has no exec.py in its working directory /work"),
        ("atroot", "COPY exec.py /work/exec.py", "has no exec.py in its working directory /"),
        ("scriptdir", "RUN mkdir -p /work/exec.py\nWORKDIR /work", "has no exec.py in its working directory /work"),
        (
            "nopython",
            "WORKDIR /work\nCOPY exec.py .\nENV PATH=/sbin:/nowhere",
            "has neither python nor python3 on its PATH (/sbin:/nowhere)",
        ),
    ] {
        let image = Image::built(purpose, instructions);
        let ended = wrap(&image, &agent, None).expect_code(2);
        ended.expect_stderr(&format!("error: the image {} {sentence}\nhint: ", image.name));
        assert!(!image.is_wrapped(), "{purpose}");
        nothing_is_left_of(&image);
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_script_at_the_root_of_an_image_without_a_working_directory_is_found() {
    let image = Image::built("root", "COPY exec.py /exec.py");
    let folder = tempfile::tempdir().unwrap();
    wrap(&image, &agent_file(folder.path(), "one"), None).expect_code(0);
    assert_eq!(image.inspect_wrapped()["Config"]["WorkingDir"], "");
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_agent_for_another_processor_is_refused() {
    let image = Image::built("foreign", SCRIPT_IN_WORK);
    let folder = tempfile::tempdir().unwrap();
    let riscv = program_file(folder.path(), "", 243);
    wrap(&image, &riscv, None).expect_code(2).expect_stderr("is for riscv64, but the image");
    assert!(!image.is_wrapped());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_missing_image_is_named_with_the_reason_before_the_submit() {
    let (image, master) = (Image::unnamed("nowhere"), kubernetes());
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    let mut command = master.client(folder.path(), &["--image", &image.name, "--agent-binary"]);
    let ended = finish(command.arg(agent).spawn().unwrap()).expect_code(4);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines[0], format!("image {}: not on this machine, pulling it", image.name));
    let sentence = format!("error: the image {} is not on this machine and cannot be pulled: ", image.name);
    assert!(lines[1].starts_with(&sentence) && lines[1].len() > sentence.len(), "{}", ended.stderr);
    assert_eq!(lines[2], format!("hint: check the name, or build the image: docker build -t {} FOLDER", image.name));
    assert_eq!(master.asked(), ["GET /v1/master"]);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_job_runs_the_wrapped_image_with_its_pod_options() {
    let (image, master) = (Image::built("submit", SCRIPT_IN_WORK), kubernetes());
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    let flags = ["--task", "digits", "--image", &image.name, "--memory", "1Gi:2Gi", "--volume", "empty:/ckpt"];
    let mut command = master.client(folder.path(), &flags);
    let ended = finish(command.arg("--agent-binary").arg(agent).spawn().unwrap());
    ended.expect_code(0).expect_stderr("job digits accepted");
    let submitted = master.submitted();
    assert_eq!((&submitted["image"], &submitted["work_dir"]), (&json!(image.wrapped_by_content()), &json!(null)));
    assert_eq!(submitted["pod"], json!({"memory": "1Gi:2Gi", "volumes": ["empty:/ckpt"]}));
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_image_that_may_run_as_root_is_refused_unless_root_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    for (purpose, user, sentence) in [
        ("unsaid", "", "runs as root"),
        ("root", "\nUSER 0:0", "runs as root"),
        (
            "named",
            "\nUSER nobody",
            "runs as the user \"nobody\": Kubernetes cannot verify that a named user is not root",
        ),
    ] {
        let (image, master) = (Image::built(purpose, &format!("WORKDIR /work\nCOPY exec.py .{user}")), kubernetes());
        let submit = |more: &[&str]| {
            let flags = ["--task", "digits", "--image", &image.name, "--agent-binary"];
            finish(master.client(folder.path(), &flags).arg(&agent).args(more).spawn().unwrap())
        };
        let refused = submit(&[]).expect_code(2);
        let said = format!("error: the image {} {sentence}\nhint: set a numeric, non-zero USER", image.name);
        refused.expect_stderr(&said);
        assert!(!image.is_wrapped(), "{purpose}");
        assert_eq!(master.asked(), ["GET /v1/master"]);
        submit(&["--allow-root"]).expect_code(0);
        assert_eq!(master.submitted()["pod"], json!({"allow_root": true}));
        // The image's USER is checked even if the wrapped image already exists.
        submit(&[]).expect_code(2).expect_stderr(sentence);
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_dockerfile_is_built_with_the_files_that_dockerignore_does_not_exclude() {
    let (image, master) = (Image::unnamed("folder"), kubernetes());
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join(image.name.trim_start_matches("muster-"));
    std::fs::create_dir(&folder).unwrap();
    let instructions = "WORKDIR /work\nCOPY . .\nRUN test ! -e secret && test -x run.sh\nUSER 1000";
    let dockerfile = format!("FROM python:3.11-slim\n{}\n{instructions}\n", image.label());
    for (name, text) in
        [("Dockerfile", dockerfile.as_str()), (".dockerignore", "secret\n"), ("secret", ""), ("exec.py", "")]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let script = folder.join("run.sh");
    std::fs::write(&script, "").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let agent = agent_file(parent.path(), "one");
    let submit =
        || finish(master.client(&folder, &["--task", "digits", "--agent-binary"]).arg(&agent).spawn().unwrap());
    submit().expect_code(0).expect_stderr(&format!("image {}: built from ./Dockerfile in ", image.name));
    assert_eq!(master.submitted()["image"], image.wrapped_by_content());

    std::fs::write(folder.join("Dockerfile"), "FROM python:3.11-slim\nRUN echo no network; exit 7\n").unwrap();
    let failed = submit().expect_code(4);
    assert!(failed.stderr.contains("returned a non-zero code: 7"), "{}", failed.stderr);
    failed.expect_stderr("\n  no network");
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_agent_comes_from_the_master_if_the_client_has_no_valid_agent_beside_it() {
    let image = Image::built("fetched", SCRIPT_IN_WORK);
    let folder = tempfile::tempdir().unwrap();
    let agent = std::fs::read(agent_file(folder.path(), "of the master")).unwrap();
    let (beside, program) = crate::support::client_beside(&[]);
    let build = |agent: Option<Vec<u8>>| {
        let master = FakeMaster::start(Script { agent, ..Script::default() });
        let mut command = crate::support::command(&program, folder.path());
        command.args(["build", "--image", &image.name, "--master", &master.url]);
        finish(command.spawn().unwrap())
    };
    let none = build(None).expect_code(3);
    none.expect_stderr("error: fetch the agent from the master: this master has no agent program\nhint: make build");
    build(Some(agent)).expect_code(0).expect_stderr("wrapped in");
    // A script is not a valid agent.
    std::fs::write(beside.path().join("agent"), "#!/bin/sh\n").unwrap();
    let refused = build(Some(b"#!/bin/sh".to_vec())).expect_code(2);
    refused
        .expect_stderr("agent is not a 64-bit Linux program; using the master's agent")
        .expect_stderr("error: the agent from http");
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_interrupt_during_a_build_submits_nothing() {
    let (image, master) = (Image::unnamed("stopped"), kubernetes());
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join(&image.name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("Dockerfile"), "FROM python:3.11-slim\nRUN sleep 600\n").unwrap();
    let engine = Listener::start();
    let mut command = master.client(&folder, &["--task", "digits", "--agent-binary"]);
    command.arg(agent_file(parent.path(), "one"));
    let child = command.env("DOCKER_HOST", engine.address()).spawn().unwrap();
    until("the build has begun", || engine.asked().iter().any(|request| request == "POST /build"));
    let ended = interrupt(child, Signal::INT);
    assert_eq!(ended.stderr, "error: interrupted: nothing was submitted\n");
    assert_eq!(master.asked(), ["GET /v1/master"]);
}
