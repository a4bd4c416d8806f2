//! The table of `docs/guides/coming-from-tfjob.md`: what a TFJob means in a cluster, and without one. Each line that the
//! script prints is a row, or a part of one.
#![expect(missing_docs, reason = "the name of a journey is its description")]

use std::collections::BTreeMap;
use std::fs;

use crate::client::Finished;
use crate::cluster::Image;
use crate::place::{Place, Stage};

/// Prints rows, each with a name. The end of the chief ends the job, so the chief waits for the worker's rows.
const SCRIPT: &str = r#"
import json, os, socket, sys, time
config = json.loads(os.environ['TF_CONFIG'])
def row(name, *values): print(name, *values, flush=True)
names = ['PLAIN', 'ABSENT', 'PATH_OF', 'ESCAPED', 'UNKNOWN', 'LATER']
row('variables', {name: os.environ[name] for name in names})
row('arguments', sys.argv[1:])
row('file', os.path.relpath(__file__), open('conf').read().strip())
row('stdin', repr(sys.stdin.read()))
row('world', config['task']['index'], os.environ['WORLD_SIZE'], os.environ['RANK'], os.environ['MUSTER_RESTART_COUNT'])
row('local', os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE'])
row('inherited', os.environ.get('OF_THE_MACHINE'))
row('folder', os.getcwd() == '/muster/work')
row('user', os.getuid())
host, port = config['cluster']['worker'][0].split(':')
if config['task']['type'] == 'worker': socket.create_server((host, int(port))).accept()
while config['task']['type'] == 'chief':
    try:
        socket.create_connection((host, int(port)))
        break
    except OSError: time.sleep(0.05)
"#;

const TFJOB: &str = r#"
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: { name: same }
spec:
  tfReplicaSpecs:
    Chief: { template: { spec: { containers: [{ CONTAINER, BY_SHELL }] } } }
    Worker: { template: { spec: { containers: [{ CONTAINER, BY_PYTHON }] } } }
"#;

/// `--code` replaces this script of the image.
const BY_PYTHON: &str =
    "command: [python], args: [/opt/app/src/train.py, --dir=$(PATH_OF), $(RANK), $$(RANK), $(NONE)]";

/// A shell command runs as it is, in the folder of the code.
const BY_SHELL: &str = "command: [/bin/sh, -ec, \"true && exec python src/train.py --dir=$(PATH_OF)\"]";

const CONTAINER: &str = r#"name: tensorflow, image: IMAGE, imagePullPolicy: IfNotPresent, env: [{ name: PLAIN, value: "64" }, { name: ABSENT }, { name: PATH_OF, value: $(PLAIN)/x },
  { name: ESCAPED, value: $$(PLAIN) }, { name: UNKNOWN, value: $(NONE) }, { name: LATER, value: $(LAST) },
  { name: LAST, value: "z" }]"#;

pub fn a_tfjob_means_the_same_with_and_without_a_cluster_but_for_the_rows_of_the_table(place: Place) {
    let in_cluster = place == Place::Cluster;
    let image = if in_cluster { Image::shared().wrapped() } else { "mnist:1".to_owned() };
    let of_agent = ["--state-dir", "state", "--agent-image", &image];
    let stage = Stage::with_master(place, "", if in_cluster { &of_agent } else { &of_agent[..2] });
    let document = TFJOB.replace("CONTAINER", CONTAINER).replace("IMAGE", &image);
    let document = document.replace("BY_SHELL", BY_SHELL).replace("BY_PYTHON", BY_PYTHON);
    let folder = stage.scene().path().join("project");
    fs::create_dir_all(folder.join("src")).expect("cannot create the folder");
    let files = [("src/train.py", SCRIPT), ("train.py", "raise SystemExit('the wrong script')"), ("conf", "mine")];
    for (path, text) in files {
        fs::write(folder.join(path), text).expect("cannot write the file");
    }
    let apply = |document: &str| {
        fs::write(stage.scene().path().join("job.yaml"), document).expect("cannot write the TFJob");
        let mut client = stage.client(&["apply", "-f", "job.yaml", "--code", "project", "--follow"]);
        Finished::of(client.env("OF_THE_MACHINE", "seen"))
    };

    for (right, wrong, sentence) in [
        ("value: \"64\"", "value: 64", "env[PLAIN].value: it must be a string: write \"64\""),
        ("env: [", "environment: [", "containers[0].environment: this field is not known"),
        ("  tfReplicaSpecs", "  wibble: 3\n  tfReplicaSpecs", "spec.wibble: this field is not known"),
        ("name: same", "name: 20201", "metadata.name: it must be a string: write \"20201\""),
        ("TFJob", "PyTorchJob", "kind: \"PyTorchJob\" is not supported: use TFJob"),
    ] {
        apply(&document.replace(right, wrong)).code(2).says(&[sentence]);
    }

    let ended = apply(&document).code(0);
    let printed = |replica: &str| -> BTreeMap<&str, &str> {
        let rows = ended.stdout.lines().filter_map(|line| line.strip_prefix(replica)?.split_once("│ "));
        rows.filter_map(|(_, row)| row.split_once(' ')).collect()
    };
    let (of_shell, of_image) = (printed("chief-0"), printed("worker-0"));
    let own_user = rustix::process::getuid().as_raw().to_string();
    let variables = "{'PLAIN': '64', 'ABSENT': '', 'PATH_OF': '64/x', 'ESCAPED': '$(PLAIN)', 'UNKNOWN': '$(NONE)', \
                     'LATER': '$(LAST)'}";
    let arguments = "['--dir=64/x', '1', '$(RANK)', '$(NONE)']";
    let rows = [
        ("variables", variables, variables),
        ("arguments", arguments, arguments),
        ("file", "src/train.py mine", "src/train.py mine"),
        ("stdin", "''", "''"),
        ("world", "0 2 1 0", "0 2 1 0"),
        ("local", "1 2", "0 1"),
        ("inherited", "seen", "None"),
        ("folder", "False", "True"),
        ("user", &own_user, "65532"),
    ];
    for (name, here, there) in rows {
        let expected = if in_cluster { there } else { here };
        assert_eq!(of_image.get(name), Some(&expected), "{name}: {}", ended.stdout);
    }
    assert_eq!(of_shell.get("arguments"), Some(&"['--dir=64/x']"), "{}", ended.stdout);
    assert_eq!(of_shell.get("file"), of_image.get("file"), "{}", ended.stdout);
    assert_eq!(ended.stderr.contains("image: it has no meaning here"), !in_cluster, "{}", ended.stderr);
}
