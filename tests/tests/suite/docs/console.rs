//! Runs the blocks of Markdown files that begin with "console test", and compares the commands' output with the output
//! in the blocks.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use e2e::programs::{built, root};
use e2e::{Finished, Scene};

use crate::docs::{pages, text};

/// Ports in the blocks. The test replaces them with free ports.
const PORTS: [&str; 2] = ["7896", "7897"];

#[test]
fn the_commands_of_the_console_blocks_print_the_output_in_the_blocks() {
    let texts: Vec<String> = pages().iter().map(|page| text(page)).collect();
    let blocks_of = |text: &'_ str| -> Vec<String> {
        let blocks = text.split("```console test\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
        blocks.map(|(block, _)| block.to_owned()).collect()
    };
    // README repeats some blocks of the book.
    let blocks: BTreeSet<String> = texts.iter().flat_map(|text| blocks_of(text)).collect();
    assert!(blocks.len() >= 3, "README and the book have only {} blocks of ```console test", blocks.len());
    for block in &blocks {
        run(block);
    }
}

/// A command of a block, and the output that the block shows.
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
            (None, None) => panic!("the block does not begin with a command: {block}"),
        }
    }
    steps
}

/// Runs a block in one shell, in a folder with a copy of the examples, and compares the output with the block.
fn run(block: &str) {
    const MARK: &str = "---- next ----";
    let scene = Scene::new("");
    copy(&root().join("examples"), &scene.path().join("examples"));
    let steps = steps(block);
    // The output of a background program would mix with the output of later commands.
    let quiet = |command: &str| match command.strip_suffix(" &") {
        Some(background) => format!("{background} > /dev/null &"),
        None => command.to_owned(),
    };
    let typed: Vec<String> = steps.iter().map(|step| format!("{}\necho '{MARK}'\n", quiet(step.command))).collect();
    let mut script = format!("set -e -o pipefail\n{}", typed.concat());
    let mut shell = Command::new("bash");
    for port in PORTS {
        let free =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("no free port").port();
        // Replace the colon too. Otherwise, the next replacement could change digits of this free port.
        script = script.replace(&format!(":{port}"), &format!(":{free}"));
        if port == "7897" {
            shell.env("MUSTER_LISTEN", format!("127.0.0.1:{free}"));
        }
    }
    let programs = built("client");
    let programs = programs.parent().expect("the program has no parent folder").display();
    script = format!("PATH={programs}:$PATH\n{script}");
    shell
        .args(["-c", &script])
        .current_dir(scene.path())
        .env("XDG_STATE_HOME", scene.path())
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("MUSTER_MASTER");
    let Finished { status, stdout, stderr } = Finished::of(&mut shell);
    assert!(status.success(), "{script}\nprinted:\n{stdout}\n{stderr}");
    for (step, came) in steps.iter().zip(stdout.split(&format!("{MARK}\n"))) {
        if !step.shown.is_empty() {
            assert_eq!(came.lines().collect::<Vec<_>>(), step.shown, "$ {}", step.command);
        }
    }
    scene.until_empty();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("cannot create the folder");
    for entry in fs::read_dir(from).expect("cannot read the folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { drop(fs::copy(entry.path(), target)) }
    }
}
