//! `ui`: serves a page about all jobs on this machine, and opens it in a browser.

use std::io::ErrorKind;
use std::net::Ipv4Addr;

use master_client::clock::now;
use tokio::net::TcpListener;

use crate::address::config::{ClientConfig, has_desktop};
use crate::args::UiArgs;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::interrupt::Interrupts;
use crate::masters::upstream::Upstream;
use crate::output::{Data, Notes};
use crate::ui::feed::Hub;
use crate::ui::guard::PageGuard;
use crate::ui::{browser, server};

pub(super) async fn run(args: UiArgs, config: &ClientConfig, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let UiArgs { no_open, port } = args;
    let upstream = Upstream::find("ui", config, notes).await?;
    let mut interrupts = Interrupts::listen().map_err(Error::no_runtime)?;
    let listener = listen(port).await?;
    let port = listener.local_addr().map_err(|error| Error::input("find the page's port").because(error))?.port();
    let guard = PageGuard::new(port);
    let address = guard.address();
    data.text(&address)?;
    let opened = if no_open || !has_desktop() { None } else { browser::open(&config.run_folders, &address, notes) };
    notes.say("the address is a secret: it lets every program on this machine use your jobs; Ctrl-C ends the page");
    tokio::select! {
        () = server::serve(listener, guard, Hub::new(upstream, now)) => {}
        () = interrupts.next() => drop(opened),
    }
    Ok(Exit::Done)
}

async fn listen(port: Option<u16>) -> Result<TcpListener, Error> {
    let address = (Ipv4Addr::LOCALHOST, port.unwrap_or(0));
    TcpListener::bind(address).await.map_err(|error| {
        let is_taken = error.kind() == ErrorKind::AddrInUse;
        let failed = Error::input(format!("listen on 127.0.0.1:{}", address.1)).because(error);
        if is_taken { failed.hint("choose another --port, or leave it out to get a free port") } else { failed }
    })
}
