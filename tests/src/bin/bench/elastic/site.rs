//! A folder with scripts that note when they start, and the launchers that start the scripts in this folder.

use std::fs::{self, File};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use e2e::processes::{DEADLINE, signal};
use e2e::programs::python_path;
use e2e::requests::{client_of, wait_for};
use e2e::{Master, Scene};
use protocol::patch::JobPatch;
use rustix::process::Signal;

use super::WORKERS;

/// A script that notes its start and then sleeps.
pub(crate) const HELLO: &str = "import starts, time\ntime.sleep(1e6)\n";

/// Name of the job of a site.
pub(crate) const JOB: &str = "bench";

/// Name of the module that notes starts.
pub(crate) const STARTS: &str = "starts.py";

/// Name of the folder with the code that a job brings.
pub(crate) const CODE: &str = "code";

/// A module that writes the time of its import to the file NOTES. The benchmark uses the same clock.
const STARTS_PY: &str = r#"
import os, time
at, env = time.time_ns(), os.environ
generation = env.get("MUSTER_GENERATION", "none")
line = f"{env['RANK']} {env['WORLD_SIZE']} {generation} {at} {os.getpid()}\n"
with open(NOTES, "a") as file: file.write(line)
"#;

/// Starts the scripts without a launcher.
const SHELL: &str = r#"for rank in $(seq 0 $((WORLD_SIZE - 1))); do RANK=$rank python exec.py & done; wait"#;

/// Interval at which the notes are read. It does not affect the measured times, which are in the notes.
const POLL: Duration = Duration::from_millis(5);

/// A folder with an exec.py. Dropping this kills the processes in the folder.
pub(crate) struct Site {
    pub(crate) scene: Scene,
    notes: File,
    /// The notes after the last gang that [`Self::next_gang`] has returned.
    unread: String,
}

/// All scripts of one start.
#[derive(Debug)]
pub(crate) struct Gang {
    pub(crate) world: usize,
    pub(crate) generation: String,
    /// When the last script started.
    pub(crate) started: SystemTime,
    /// Process ids, by rank.
    pub(crate) pids: Vec<u32>,
}

/// A line of the notes: the start of one script.
#[derive(Debug)]
struct Note {
    rank: usize,
    world: usize,
    generation: String,
    at: SystemTime,
    pid: u32,
}

impl Site {
    pub(crate) fn new(exec_py: &str) -> anyhow::Result<Self> {
        Self::of(Scene::new(exec_py))
    }

    pub(crate) fn of(scene: Scene) -> anyhow::Result<Self> {
        let notes = scene.path().join("starts.txt");
        fs::write(scene.path().join(STARTS), STARTS_PY.replace("NOTES", &format!("{notes:?}")))?;
        fs::write(&notes, "")?;
        Ok(Self { notes: File::open(notes)?, unread: String::new(), scene })
    }

    /// Moves the scripts into the subfolder [`CODE`], which jobs can bring.
    pub(crate) fn with_code(self) -> anyhow::Result<Self> {
        let code = self.scene.path().join(CODE);
        fs::create_dir(&code)?;
        for entry in fs::read_dir(self.scene.path())? {
            let entry = entry?;
            if entry.file_type()?.is_file() && entry.file_name() != "starts.txt" {
                fs::rename(entry.path(), code.join(entry.file_name()))?;
            }
        }
        Ok(self)
    }

    /// Returns a command that runs in the folder. Each of these commands finds the same Python.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.scene.path()).env("PATH", python_path()).env("TMPDIR", self.scene.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Waits for the next start in which all scripts have started. Skips incomplete starts.
    pub(crate) fn next_gang(&mut self) -> anyhow::Result<Gang> {
        let begin = Instant::now();
        loop {
            self.notes.read_to_string(&mut self.unread)?;
            if let Some((gang, lines)) = first_gang(&self.unread) {
                self.unread = self.unread.split_inclusive('\n').skip(lines).collect();
                return Ok(gang);
            }
            ensure!(begin.elapsed() < DEADLINE, "no complete start within {DEADLINE:?}, only:\n{}", self.unread);
            thread::sleep(POLL);
        }
    }

    /// Like [`Self::next_gang`], but skips starts with another number of scripts.
    pub(crate) fn gang_of(&mut self, world: usize) -> anyhow::Result<Gang> {
        loop {
            let gang = self.next_gang()?;
            if gang.world == world {
                return Ok(gang);
            }
        }
    }

    /// Returns the time until a shell has started all scripts. Kills the scripts afterwards.
    pub(crate) fn shell_start(&mut self) -> anyhow::Result<Duration> {
        let begin = SystemTime::now();
        let mut shell = self
            .command("sh")
            .args(["-c", SHELL])
            .env("WORLD_SIZE", WORKERS.to_string())
            .spawn()
            .context("start sh")?;
        let gang = self.next_gang()?;
        gang.pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        shell.wait()?;
        gang.since(begin)
    }

    /// Starts a master, and submits a job with these flags. The master must be dropped before the site.
    pub(crate) fn muster(&self, flags: &[&str]) -> Master {
        let master = self.scene.master_with(&[("PATH", &python_path())]);
        let always =
            ["--master", &master.url, "--detach", "--task", JOB, "--backoff", "0s", "--max-restarts", "100000"];
        self.scene.run(&[&always, flags].concat()).code(0);
        master
    }
}

impl Gang {
    /// Time from an event to the start of the last script.
    pub(crate) fn since(&self, event: SystemTime) -> anyhow::Result<Duration> {
        self.started.duration_since(event).context("the gang started before the event")
    }
}

/// Sends a request that changes the job of a site. This is faster than a client, whose process must start first.
pub(crate) fn patch(master: &str, change: JobPatch) -> anyhow::Result<()> {
    wait_for(client_of(master, None).patch(&JOB.parse()?, change))?;
    Ok(())
}

/// Kills a process. Returns the time just before the kill.
pub(crate) fn kill(pid: u32) -> SystemTime {
    strike(pid, Signal::KILL)
}

/// Sends a signal. Returns the time just before the signal.
pub(crate) fn strike(pid: u32, with: Signal) -> SystemTime {
    let now = SystemTime::now();
    signal(pid, with);
    now
}

/// A program, such as one that starts scripts. Dropping this kills the program.
pub(crate) struct Launcher(Child);

impl Launcher {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn().with_context(|| format!("start {}", command.get_program().display()))?;
        Ok(Self(child))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The kill fails if the program has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the first complete start in these notes, and the number of lines up to the end of this start.
fn first_gang(text: &str) -> Option<(Gang, usize)> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let notes: Vec<Note> = complete.lines().filter_map(note).collect();
    let mut lines = 0;
    for group in notes.chunk_by(|one, other| (one.world, &one.generation) == (other.world, &other.generation)) {
        let first = group.first()?;
        if group.len() >= first.world {
            let mut members: Vec<&Note> = group[..first.world].iter().collect();
            members.sort_by_key(|note| note.rank);
            return Some((
                Gang {
                    world: first.world,
                    generation: first.generation.clone(),
                    started: members.iter().map(|note| note.at).max()?,
                    pids: members.iter().map(|note| note.pid).collect(),
                },
                lines + first.world,
            ));
        }
        lines += group.len();
    }
    None
}

fn note(line: &str) -> Option<Note> {
    let mut fields = line.split(' ');
    Some(Note {
        rank: fields.next()?.parse().ok()?,
        world: fields.next()?.parse().ok()?,
        generation: fields.next()?.to_owned(),
        at: UNIX_EPOCH + Duration::from_nanos(fields.next()?.parse().ok()?),
        pid: fields.next()?.parse().ok()?,
    })
}
