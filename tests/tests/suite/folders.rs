//! What differs between a job in place, a job with `--snapshot`, and a job of another user's master: the first two columns
//! of the table in docs/guides/code.md. The column of pods is tested with the agent, the column of joined
//! machines with the machines.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use e2e::processes::signal;
use e2e::{Finished, Master, Running, Scene, within};
use protocol::master::{BOOT_ID, MasterView};
use protocol::view::{JobState, JobView};
use rustix::process::Signal;

const STATE: [&str; 2] = ["--state-dir", "state"];
/// A user without files, for tests that root runs.
const NOBODY: u32 = 65_534;

/// Each rank writes its part of a checkpoint. With all parts, the ranks succeed.
const PARTS: &str = "import os, time
if not all(os.path.exists(f'part-{rank}') for rank in range(2)):
    open('part-' + os.environ['RANK'], 'w').close()
    print('saved', flush=True)
    time.sleep(600)
print('resumed in', os.getcwd(), flush=True)
";

/// Counts its starts in a file, and overwrites a file of the project.
const COUNTS: &str = "import os, time
number = int(open('count').read()) if os.path.exists('count') else 0
print('start', number, open('best.txt').read(), flush=True)
open('count', 'w').write(str(number + 1))
open('new', 'w').write('mine')
os.replace('new', 'best.txt')
time.sleep(600)
";

/// A project in a folder, and a master that stays.
struct Project {
    master: Master,
    folder: PathBuf,
    scene: Scene,
}

impl Project {
    fn new(script: &str) -> Self {
        let scene = Scene::new("");
        let folder = scene.path().join("project");
        fs::create_dir(&folder).expect("cannot create the folder");
        fs::write(folder.join("train.py"), script).expect("cannot write the script");
        fs::write(folder.join("best.txt"), "old").expect("cannot write the file");
        let master = scene.master();
        Self { master, folder, scene }
    }

    fn client(&self, args: &[&str]) -> Finished {
        self.client_with(args, &[])
    }

    fn client_with(&self, args: &[&str], flags: &[&str]) -> Finished {
        Finished::of(&mut self.command(args, flags))
    }

    fn command(&self, args: &[&str], flags: &[&str]) -> std::process::Command {
        let mut command = self.scene.client(&[&["--master", &self.master.url], args, flags].concat());
        command.current_dir(&self.folder);
        command
    }

    fn view(&self, job: &str) -> JobView {
        self.client(&["status", job, "-o", "json"]).code(0).view()
    }

    fn until_printed(&self, job: &str, text: &str) {
        let logs = || self.client(&["logs", job]).stdout;
        within(text, || logs().contains(text).then_some(()), logs);
    }

    fn next_master(&mut self) {
        within("the master ends", || self.master.end(), String::new);
        self.master.follow_up(&STATE);
    }
}

/// A job resumes a checkpoint of which each rank writes a part, after SIGKILL of a rank.
#[test]
fn ranks_see_each_others_files_and_resume_after_the_kill_of_a_rank_wherever_they_run() {
    for flags in [&[][..], &["--snapshot"], &["--master", "local"]] {
        let project = Project::new(PARTS);
        let restarts = ["train.py", "--task", "parts", "--worker-num", "2", "--max-restarts", "1", "--backoff", "0s"];
        let local = flags.contains(&"local");
        let mut command = match local {
            true => project.scene.client(&[flags, &restarts].concat()),
            false => project.command(&restarts, flags),
        };
        let job = Running::of(command.current_dir(&project.folder));
        job.until_printed(2, "saved");
        let view = match local {
            true => project.scene.run(&["status", "parts", "-o", "json"]).view(),
            false => project.view("parts"),
        };
        signal(view.replicas[1].pid.expect("no process"), Signal::KILL);
        let ended = job.ended().code(0);
        let folder = view.folder.expect("the view has no folder");
        assert_eq!(ended.lines("resumed in "), vec![folder.display().to_string(); 2], "{flags:?}");
        let is_live = folder == project.folder;
        assert_eq!(is_live, !flags.contains(&"--snapshot"), "{flags:?}: {folder:?}");
        let place = if is_live { ", in place" } else { ", a copy that is deleted with the job" };
        ended.says(&[&format!("job parts runs in {}{place}", folder.display())]);
    }
}

