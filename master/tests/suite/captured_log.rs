//! The log of this test process. All threads share the log, because tracing has one global subscriber per process.

use std::io::Write;
use std::sync::{Mutex, OnceLock};

/// Collects everything that this process logs from now on.
pub(crate) fn begin() {
    log();
}

/// The lines of the log that contain all of `texts`.
pub(crate) fn lines(texts: &[&str]) -> Vec<String> {
    let log = String::from_utf8(log().lock().expect("no writer panics").clone()).expect("the log is not UTF-8");
    log.lines().filter(|line| texts.iter().all(|text| line.contains(text))).map(str::to_owned).collect()
}

fn log() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<&Mutex<Vec<u8>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let kept: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || Writer(kept)).init();
        kept
    })
}

struct Writer(&'static Mutex<Vec<u8>>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
