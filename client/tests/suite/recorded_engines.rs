//! Makes wrapped images with recorded answers of Docker 20.10, Docker 29 and podman. No engine is needed.

use serde_json::{Value, json};

use crate::support::docker::agent_file;
use crate::support::recorded_engine::{RecordedEngine, Recording};
use crate::support::{Ended, client, finish};

fn wrap(engine: &RecordedEngine) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let mut command = client(folder.path());
    command.args(["build", "--image", "digits", "--agent-binary"]).arg(agent_file(folder.path(), "one"));
    finish(command.env("DOCKER_HOST", engine.address()).spawn().unwrap())
}

fn docker_with(entrypoint: &Value, files: &[(&'static str, &'static str)]) -> RecordedEngine {
    RecordedEngine::start(Recording::docker(json!({"Entrypoint": entrypoint}), files))
}

const PREPARES: &str = "#!/bin/sh\n. /opt/intel/setvars.sh\nexec \"$@\"\n";

#[test]
fn an_entrypoint_that_is_a_shell_script_is_passed_to_the_agent_as_flags_and_an_unneeded_entrypoint_is_not() {
    for (entrypoint, files, kept) in [
        (json!(["/entrypoint.sh"]), ("/entrypoint.sh", PREPARES), json!(["--entrypoint=/entrypoint.sh"])),
        (json!(["my start.sh"]), ("/bin/my start.sh", PREPARES), json!(["--entrypoint=my start.sh"])),
        (json!(["tini", "--", "./start.sh"]), ("/work/start.sh", PREPARES), json!(["--entrypoint=./start.sh"])),
        (json!(["bash", "/e.sh"]), ("/e.sh", PREPARES), json!(["--entrypoint=bash", "--entrypoint=/e.sh"])),
        (json!(null), ("/e.sh", PREPARES), json!([])),
        (json!(["tini", "--"]), ("/usr/bin/tini", "\u{7f}ELF"), json!([])),
    ] {
        let engine = docker_with(&entrypoint, &[files]);
        let ended = wrap(&engine).expect_code(0).expect_stderr("image digits_pod: wrapped in ");
        assert!(!ended.stderr.contains("ENTRYPOINT"), "{entrypoint}: {}", ended.stderr);
        let mut command = vec![json!("/muster/agent")];
        command.extend(kept.as_array().unwrap().clone());
        assert_eq!(engine.entrypoint(), json!(command), "{entrypoint}");
    }
}

#[test]
fn an_entrypoint_that_is_a_link_to_a_shell_script_is_passed_to_the_agent() {
    let engine = docker_with(&json!(["/e.sh"]), &[("/e.sh", "-> /opt/e.sh"), ("/opt/e.sh", PREPARES)]);
    wrap(&engine).expect_code(0);
    assert_eq!(engine.entrypoint(), json!(["/muster/agent", "--entrypoint=/e.sh"]));
}

#[test]
fn an_entrypoint_that_cannot_be_kept_is_quoted_in_a_warning() {
    for (entrypoint, file) in [
        (json!(["/bin/sh", "-c", "jupyter lab"]), ("/e.sh", "")),
        (json!(["/serve.sh"]), ("/serve.sh", "#!/bin/sh\njupyter lab\n")),
        (json!(["/serve"]), ("/serve", "\u{7f}ELF")),
        (json!(["/absent.sh"]), ("/e.sh", "")),
    ] {
        let engine = docker_with(&entrypoint, &[file]);
        let ended = wrap(&engine).expect_code(0);
        ended.expect_stderr(&format!("image digits: warning: pods do not run its ENTRYPOINT {entrypoint}, "));
        assert_eq!(engine.entrypoint(), json!(["/muster/agent"]), "{entrypoint}");
    }
}

#[test]
fn an_image_needs_python_or_python3() {
    let mut recording = Recording::docker(json!({}), &[("/bin/python3", "")]);
    recording.files.remove("/usr/bin/python");
    wrap(&RecordedEngine::start(recording)).expect_code(0);
    let mut recording = Recording::docker(json!({}), &[]);
    recording.files.remove("/usr/bin/python");
    let refused = wrap(&RecordedEngine::start(recording)).expect_code(2);
    refused.expect_stderr("the image digits has neither python nor python3 on its PATH (/usr/bin:/bin)");
}

/// Docker 29.0 with its default store.
fn docker_29() -> Recording {
    Recording {
        version: json!({"Version": "29.0.0", "Components": [{"Name": "Engine", "Version": "29.0.0"}]}),
        info: json!({
            "Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
        }),
        refuses_load: Some("unable to find layer sha256:one"),
        ..Recording::docker(json!({"Entrypoint": ["/my start.sh"]}), &[("/my start.sh", PREPARES)])
    }
}

/// podman 4.3 without `compat_api_enforce_docker_hub`.
fn podman() -> Recording {
    Recording {
        version: json!({"Version": "4.3.1", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}),
        info: json!({"Driver": "overlay", "DriverStatus": [["Backing Filesystem", "extfs"]]}),
        lists_below: "localhost/",
        refuses_load: Some("some layer tarfiles are missing in the tarball"),
        ..Recording::docker(json!({"Entrypoint": ["/my start.sh"]}), &[("/my start.sh", PREPARES)])
    }
}

#[test]
fn docker_29_and_podman_build_the_image_once_without_trying_to_load_it() {
    for (recording, host) in [(docker_29(), ""), (podman(), "localhost/")] {
        let engine = RecordedEngine::start(recording);
        let ended = wrap(&engine).expect_code(0);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stdout.starts_with(&format!("{host}digits_pod:")), "{}", ended.stdout);
        assert_eq!(engine.entrypoint(), json!(["/muster/agent", "--entrypoint=/my start.sh"]));
        let asked = engine.asked();
        assert!(
            asked.contains(&"POST /build".to_owned()) && !asked.contains(&"POST /images/load".to_owned()),
            "{asked:?}"
        );

        let again = wrap(&engine).expect_code(0);
        assert_eq!(again.stderr, "image digits_pod: up to date\n");
        assert_eq!(again.stdout, ended.stdout);
        let asked = engine.asked();
        assert!(
            asked.iter().all(|request| !request.starts_with("DELETE") && !request.ends_with("/build")),
            "{asked:?}"
        );
    }
}

#[test]
fn if_docker_unexpectedly_refuses_the_archive_the_image_is_built_and_the_reason_shown() {
    let engine = RecordedEngine::start(Recording {
        refuses_load: Some("refused by the test"),
        ..Recording::docker(json!({}), &[])
    });
    let ended = wrap(&engine).expect_code(0);
    ended.expect_stderr(
        "image digits_pod: Docker cannot load an archive with only the agent's layer (refused by the test); \
         building instead",
    );
}
