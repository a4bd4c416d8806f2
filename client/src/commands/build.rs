//! `build`: makes the image that pods run, as a submit does, and prints its name.

use super::which_master::running_master;
use crate::args::ImageArgs;
use crate::config::Config;
use crate::error::Error;
use crate::exit::Exit;
use crate::image::{self, ImageOrder};
use crate::output::{Data, Notes};
use crate::request::RequestError;

pub(super) async fn run(args: ImageArgs, config: &Config, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let folder = std::env::current_dir().map_err(RequestError::NoFolder)?;
    // If this machine has no agent, the image gets the agent of the master.
    let master = running_master(config).await?;
    let order = ImageOrder::new(args, &config.image, &folder, master)?;
    let image = image::prepare(&order, notes).await?;
    data.text(&image.to_string())?;
    Ok(Exit::Done)
}
