//! Tests of what a master does when it starts.

use crate::process::harness::{Folders, in_time};

#[tokio::test]
async fn at_its_start_a_master_removes_the_output_of_jobs_without_a_record_and_keeps_other_folders() {
    let folders = Folders::new("print('hello')");
    let logs = folders.state.path().join("logs");
    let (lost, other) = (logs.join("0d8f1c6e-6f0a-4c8e-9d55-6f9b0a1f6f52"), logs.join("mine"));
    for folder in [&lost, &other] {
        std::fs::create_dir_all(folder).expect("no folder");
        std::fs::write(folder.join("worker-0.log"), "output").expect("no file");
    }
    let _master = folders.master();
    in_time("the folder of the lost job is removed", || !lost.exists());
    assert!(other.exists(), "a folder that no master has made was removed");
}
