//! `--verbose`: prints each request to the master and to Docker on stderr. Omits headers and bodies, because they may
//! contain secrets.

use log::{LevelFilter, Log, Metadata, Record};

use super::Notes;

/// The beginning of the names of modules that log requests, and the server to which they send them.
pub(crate) type Servers = &'static [(&'static str, &'static str)];

/// Prints requests from now on.
pub(crate) fn trace_requests(notes: &Notes, servers: Servers) {
    // Setting the logger fails only if a logger is already set. Only this function sets one.
    if log::set_boxed_logger(Box::new(Trace { notes: notes.clone(), servers })).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

struct Trace {
    notes: Notes,
    servers: Servers,
}

impl Log for Trace {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LevelFilter::Debug && server(self.servers, metadata.target()).is_some()
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        // Docker's library logs the address and the body of each request. The body must not be printed.
        let is_request = text.split(' ').any(|word| word.contains("://")) && !text.starts_with(['{', '[']);
        if is_request && let Some(server) = server(self.servers, record.target()) {
            self.notes.say(&format!("{server}: {text}"));
        }
    }

    fn flush(&self) {}
}

/// The name of the server, from the module that logs the request.
fn server(servers: Servers, target: &str) -> Option<&'static str> {
    servers.iter().find(|(module, _)| target.starts_with(module)).map(|(_, server)| *server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_master_and_docker_are_traced() {
        let server = |target| server(crate::TRACED, target);
        assert_eq!(server(master_client::LOG_TARGET), Some("master"));
        assert_eq!(server(crate::image::LOG_TARGET), Some("docker"));
        assert_eq!(server("hyper_util::client"), None);
    }
}
