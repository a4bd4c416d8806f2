//! `make bench`: what Muster adds to the work itself, each figure beside a bare loop that does the same without it, in
//! one run, so that the ratio holds on any machine.

mod agents;
mod cluster;
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
    rows.extend(kept::tails().await?);
    rows.extend(kept::finished().await?);
    rows.extend(cluster::compare()?);
    table.add_rows(rows.iter().map(Row::cells));
    writeln!(std::io::stdout(), "{table}")?;
    Ok(())
}
