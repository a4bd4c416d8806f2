//! `make bench`: measures Muster's overhead. Most values are compared with a simple loop that does the same work
//! without Muster. Muster and the loop run on the same machine, so their ratio is comparable between machines. `make
//! bench-elastic` measures how fast a gang restarts or changes its size, and also compares Muster with torchrun.

mod agents;
mod batching;
mod cgroup;
mod cluster;
mod code;
mod elastic;
mod gang;
mod helper;
mod installed;
mod kept;
mod launch;
mod live_changes;
mod push;
mod quotas;
mod sample;
mod spawn;
mod tfjobs;
mod threads;

use std::io::Write;

use anyhow::{Context as _, bail};
use comfy_table::Table;

use crate::sample::{Row, note};

const USAGE: &str =
    "bench [programs|threads|start|push|batching|cluster|code|tfjobs|tensorflow|quotas|elastic PAIRS TENSORFLOW_PAIRS]";
/// Number of pushes for each row of the group `tensorflow`. `make bench-elastic` measures these rows with another
/// number of pushes, TENSORFLOW_PAIRS.
const TENSORFLOW_PUSHES: usize = 10;
/// The groups of rows that `make bench` measures if its arguments name no group.
const GROUPS: [&str; 8] = ["programs", "threads", "start", "push", "batching", "cluster", "code", "tfjobs"];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rows = match args.as_slice() {
        [] => measure(&GROUPS).await?,
        [group] => measure(&[group]).await?,
        [elastic, pairs, tensorflow_pairs] if elastic == "elastic" => {
            elastic::compare(pairs.parse().context(USAGE)?, tensorflow_pairs.parse().context(USAGE)?).await?
        }
        _ => bail!(USAGE),
    };
    let mut table = Table::new();
    table.set_header(["what", "muster", "bare", "ratio", "bare is"]);
    table.add_rows(rows.iter().map(Row::cells));
    writeln!(std::io::stdout(), "{table}")?;
    Ok(())
}

async fn measure(groups: &[&str]) -> anyhow::Result<Vec<Row>> {
    let mut rows = vec![];
    for group in groups {
        let measured = match *group {
            "programs" => programs().await?,
            "threads" => threads::compare()?,
            "start" => kept::start().await?,
            "push" => push::processes()?,
            "batching" => batching_rows()?,
            "cluster" | "code" | "tfjobs" if !cluster::is_there()? => vec![],
            "cluster" => cluster::compare()?,
            "code" => code::compare()?,
            "tfjobs" => tfjobs::compare()?,
            "tensorflow" => push::tensorflow(TENSORFLOW_PUSHES)?,
            "quotas" => quotas::compare()?,
            _ => bail!(USAGE),
        };
        note(&mut rows, measured)?;
    }
    Ok(rows)
}

fn batching_rows() -> anyhow::Result<Vec<Row>> {
    let mut rows = batching::compare();
    rows.push(batching::balancer());
    rows.extend(live_changes::compare()?);
    Ok(rows)
}

async fn programs() -> anyhow::Result<Vec<Row>> {
    let mut rows = launch::real().await?;
    rows.extend(launch::fake().await?);
    rows.extend(launch::growth().await?);
    rows.extend(agents::compare().await?);
    rows.extend(spawn::compare().await?);
    rows.extend(helper::calls()?);
    rows.extend(kept::tails().await?);
    rows.extend(kept::finished().await?);
    Ok(rows)
}