#[test]
fn what_a_script_wrote_survives_suspend_a_new_master_and_a_push_and_a_copy_goes_with_the_job() {
    for flags in [&[][..], &["--snapshot"]] {
        let mut project = Project::new(COUNTS);
        let is_copy = !flags.is_empty();
        project.client_with(&["train.py", "--task", "counts", "--worker-num", "1", "-d"], flags).code(0);
        project.until_printed("counts", "start 0 old");
        project.client(&["suspend", "counts"]).code(0);
        project.client(&["resume", "counts"]).code(0);
        project.until_printed("counts", "start 1 mine");
        signal(project.master.pid(), Signal::TERM);
        project.next_master();
        project.until_printed("counts", "start 2 mine");
        project.master.kill();
        project.next_master();
        project.until_printed("counts", "start 3 mine");
        fs::write(project.folder.join("train.py"), format!("import sys\n{COUNTS}")).expect("cannot write the script");
        let pushed = project.client(&["push", "counts"]).code(0);
        assert_eq!(pushed.stderr.contains("code of "), is_copy, "{}", pushed.stderr);
        project.until_printed("counts", "start 4 mine");
        let folder = project.view("counts").folder.expect("the view has no folder");
        let status = project.client(&["status", "counts"]).code(0).stdout;
        assert!(status.contains(&format!("runs in     {}", folder.display())), "{status}");
        let again = ["train.py", "--task", "counts", "--worker-num", "1", "-d", "--replace"];
        let replaced = project.client_with(&again, flags).code(0);
        let gone = format!("job counts: also deleting 2 files of its scripts in {}", folder.display());
        assert_eq!(replaced.stderr.contains(&gone), is_copy, "{}", replaced.stderr);
        assert_eq!((folder.exists(), folder == project.folder), (!is_copy, !is_copy));
        let own = fs::read_to_string(project.folder.join("best.txt")).expect("cannot read the file");
        assert_eq!(own, if is_copy { "old" } else { "mine" }, "{flags:?}");
        project.until_printed("counts", if is_copy { "start 0 old" } else { "start 5 mine" });
        project.client(&["delete", "counts"]).code(0);
    }
}

#[test]
fn a_new_master_removes_only_copies_of_jobs_without_a_record() {
    let mut project = Project::new(COUNTS);
    project.client(&["train.py", "--task", "counts", "--worker-num", "1", "-d", "--snapshot"]).code(0);
    project.until_printed("counts", "start 0");
    let of_job = project.view("counts").folder.expect("the view has no folder");
    let work = of_job.parent().expect("no folder").to_owned();
    let uid = "0198f0a2-7c1e-7d3a-9b1f-3c5d7e9f1a2b";
    let [gone, earlier, of_user] = [format!("gone.{uid}"), format!("counts.{uid}"), "digits.old".to_owned()];
    for name in [&gone, &earlier, &of_user] {
        fs::create_dir(work.join(name)).expect("cannot create the folder");
        fs::write(work.join(name).join("model"), "").expect("cannot write the file");
    }
    project.master.kill();
    project.next_master();
    let is_gone = |name: &str| !work.join(name).exists();
    within("the sweep", || (is_gone(&gone) && is_gone(&earlier)).then_some(()), String::new);
    project.until_printed("counts", "start 1 mine");
    assert!(work.join(of_user).join("model").exists(), "a folder of the user is removed");
}

#[test]
fn a_snapshot_is_the_folder_at_the_submit_and_needs_a_master_that_stays() {
    let project = Project::new("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('ended')");
    let submitted = project.client_with(&["train.py", "--task", "copy", "--worker-num", "1", "-d"], &["--snapshot"]);
    submitted.code(0).says(&["code of 2 files: sent 2 files"]);
    let folder = project.view("copy").folder.expect("the view has no folder");
    within("the copy", || folder.join("train.py").exists().then_some(()), String::new);
    fs::write(project.folder.join("go"), "").expect("cannot write the file");
    assert!(!folder.join("go").exists(), "a later file is in the copy");
    fs::write(folder.join("go"), "").expect("cannot write the file");
    assert_eq!(project.client(&["wait", "copy"]).code(0).status.code(), Some(0));
    let mut local = project.scene.client(&["train.py", "--snapshot", "--master", "local"]);
    Finished::of(local.current_dir(&project.folder)).code(2).says(&["--snapshot cannot be used with a local master"]);
}

