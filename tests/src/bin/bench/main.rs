//! `make bench`: measures Muster's overhead. Each value is compared with a simple loop that does the same work without
//! Muster. Both run on the same machine, so the ratio is comparable between machines. `make bench-elastic` measures changes
//! of a gang, also beside torchrun.

mod agents;
mod cluster;
mod elastic;
mod helper;
mod kept;
mod launch;
mod sample;
mod spawn;

use std::io::Write;

use anyhow::{Context as _, bail};
use comfy_table::Table;

use crate::sample::Row;

const USAGE: &str = "bench [elastic PAIRS TENSORFLOW_PAIRS]";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rows = match args.as_slice() {
        [] => overhead().await?,
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

async fn overhead() -> anyhow::Result<Vec<Row>> {
    let mut rows = launch::real().await?;
    rows.extend(launch::fake().await?);
    rows.extend(agents::compare().await?);
    rows.extend(spawn::compare().await?);
    rows.extend(helper::calls()?);
    rows.extend(kept::tails().await?);
    rows.extend(kept::finished().await?);
    rows.extend(cluster::compare()?);
    Ok(rows)
}
