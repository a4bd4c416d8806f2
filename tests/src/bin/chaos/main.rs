//! `make chaos`: campaigns that make the real programs fail. Each campaign receives a count and prints its results. If
//! a campaign finds violations, the campaign prints the violations and fails.

mod api;
mod balance;
mod budgets;
mod churn;
mod cluster;
mod gangs;
mod history;
mod kills;
mod lanes;
mod output;
mod overnight;
mod points;
mod resizes;
mod shots;
mod stacks;
mod work;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::kills::Jobs;

const USAGE: &str = "chaos kills|elastic-kills|resizes|balance|balanced-resizes|budgets|overnight|cluster|churn|gangs|points|stacks COUNT [SEED]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("FAILED {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (campaign, count, seed) = match args.as_slice() {
        [campaign, count] => (campaign, count, fastrand::u64(..)),
        [campaign, count, seed] => (campaign, count, seed.parse().context(USAGE)?),
        _ => bail!(USAGE),
    };
    let count = count.parse().context(USAGE)?;
    say(&format!("== {campaign} {count}, seed {seed}"));
    match campaign.as_str() {
        "kills" => kills::campaign(count, seed, Jobs::Fixed),
        "elastic-kills" => kills::campaign(count, seed, Jobs::Elastic),
        "resizes" => resizes::campaign(count, seed),
        "balance" => balance::campaign(count),
        "balanced-resizes" => balance::resizes(count, seed),
        "budgets" => budgets::campaign(count, seed),
        "overnight" => overnight::campaign(count),
        "cluster" => cluster::campaign(count, seed),
        "churn" => churn::campaign(count, seed),
        "gangs" => gangs::campaign(count),
        "stacks" => stacks::campaign(count),
        "points" => points::campaign(count, seed),
        _ => bail!(USAGE),
    }
}

/// Prints a line. The output is visible at once.
fn say(line: &str) {
    // If stdout is closed, the line is lost.
    let _ = writeln!(std::io::stdout(), "{line}");
}