/// As with `python ../../proj/train.py`, the current folder is the working directory, and the modules beside the script
/// are found.
#[test]
fn a_script_outside_the_current_folder_runs_in_the_current_folder_if_nothing_is_sent() {
    const PRINTS: &str = "import os, own\nprint('in', os.getcwd(), os.environ['PWD'], open('conf').read())";
    for flags in [&[][..], &["--master", "local"]] {
        let project = Project::new(PRINTS);
        fs::write(project.folder.join("own.py"), "").expect("cannot write the module");
        let here = project.scene.path().join("runs/one");
        fs::create_dir_all(&here).expect("cannot create the folder");
        fs::write(here.join("conf"), "mine").expect("cannot write the file");
        let args = [&["../../project/train.py", "--worker-num", "1"], flags].concat();
        let mut command = if flags.is_empty() { project.command(&args, &[]) } else { project.scene.client(&args) };
        let ended = Finished::of(command.current_dir(&here)).code(0);
        assert_eq!(ended.lines("in "), [format!("{0} {0} mine", here.display())], "{flags:?}");
    }
}

/// Scripts run with the PATH of their master, which may have been started in another environment.
#[test]
fn a_job_in_place_says_that_the_masters_python_is_not_that_of_the_shell() {
    let project = Project::new("");
    let bin = project.scene.path().join("bin");
    fs::create_dir(&bin).expect("cannot create the folder");
    symlink("/usr/bin/env", bin.join("python")).expect("cannot create the link");
    let submit = |task: &str, flags: &[&str]| {
        let mut command = project.command(&["train.py", "-d", "--task", task], flags);
        Finished::of(command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()))).code(0).stderr
    };
    let here = format!("the Python here is {}/python; to use this one, add --env PATH", bin.display());
    let told = submit("noted", &[]);
    assert!(told.contains("the scripts run with the master's Python, /") && told.contains(&here), "{told}");
    let told = submit("passed", &["--env", "PATH"]);
    assert!(!told.contains("the master's Python"), "{told}");
}

/// The answer to the question whether the master sees a folder with this inode.
fn asks(project: &Project, folder: &Path, inode: u64) -> bool {
    let found = fs::metadata(folder).expect("cannot look at the folder");
    let kernel = fs::read_to_string(BOOT_ID).expect("cannot read the id of the kernel");
    let url = format!(
        "{}/v1/master?folder={}&device={}&inode={inode}&boot_id={}",
        project.master.url,
        folder.display(),
        found.dev(),
        kernel.trim()
    );
    let answer = project.scene.curl(&[&url]);
    serde_json::from_str::<MasterView>(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")).same_folder
}

#[test]
fn a_master_confirms_only_a_folder_whose_identity_the_client_knows() {
    let project = Project::new("");
    let inode = |path: &Path| fs::metadata(path).expect("cannot look at the folder").ino();
    let folder = project.folder.as_path();
    assert!(asks(&project, folder, inode(folder)));
    assert!(!asks(&project, folder, inode(folder) + 1), "a folder with another inode");
    let script = folder.join("train.py");
    assert!(!asks(&project, &script, inode(&script)), "a file");
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped the rest: only root can give a folder to another user");
        return;
    }
    chown(folder, Some(NOBODY), None).expect("cannot give the folder away");
    assert!(asks(&project, folder, inode(folder)), "a folder of another user");
    project.client(&["train.py", "-d"]).code(0).says(&[&format!("runs in {}, in place", folder.display())]);
}

#[test]
fn at_a_master_of_another_user_the_ranks_share_one_copy() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can run the client as another user");
        return;
    }
    let project = Project::new(PARTS);
    fs::set_permissions(project.scene.path(), fs::Permissions::from_mode(0o755)).expect("cannot change the mode");
    for path in [&project.folder, &project.folder.join("train.py"), &project.folder.join("best.txt")] {
        chown(path, Some(NOBODY), None).expect("cannot give the file away");
    }
    let restarts = ["train.py", "--task", "parts", "--worker-num", "2", "--max-restarts", "1", "--backoff", "0s"];
    let mut command = project.command(&restarts, &["-d"]);
    command.uid(NOBODY).env("XDG_STATE_HOME", &project.folder).env("XDG_RUNTIME_DIR", &project.folder);
    let submitted = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: other users cannot run the client that was built here");
            return;
        }
        submitted => submitted.expect("cannot start the client"),
    };
    assert!(submitted.status.success(), "{}", String::from_utf8_lossy(&submitted.stderr));
    project.until_printed("parts", "saved");
    let view = project.view("parts");
    let folder = view.folder.clone().expect("the view has no folder");
    assert!(folder.starts_with(project.scene.path().join("state/work")), "{folder:?}");
    within("both parts", || (0..2).all(|rank| folder.join(format!("part-{rank}")).exists()).then_some(()), String::new);
    signal(project.view("parts").replicas[1].pid.expect("no process"), Signal::KILL);
    let ended = project.client(&["wait", "parts", "-o", "json"]).view();
    assert_eq!(ended.state, JobState::Succeeded, "{ended:#?}");
}
