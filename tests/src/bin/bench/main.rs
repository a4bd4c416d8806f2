//! `make bench`: measures Muster's overhead. Each value is compared with a simple loop that does the same work without
//! Muster. Both run on the same machine, so the ratio is comparable between machines.

mod agents;
mod cluster;
mod helper;
mod kept;
mod launch;
mod sample;
mod spawn;

use std::io::Write;

use comfy_table::Table;

use crate::sample::Row;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut table = Table::new();
    table.set_header(["what", "muster", "bare", "ratio", "bare is"]);
    let mut rows = launch::real().await?;
    rows.extend(launch::fake().await?);
    rows.extend(agents::compare().await?);
    rows.extend(spawn::compare().await?);
    rows.extend(helper::calls()?);
    rows.extend(kept::tails().await?);
    rows.extend(kept::finished().await?);
    rows.extend(cluster::compare()?);
    table.add_rows(rows.iter().map(Row::cells));
    writeln!(std::io::stdout(), "{table}")?;
    Ok(())
}
