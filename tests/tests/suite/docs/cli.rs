//! Checks that docs/reference/cli.md contains the programs' help.

use std::process::{Command, Stdio};

use e2e::Finished;
use e2e::programs::built;

use crate::docs::is_current;

const PAGE: &str = "docs/reference/cli.md";
const INTRODUCTION: &str = "# Command line

`make docs` writes this page from the help of the programs. Change the help in the sources, not here.

`muster` is the same program as `client`.
";

/// Returns the output of `program [verb] --help`, without environment variables, which can change defaults and widths.
fn help(program: &str, verb: &[&str]) -> String {
    let mut command = Command::new(built(program));
    command.args(verb).arg("--help").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let printed = Finished::of(&mut command).code(0).stdout;
    printed.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns the verbs in the client's help.
fn verbs(help: &str) -> Vec<&str> {
    let listed =
        help.split_once("\nCommands:\n").expect("no list of verbs").1.lines().take_while(|line| !line.is_empty());
    let names = listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

fn section(heading: &str, help: &str) -> String {
    format!("\n{heading}\n\n```text\n{}\n```\n", help.trim_end())
}

fn page() -> String {
    let client = help("client", &[]);
    let of_verbs: String =
        verbs(&client).iter().map(|verb| section(&format!("### client {verb}"), &help("client", &[verb]))).collect();
    let rest = ["master", "agent"].map(|program| section(&format!("## {program}"), &help(program, &[])));
    format!("{INTRODUCTION}{}{of_verbs}{}", section("## client", &client), rest.concat())
}

#[test]
fn the_cli_page_contains_the_current_help_of_the_programs() {
    is_current(PAGE, &page());
}

#[test]
fn the_verbs_found_in_the_clients_help_include_ten_known_verbs() {
    let help = help("client", &[]);
    let verbs = verbs(&help);
    for verb in ["list", "status", "why", "logs", "wait", "cancel", "delete", "build", "env", "completions"] {
        assert!(verbs.contains(&verb), "{verb} is not in {verbs:?}");
    }
}
