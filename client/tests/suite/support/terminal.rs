//! A terminal for programs under test.

use std::fs::File;
use std::io::Read;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::until;

const ROWS: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(80).unwrap();

/// A terminal of 24 lines, and everything written to it.
pub(crate) struct Terminal {
    keyboard: OwnedFd,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    screen: vt100::Parser,
    bytes: Vec<u8>,
}

impl Terminal {
    /// Starts a program whose stdin, stdout and stderr are a terminal.
    pub(crate) fn start(command: &mut Command) -> (Self, Child) {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize { ws_row: ROWS.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 };
        let program =
            ioctl_tiocgptpeer(&terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        tcsetwinsize(&program, size).unwrap();
        let end = || program.as_fd().try_clone_to_owned().unwrap();
        if command.get_envs().all(|(name, _)| name != "TERM") {
            command.env("TERM", "xterm");
        }
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        // Closes the command's handles of the terminal. Otherwise the reader would never see the end of the output.
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let seen = Arc::new(Mutex::new(Seen { screen: vt100::Parser::new(ROWS, COLUMNS, 0), bytes: Vec::new() }));
        let (noted, mut display) = (Arc::clone(&seen), File::from(terminal.as_fd().try_clone_to_owned().unwrap()));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The read fails when no program has the terminal open.
            while let Ok(count @ 1..) = display.read(&mut buffer) {
                let mut seen = noted.lock().unwrap();
                seen.screen.process(&buffer[..count]);
                seen.bytes.extend_from_slice(&buffer[..count]);
            }
        });
        (Self { keyboard: terminal, seen }, child)
    }

    /// Types these bytes.
    pub(crate) fn type_in(&self, keys: &[u8]) {
        rustix::io::write(&self.keyboard, keys).unwrap();
    }

    /// The text on the screen, without trailing blanks and empty lines.
    pub(crate) fn screen(&self) -> String {
        let seen = self.seen.lock().unwrap();
        let rows: Vec<String> =
            seen.screen.screen().rows(0, COLUMNS.get()).map(|row| row.trim_end().to_owned()).collect();
        rows.join("\n").trim_end().to_owned()
    }

    /// How often a text was written to the terminal, even if the screen does not show it any more.
    pub(crate) fn written(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.seen.lock().unwrap().bytes).matches(text).count()
    }

    /// Waits until the terminal shows a text.
    #[track_caller]
    pub(crate) fn until_shown(&self, text: &str) {
        until(&format!("the terminal shows {text:?}"), || self.screen().contains(text));
    }
}
