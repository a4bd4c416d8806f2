//! Builds images with Docker's API: a training image from a folder, and the wrapped image if the engine refuses to load
//! an archive. Both builds use the engine's own builder. They work without the docker command and without BuildKit.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bollard::models::BuildInfo;
use bollard::query_parameters::BuildImageOptionsBuilder;
use bollard::{body_full, body_stream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use protocol::image::ImageRef;
use tokio::sync::mpsc;

use super::context::{self, ChannelWriter};
use super::engine::{Engine, reason};
use super::layer::{self, Wrap};
use super::names::short;
use super::stall;
use crate::ending::error::Error;
use crate::output::Notes;

pub(super) const DOCKERFILE: &str = "Dockerfile";
/// Maximum number of pieces that wait for Docker to read them.
const PIECES_WAITING: usize = 16;
/// Maximum number of lines shown of a failed build's output.
const LOG_LINES_MAX: usize = 20;

/// Builds the Dockerfile of a folder, with the folder as context.
pub(super) async fn from_folder(engine: &Engine, folder: &Path, name: &ImageRef, notes: &Notes) -> Result<(), Error> {
    let ignored = context::ignored(folder)?;
    let (pieces, mut waiting) = mpsc::channel::<Bytes>(PIECES_WAITING);
    let root = folder.to_owned();
    let reading = tokio::task::spawn_blocking(move || context::write(&root, &ignored, ChannelWriter(pieces)));
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    let content = stream::poll_fn(move |task| {
        counted.fetch_add(1, Ordering::Relaxed);
        waiting.poll_recv(task)
    });
    let options = options(name).dockerfile(DOCKERFILE).build();
    let output = engine.patient.build_image(options, None, Some(body_stream(content)));
    let built = async {
        let mut output = std::pin::pin!(output.peekable());
        // The engine prints nothing until it has read the folder. Until then, the number of pieces read shows the
        // progress. Later, there is no time limit, because a build step may print nothing for hours.
        let first = stall::while_changing(output.as_mut().peek(), || taken.load(Ordering::Relaxed)).await;
        if let Err(stalled) = first.map(|_| ()) {
            return Err(failed(name, &format!("Docker stopped reading the folder: {stalled}"), ""));
        }
        follow(output, name, notes).await
    };
    let built = built.await;
    match (reading.await.expect("the task that reads the folder neither panics nor is aborted"), built) {
        // If the folder cannot be read, that error is more useful than Docker's error about the incomplete tar. If
        // Docker stopped reading, Docker's own error is the cause.
        (Err(unreadable), Err(_)) if unreadable.io_kind() != Some(std::io::ErrorKind::BrokenPipe) => Err(unreadable),
        (_, built) => built,
    }
}

/// The error of a failed build. `log` is the end of its output, with a line break before each line.
fn failed(name: &ImageRef, reason: &str, log: &str) -> Error {
    let image = short(name);
    let error = Error::image(format!("build {image}: {reason}{log}"));
    if !reason.to_lowercase().contains("buildkit") {
        return error;
    }
    error.hint(format!("build it yourself: docker build -t {image} . ; then give --image {image}"))
}

/// Builds the wrapped image: the base with the agent on top. The image gets the name `target.content`.
pub(super) async fn wrap(engine: &Engine, wrap: &Wrap<'_>, notes: &Notes) -> Result<(), Error> {
    let Wrap { base, target, .. } = wrap;
    let unwritable = |error| Error::image(format!("pack the agent: {error}"));
    let context = layer::build_context(wrap).map_err(unwritable)?;
    let options = options(&target.content).buildargs(&HashMap::from([("BASE", base.id.as_str())])).build();
    let output = engine.patient.build_image(options, None, Some(body_full(context.into())));
    follow(output, &target.alias, notes).await
}

fn options(name: &ImageRef) -> BuildImageOptionsBuilder {
    BuildImageOptionsBuilder::default().t(&name.to_string()).rm(true).forcerm(true)
}

/// Follows a build to its end. The engine reports a failure as an item of the stream.
async fn follow(
    output: impl Stream<Item = Result<BuildInfo, bollard::errors::Error>>,
    name: &ImageRef,
    notes: &Notes,
) -> Result<(), Error> {
    let mut output = std::pin::pin!(output);
    let mut log = Log::default();
    while let Some(next) = output.next().await {
        let reason = match next {
            Ok(BuildInfo { error_detail: Some(error), .. }) => error.message.unwrap_or_default(),
            Err(error) => reason(&error),
            Ok(info) => {
                if let Some(step) = info.stream.and_then(|text| log.add(&text)) {
                    notes.show_step(&format!("image {}: {step}", short(name)));
                }
                continue;
            }
        };
        return Err(failed(name, reason.trim(), &log.tail()));
    }
    Ok(())
}

/// The newest lines that a build has printed.
#[derive(Default)]
struct Log {
    lines: VecDeque<String>,
}

impl Log {
    /// Adds output. Returns the step that begins in this output, such as `Step 2/4 : COPY . .`.
    fn add(&mut self, text: &str) -> Option<String> {
        let mut step = None;
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            if line.starts_with("Step ") {
                step = Some(line.to_owned());
            }
            if self.lines.len() == LOG_LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(line.to_owned());
        }
        step
    }

    fn tail(&self) -> String {
        self.lines.iter().map(|line| format!("\n  {line}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_shows_its_steps_and_keeps_its_last_lines() {
        let mut log = Log::default();
        assert_eq!(log.add("Step 1/2 : FROM x\n"), Some("Step 1/2 : FROM x".to_owned()));
        assert_eq!(log.add("\n ---> 123\n"), None);
        for number in 0..LOG_LINES_MAX {
            log.add(&format!("line {number}\n"));
        }
        assert!(log.tail().starts_with("\n  line 0\n") && log.tail().ends_with("line 19"), "{}", log.tail());
    }

    #[test]
    fn a_build_that_needs_buildkit_has_a_hint_to_build_by_hand() {
        let hint = |reason: &str| failed(&"muster-digits".parse().unwrap(), reason, "").hint;
        let expected = "build it yourself: docker build -t muster-digits . ; then give --image muster-digits";
        assert_eq!(hint("the --mount option requires BuildKit").as_deref(), Some(expected));
        assert_eq!(hint("pip returned 1"), None);
    }

    #[tokio::test]
    async fn an_error_in_the_stream_fails_the_build_and_shows_its_log() {
        let info = |text: &str| BuildInfo { stream: Some(text.to_owned()), ..BuildInfo::default() };
        let error = bollard::models::ErrorDetail { code: Some(1), message: Some("pip returned 1".to_owned()) };
        let output = stream::iter([
            Ok(info("Step 1/1 : RUN pip\n")),
            Ok(info("no network\n")),
            Ok(BuildInfo { error_detail: Some(error), ..BuildInfo::default() }),
        ]);
        let outcome = follow(output, &"digits".parse().unwrap(), &Notes::new()).await;
        let expected = "build digits: pip returned 1\n  Step 1/1 : RUN pip\n  no network";
        assert_eq!(outcome.unwrap_err().to_string(), expected);
    }
}
