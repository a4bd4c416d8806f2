//! The script of jobs whose processes are killed, and checks of the files that the script writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use e2e::programs::python_path;
use e2e::{Master, Scene};
use protocol::ids::{Generation, JobName};
use protocol::job::{JobRequest, Strategy};
use protocol::run_policy::RunPolicy;
use serde_json::Value;

/// Number of steps of each rank. A step takes 20 ms, and a checkpoint stores the number of steps that are done.
pub(crate) const STEPS: u64 = 25;
/// A number of steps that no job can complete.
pub(crate) const STEPS_WITHOUT_END: u64 = 1_000_000;

/// A script that does its steps, starting at its checkpoint. It writes its start and its cluster to `journal`. Each run
/// locks a file until its process ends. The script prints a violation if a run of another start, or another run of the
/// same replica and start, still holds its lock.
const EXEC_PY: &str = r#"
import fcntl, glob, json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
generation, task = os.environ["MUSTER_GENERATION"], config["task"]
replica, folder, steps = f"{task['type']}-{task['index']}", sys.argv[1], int(os.environ["STEPS"])

def is_held(path, how):
    lock = open(path, "a")
    try: fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError: return None, True
    return lock, False

os.makedirs(folder, exist_ok=True)
own = f"{folder}/{replica}.{generation}.lock"
lock, is_twice = is_held(own, fcntl.LOCK_EX)
if is_twice: print("VIOLATION:", own, "is held by another run", flush=True)
for path in glob.glob(f"{folder}/*.lock"):
    if not path.endswith(f".{generation}.lock") and is_held(path, fcntl.LOCK_SH)[1]:
        print("VIOLATION:", path, "is held in start", generation, flush=True)
with open(f"{folder}/journal", "a") as journal:
    journal.write(json.dumps([generation, replica, config["cluster"]]) + "\n")

checkpoint = f"{folder}/{replica}.json"
def save(step):
    with open(checkpoint + ".new", "w") as file: json.dump({"generation": generation, "step": step}, file)
    os.replace(checkpoint + ".new", checkpoint)

done = json.load(open(checkpoint))["step"] if os.path.exists(checkpoint) else 0
save(done)
while done < steps:
    time.sleep(0.02)
    done += 1
    save(done)
print("done", flush=True)
"#;

/// A master, and the folder with its jobs' exec.py.
pub(crate) struct Site {
    // Declared before the folder, so the master is dropped first.
    pub(crate) master: Master,
    pub(crate) scene: Scene,
}

impl Site {
    pub(crate) fn new() -> Self {
        let scene = Scene::new(EXEC_PY);
        Self { master: scene.master_with(&[("PATH", &python_path())]), scene }
    }
}

/// A request for a job of `steps` steps.
pub(crate) fn request(name: &JobName, steps: u64, workers: u32, max_restarts: u32) -> JobRequest {
    JobRequest {
        worker_num: Some(workers),
        args: vec![name.to_string()],
        env: BTreeMap::from([("STEPS".parse().expect("the name is invalid"), steps.to_string())]),
        run_policy: RunPolicy { max_restarts, backoff_seconds: 0, ..RunPolicy::default() },
        ..JobRequest::new(name.clone(), Strategy::AllReduce)
    }
}

/// The files that a job's runs have left in its folder.
#[derive(Debug)]
pub(crate) struct Traces {
    folder: PathBuf,
    starts: BTreeMap<Generation, BTreeSet<String>>,
}

impl Traces {
    /// Reads the files. Fails if a replica ran twice in a start, or if members of a start received different clusters.
    pub(crate) fn of(scene: &Scene, job: &JobName) -> anyhow::Result<Self> {
        let folder = scene.path().join(job.as_str());
        let mut starts: BTreeMap<Generation, BTreeSet<String>> = BTreeMap::new();
        let mut clusters: BTreeMap<Generation, Value> = BTreeMap::new();
        // There may be no journal, because a run that is killed at once writes nothing.
        for line in fs::read_to_string(folder.join("journal")).unwrap_or_default().lines() {
            let (generation, replica, cluster): (Generation, String, Value) =
                serde_json::from_str(line).with_context(|| format!("{job}: {line}"))?;
            ensure!(starts.entry(generation).or_default().insert(replica), "{job}: a replica ran twice: {line}");
            let first = clusters.entry(generation).or_insert_with(|| cluster.clone());
            ensure!(*first == cluster, "{job}: two TF_CONFIG clusters in start {generation}: {first} and {cluster}");
        }
        Ok(Self { folder, starts })
    }

    /// Number of starts in which a script ran.
    pub(crate) fn starts(&self) -> usize {
        self.starts.len()
    }

    /// Checks that every one of `ranks` ranks has done all its steps, and that the last step was in the last start.
    pub(crate) fn are_complete(&self, job: &JobName, ranks: usize) -> anyhow::Result<()> {
        let (last, ran) = self.starts.last_key_value().with_context(|| format!("{job}: no script ran"))?;
        ensure!(ran.len() == ranks, "{job}: only {ran:?} ran in the last start {last}");
        for replica in ran {
            let checkpoint: Value =
                serde_json::from_str(&fs::read_to_string(self.folder.join(format!("{replica}.json")))?)?;
            let is_done = checkpoint["step"] == STEPS && checkpoint["generation"] == last.to_string();
            ensure!(is_done, "{job}: {replica} ended with {checkpoint}, but the last start was {last}");
        }
        Ok(())
    }
}
