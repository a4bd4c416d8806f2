//! Sends code to a master, like a client.

use std::collections::BTreeSet;

use protocol::code::{CodeFile, CodeId, Manifest, Sha256};
use serde_json::{Value, json};

use crate::requests::{client_of, wait_for};
use crate::scene::Scene;

/// Sends files to the master at this URL. `files` contains the path and the text of each file. Returns the id of the
/// code.
///
/// # Panics
/// If the master does not accept the code.
pub fn send_code(master: &str, token: Option<&str>, files: &[(&str, &str)]) -> CodeId {
    let file = |(path, text): &(&str, &str)| CodeFile {
        path: path.parse().expect("not a path"),
        sha256: Sha256::of(text.as_bytes()),
        size: text.len() as u64,
        executable: false,
    };
    let manifest = Manifest::new(files.iter().map(file).collect()).expect("an invalid manifest");
    let (client, id) = (client_of(master, token), manifest.id());
    let missing = wait_for(client.put_manifest(id, &manifest)).expect("the master refused the manifest");
    let contents: BTreeSet<&str> = files.iter().map(|(_, text)| *text).collect();
    let blobs = contents.into_iter().map(|text| (Sha256::of(text.as_bytes()), text));
    let blobs: Vec<u8> = blobs
        .filter(|(blob, _)| missing.contains(blob))
        .flat_map(|(blob, text)| [blob.as_bytes(), text.as_bytes()].concat())
        .collect();
    let missing = wait_for(client.put_blobs(id, blobs)).expect("the master refused the blobs");
    assert_eq!(missing, [], "the master lacks blobs after the upload");
    id
}

/// Sends these files to the master at this URL, and submits a job of two workers. The job's script is the first file.
/// `options` are further fields of the request.
///
/// # Panics
/// If the master refuses the job.
pub fn submit_with_code(scene: &Scene, master: &str, name: &str, files: &[(&str, &str)], options: Value) {
    let code = send_code(master, None, files);
    let mut request =
        json!({ "name": name, "strategy": "AllReduce", "worker_num": 2, "code": code, "script": files[0].0 });
    let fields = request.as_object_mut().expect("not an object");
    let Value::Object(options) = options else { panic!("the options are not an object") };
    fields.extend(options);
    let url = format!("{master}/v1/jobs");
    let answer = scene.curl(&["--json", &request.to_string(), &url]);
    assert!(answer.contains("\"uid\""), "{answer}");
}
