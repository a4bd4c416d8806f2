//! The page of `client ui`: what a master knows about its jobs, for a browser on this machine.
//!
//! The server asks the master with the client's own requests. It copies no header of the browser, and the master's
//! token appears in no answer.

mod actions;
pub(crate) mod browser;
mod charts;
pub(crate) mod feed;
pub(crate) mod guard;
mod log_lines;
mod output;
mod pages;
mod parts;
mod series;
pub(crate) mod server;
mod tab;
mod tf_config;
