//! Tests of `resume.rs`. They use a paused clock, so waiting takes no time.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::follow::replaced;

/// A stream from a master that is unreachable for a while after each answer.
struct Flaky {
    away_for: Duration,
    back_at: Instant,
    breaks_left: u32,
}

fn away() -> MasterError {
    MasterError::Unreachable { url: "http://h:1".into(), reason: "away".into() }
}

impl Resumable for Flaky {
    type Opened = ();

    async fn open(&self) -> Result<(), MasterError> {
        if Instant::now() < self.back_at { Err(away()) } else { Ok(()) }
    }

    async fn read(&mut self, (): ()) -> Result<JobView, Error> {
        if self.breaks_left == 0 {
            // The tests recognise the end of the stream by this error.
            return Err(replaced(&"read-to-the-end".parse().unwrap()));
        }
        self.breaks_left -= 1;
        self.back_at = Instant::now() + self.away_for;
        Err(away().into())
    }
}

async fn outcome(away_for: Duration) -> (String, Duration) {
    let begun = Instant::now();
    let mut stream = Flaky { away_for, back_at: begun, breaks_left: 4 };
    let error = to_the_end(&mut stream).await.unwrap_err();
    (error.to_string(), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn each_answer_restarts_the_retry_limit_even_if_its_stream_is_empty() {
    let (error, took) = outcome(Duration::from_secs(200)).await;
    assert_eq!(error, "job read-to-the-end was deleted, and another job has its name now");
    assert!(took >= Duration::from_secs(800), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn retries_end_when_a_master_stays_unreachable() {
    let (error, took) = outcome(Duration::from_secs(600)).await;
    assert_eq!(error, "the master at http://h:1 cannot be reached: away");
    assert!(took >= Duration::from_secs(300) && took < Duration::from_secs(310), "{took:?}");
}
