//! README.md is true: its flag tables are those of the programs, and its console blocks do what they show.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use e2e::programs::{built, root};
use e2e::{Scene, processes};

/// Ports that the README names, and that a test must not take.
const PORTS: [&str; 2] = ["7896", "7897"];

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).expect("README.md")
}

/// The text below a heading, up to the next of its kind or higher.
fn section(heading: &str) -> String {
    let text = readme();
    let below = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("README.md has {heading}")).1;
    let ends = |line: &&str| !(line.starts_with("## ") || line.starts_with("### "));
    below.lines().take_while(ends).collect::<Vec<_>>().join("\n")
}

/// The long flags in the first column of a section's tables.
fn documented(heading: &str) -> BTreeSet<String> {
    let text = section(heading);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `--"));
    rows.map(|row| flag_at_start(&format!("--{row}"))).collect()
}

/// The long flags that a program's help lists, its verbs' too.
fn offered(program: &str, verbs: &[&str]) -> BTreeSet<String> {
    let help = |args: &[&str]| {
        let output = Command::new(built(program)).args(args).arg("--help").output().expect("the program starts");
        String::from_utf8(output.stdout).expect("help is text")
    };
    let texts = verbs.iter().map(|verb| help(&[verb])).chain([help(&[])]);
    let flags = texts.flat_map(|text| {
        let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        lines.filter_map(|line| Some(flag_at_start(&line[line.find("--")?..]))).collect::<Vec<_>>()
    });
    flags.filter(|flag| !["--help", "--version"].contains(&flag.as_str())).collect()
}

fn flag_at_start(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

#[test]
fn the_flag_tables_are_the_programs_flags() {
    let verbs = ["list", "status", "why", "logs", "wait", "cancel", "delete", "build", "env", "completions"];
    assert_eq!(documented("### client"), offered("client", &verbs));
    assert_eq!(documented("### master"), offered("master", &[]));
    assert_eq!(documented("### agent"), offered("agent", &[]));
}

#[test]
fn the_console_blocks_do_what_they_show() {
    let text = readme();
    let blocks: Vec<&str> =
        text.split("```console test\n").skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0)).collect();
    assert!(blocks.len() >= 3, "README.md has console blocks to run");
    for block in blocks {
        run(block);
    }
}

/// One line that is typed, and the lines that follow it in the README.
struct Step<'a> {
    command: &'a str,
    shown: Vec<&'a str>,
}

fn steps(block: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = vec![];
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command, shown: vec![] }),
            (None, Some(step)) => step.shown.push(line),
            (None, None) => panic!("a block begins with a command: {block}"),
        }
    }
    steps
}

/// Runs a block in one shell, in a copy of the examples, and compares what is shown with what comes.
fn run(block: &str) {
    const MARK: &str = "---- next ----";
    let scene = Scene::new("");
    copy(&root().join("examples"), &scene.path().join("examples"));
    let steps = steps(block);
    // What a program in the background prints would come between the lines of those after it.
    let quiet = |command: &str| match command.strip_suffix(" &") {
        Some(background) => format!("{background} > /dev/null &"),
        None => command.to_owned(),
    };
    let typed: Vec<String> = steps.iter().map(|step| format!("{}\necho '{MARK}'\n", quiet(step.command))).collect();
    let mut script = format!("set -e -o pipefail\n{}", typed.concat());
    let mut shell = Command::new("bash");
    for port in PORTS {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        // With the colon before it, for the free one may end with the digits of another.
        script = script.replace(&format!(":{port}"), &format!(":{free}"));
        if port == "7897" {
            shell.env("MUSTER_LISTEN", format!("127.0.0.1:{free}"));
        }
    }
    let programs = built("client");
    let programs = programs.parent().expect("a program is in a folder").display();
    script = format!("PATH={programs}:$PATH\n{script}");
    let output = shell
        .args(["-c", &script])
        .current_dir(scene.path())
        .env("XDG_STATE_HOME", scene.path())
        .env_remove("MUSTER_MASTER")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map(processes::output)
        .expect("bash starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\nprinted:\n{stdout}\n{stderr}");
    for (step, came) in steps.iter().zip(stdout.split(&format!("{MARK}\n"))) {
        if !step.shown.is_empty() {
            assert_eq!(came.lines().collect::<Vec<_>>(), step.shown, "$ {}", step.command);
        }
    }
    scene.until_empty();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { drop(fs::copy(entry.path(), target)) }
    }
}
