//! `build`: makes the image that pods run, as a submit does, and prints its name.

use super::current_folder;
use crate::address::config::ClientConfig;
use crate::args::BuildArgs;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::image::{self, ImageOrder, Reach};
use crate::masters::which_master::running_master;
use crate::output::{Data, Notes};

pub(super) async fn run(args: BuildArgs, config: &ClientConfig, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let folder = current_folder()?;
    // If this machine has no agent, the image gets the agent of the master.
    let master = running_master(config).await?;
    let mut order = ImageOrder::new(args.image, &config.image, &folder, master)?;
    order.reach = if args.open { Reach::Network } else { Reach::Loopback };
    let image = image::prepare(&order, notes).await?;
    data.text(&image.to_string())?;
    Ok(Exit::Done)
}
