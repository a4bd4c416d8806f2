//! `get`: shows jobs as the TFJobs that they came from.

use super::now;
use super::which_master::Masters;
use crate::args::{GetArgs, ObjectFormat};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::{Data, tfjobs_table, yaml};
use serde_json::json;

pub(super) async fn run(masters: &Masters, args: &GetArgs, data: &mut Data) -> Result<Exit, Error> {
    let (shown, items) = match &args.name {
        Some(name) => {
            let object = masters.of(name)?.tfjob(name).await?;
            (object.clone(), vec![object])
        }
        None => {
            let items = masters.of_all(async |client| Ok(client.tfjobs().await?.items)).await?;
            (json!({ "apiVersion": "v1", "kind": "List", "items": items }), items)
        }
    };
    match args.output {
        ObjectFormat::Table => data.text(&tfjobs_table(&items, now()))?,
        ObjectFormat::Json => data.json(&shown)?,
        ObjectFormat::Yaml => data.text(&yaml(&shown))?,
    }
    Ok(Exit::Done)
}
