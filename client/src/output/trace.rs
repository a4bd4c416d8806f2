//! `--verbose`: prints each request to the master and to Docker on stderr. Omits headers and bodies, because they may
//! contain secrets.

use log::{LevelFilter, Log, Metadata, Record};

use super::Notes;
use crate::{image, master};

/// Prints requests from now on.
pub(crate) fn trace_requests(notes: &Notes) {
    // Setting the logger fails only if a logger is already set. Only this function sets one.
    if log::set_boxed_logger(Box::new(Trace(notes.clone()))).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

struct Trace(Notes);

impl Log for Trace {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LevelFilter::Debug && server(metadata.target()).is_some()
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        // Docker's library logs the address and the body of each request. The body must not be printed.
        let is_request = text.split(' ').any(|word| word.contains("://")) && !text.starts_with(['{', '[']);
        if let Some(server) = server(record.target()).filter(|_| is_request) {
            self.0.say(&format!("{server}: {text}"));
        }
    }

    fn flush(&self) {}
}

/// The name of the server, from the module that logs the request.
fn server(target: &str) -> Option<&'static str> {
    let servers = [(master::client::LOG_TARGET, "master"), (image::LOG_TARGET, "docker")];
    servers.into_iter().find(|(module, _)| target.starts_with(module)).map(|(_, server)| server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_master_and_docker_are_traced() {
        assert_eq!(server(master::client::LOG_TARGET), Some("master"));
        assert_eq!(server(image::LOG_TARGET), Some("docker"));
        assert_eq!(server("hyper_util::client"), None);
    }
}
