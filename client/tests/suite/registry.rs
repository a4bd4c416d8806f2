//! Pushes the wrapped image to a real registry. Needs Docker and the program docker-registry (a package of Debian):
//! `cargo test -p client --test suite registry -- --ignored`.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use protocol::master::BackendKind;

use crate::support::docker::{Image, agent_file, docker};
use crate::support::fake_master::FakeMaster;
use crate::support::{client, finish, until};

/// A running registry. Dropping the value stops it.
struct Registry {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Registry {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let storage = folder.path().join("data");
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"127.0.0.1:{port}\"}}\n",
            storage.display()
        );
        std::fs::write(folder.path().join("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.args(["serve", "config.yml"]).current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("cannot start docker-registry");
        until("the registry listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { process, address: format!("localhost:{port}"), _folder: folder }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "needs a Docker engine and docker-registry"]
fn a_pushed_image_is_submitted_by_its_digest_and_a_failed_push_is_an_error() {
    let (image, registry) = (Image::unnamed("pushed"), Registry::start());
    // The engine would compress a large base image for ten seconds. The client only looks whether there is a python.
    image.build_from("scratch", "WORKDIR /work\nCOPY exec.py .\nCOPY exec.py /usr/bin/python\nUSER 1000");
    let master = FakeMaster::of(BackendKind::Kubernetes);
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_file(folder.path(), "one");
    let pushed = format!("{}/team/{}_pod", registry.address, image.name);
    let mut command = client(folder.path());
    command.args(["--task", "digits", "--image", &image.name, "--push", &format!("{}/team", registry.address)]);
    // --push wins over MUSTER_LOAD, so the program kind is not needed.
    command.args(["--master", &master.url, "--agent-binary"]).arg(&agent).env("MUSTER_LOAD", "kind");
    finish(command.spawn().unwrap()).expect_code(0).expect_stderr(&format!("image {pushed}: pushed in "));
    let submitted = master.submitted()["image"].as_str().unwrap().to_owned();
    assert!(submitted.starts_with(&format!("{pushed}@sha256:")), "{submitted}");
    docker(&["pull", "--quiet", &submitted]);

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = client(folder.path());
    command.args(["build", "--image", &image.name, "--push", &nobody.to_string(), "--agent-binary"]).arg(&agent);
    let failed = finish(command.spawn().unwrap()).expect_code(4);
    failed
        .expect_stderr(&format!("error: push {nobody}/{}_pod:latest: ", image.name))
        .expect_stderr("hint: can Docker");
}
