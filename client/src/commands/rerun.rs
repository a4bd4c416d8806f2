//! `rerun`: submits an earlier job again. The earlier job may still be on record, or may be found only in the history.

use protocol::job::JobSpec;

use super::machines::how_to_join;
use super::order::Order;
use super::own_master::at_own_master;
use super::submit::{check_for_processes, no_detach, send};
use crate::address::config::{ClientConfig, variable_to_pass_on};
use crate::args::{ImageArgs, NameArg, RerunArgs};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::masters::finder::{Finder, ShownJob};
use crate::masters::which_master::running_master;
use crate::output::command_line::command;
use crate::output::{Data, Notes, Output};
use crate::request::about;
use crate::request::again::{about_code, again};

/// Submits the job again, under a new name unless the new job replaces the earlier one.
pub(super) async fn run(args: RerunArgs, config: &ClientConfig, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let RerunArgs { job: NameArg { name }, replace, detach, format, changes } = args;
    let seen = Finder::new("rerun", config.clone(), notes).await?.seen(&name, notes).await?;
    let mut request = again(seen.view(), changes, replace, &variable_to_pass_on)?;
    if let Some(folder) = request.work_dir.as_ref().filter(|folder| folder.is_dir()) {
        // The new job runs the files that are in the folder now.
        request.about = about::of_folder(folder, &request.script.clone().unwrap_or_default()).await;
    }
    let out = Output { format: format.output, data, notes: notes.clone() };
    let Some(client) = running_master(config).await? else {
        if detach {
            return Err(no_detach());
        }
        if replace && matches!(seen, ShownJob::Present(..)) {
            let hint = format!("end it first: {}; or leave out --replace", command(&format!("cancel {name}")));
            return Err(Error::input(format!("job {name} is still at its local master")).hint(hint));
        }
        check_for_processes(&ImageArgs::default(), &request, notes)?;
        return at_own_master(Order::of_job(JobSpec::try_from(request)?, None), config, out).await;
    };
    let mut order = Order::of_job(JobSpec::try_from(request)?, None);
    if !seen.view().spec.has_code() {
        order.next_step = Some(how_to_join(&order.name, client.url()));
    }
    send(client, order, (replace, detach), out).await.map_err(about_code)
}
