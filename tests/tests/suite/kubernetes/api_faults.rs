//! Tests of jobs while the Kubernetes API is slow, refuses requests, loses answers, breaks off watches or is down.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2e::cluster::{Fault, FaultProxy, On};
use e2e::journeys::end_all;
use e2e::scripts::{AWAITS_ITS_END, tell, with_peers};
use e2e::{Running, Stage, within};
use protocol::error::{ErrorCode, Problem};
use protocol::job::{JobRequest, Strategy};
use protocol::view::{JobState, JobView};

/// Duration of an outage, during which the API is unavailable.
const AWAY: Duration = Duration::from_secs(30);
/// Maximum time until the master answers a submit. After this time, a client gives up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time, on a busy machine, for answers for which the master needs no Kubernetes API. It is less than [`AWAY`],
/// so an answer that comes only after an outage is late.
const PROMPT: Duration = Duration::from_secs(10);

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn faults_of_the_api_do_not_affect_a_running_job() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, &with_peers(AWAITS_ITS_END));
    let client = Running::of(&mut stage.submitting(&["--task", "steady"]));
    client.until_printed(2, "begun");
    let before = stage.status("steady");
    let vigil = Vigil::over(&stage);
    let faults = [
        (On::Everything, Fault::Slow(Duration::from_secs(2))),
        (On::Everything, Fault::TooMany),
        (On::Everything, Fault::Refused(503)),
        (On::Everything, Fault::Refused(500)),
        (On::Everything, Fault::LostAnswer(503)),
        (On::Everything, Fault::LostAnswer(500)),
        (On::Watches, Fault::Gone),
        (On::Everything, Fault::Down),
    ];
    for (number, (on, fault)) in faults.into_iter().enumerate() {
        api.misbehave(on, fault);
        api.cut();
        api.until_struck(2);
        assert_eq!(tell(&before, 0, "how are you"), "still here\n");
        client.until_printed(number + 1, "still here");
        api.behave();
    }
    end_all(&before);
    let run = client.ended().code(0);
    assert_eq!((run.lines("begun").len(), run.lines("ended").len()), (2, 2), "{}", run.stdout);
    assert_untroubled(&before, &stage.finished("steady"));
    vigil.assert_no_complaints();
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_result_of_a_job_that_ends_during_an_outage_of_the_api_is_recorded_afterwards() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, &with_peers(AWAITS_ITS_END));
    let client = Running::of(&mut stage.submitting(&["--task", "meanwhile"]));
    client.until_printed(2, "begun");
    let before = stage.status("meanwhile");
    let vigil = Vigil::over(&stage);
    let away = Instant::now();
    api.misbehave(On::Everything, Fault::Down);
    assert_eq!(tell(&before, 0, "how are you"), "still here\n");
    client.until_printed(1, "still here");
    end_all(&before);
    client.until_printed(2, "ended");
    until_over(away);
    let meanwhile = stage.status("meanwhile");
    assert_eq!((meanwhile.result, record(&stage, "meanwhile").contains("succeeded")), (None, false));
    api.behave();
    let run = client.ended().code(0);
    assert_eq!((run.lines("begun").len(), run.lines("ended").len()), (2, 2), "{}", run.stdout);
    assert_untroubled(&before, &stage.finished("meanwhile"));
    assert!(record(&stage, "meanwhile").contains("succeeded"));
    vigil.assert_no_complaints();
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_that_is_accepted_just_before_an_outage_of_the_api_runs_after_the_outage() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, "print('hello')");
    api.misbehave(On::Creating("networkpolicies"), Fault::Refused(500));
    stage.submit(&["-d", "--task", "accepted"]).code(0);
    api.until_struck(1);
    let away = Instant::now();
    api.misbehave(On::Everything, Fault::Down);
    until_over(away);
    assert_eq!(stage.cluster().objects(), ["configmap/muster-accepted"]);
    api.behave();
    let run = stage.follow("accepted").ended().code(0);
    assert_eq!(run.lines("hello").len(), 2, "{}", run.stdout);
    assert_eq!(stage.finished("accepted").restarts.total(), 0);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_submit_while_the_api_is_unavailable_or_refuses_gets_503_and_leaves_no_objects() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, "print('hello')");
    let vigil = Vigil::over(&stage);
    for fault in [Fault::Down, Fault::Refused(500)] {
        api.misbehave(On::Everything, fault);
        assert_refused(&stage, "early");
        // Wait until the fault has affected several requests.
        api.until_struck(4);
        let client = stage.submit(&["--task", "early"]).code(3);
        client.says(&["error: ", "could not access the job's record", "hint: try again later"]);
        assert_eq!(stage.cluster().objects(), Vec::<String>::new(), "objects are left after {fault:?}");
        assert_eq!(stage.cluster().policies(), Vec::<String>::new(), "objects are left after {fault:?}");
    }
    api.behave();
    stage.submit(&["--task", "early"]).code(0);
    vigil.assert_no_complaints();
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn with_a_slow_api_a_submit_gets_503_before_the_client_gives_up() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, "print('hello')");
    let vigil = Vigil::over(&stage);
    // The API answers each call in time, but the calls of a submit take too long together.
    api.misbehave(On::Everything, Fault::Slow(Duration::from_secs(13)));
    assert_refused(&stage, "patient");
    api.behave();
    stage.submit(&["--task", "patient"]).code(0);
    vigil.assert_no_complaints();
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn if_the_answer_to_the_creation_of_a_record_is_lost_the_record_exists_once_and_its_job_runs_once() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, &with_peers(AWAITS_ITS_END));
    for (status, job) in [(500, "lost-500"), (503, "lost-503")] {
        api.misbehave_times(1, On::Creating("configmaps"), Fault::LostAnswer(status));
        let (first, _) = post(&stage, job);
        assert!([200, 201, 503].contains(&first), "{first}");
        assert_eq!(api.struck(), 1);
        let (second, body) = post(&stage, job);
        assert!([200, 201].contains(&second), "{second}: {body}");
        let client = stage.follow(job);
        client.until_printed(2, "begun");
        end_all(&stage.status(job));
        let run = client.ended().code(0);
        assert_eq!((run.lines("begun").len(), run.lines("ended").len()), (2, 2), "{}", run.stdout);
        assert_eq!(stage.finished(job).state, JobState::Succeeded);
    }
    let records = stage.cluster().objects().into_iter().filter(|name| name.starts_with("configmap/"));
    assert_eq!(records.collect::<Vec<_>>(), ["configmap/muster-lost-500", "configmap/muster-lost-503"]);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn if_answers_are_lost_each_pod_is_created_once_and_a_delete_removes_the_pods_and_the_record() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, &with_peers(AWAITS_ITS_END));
    for (status, job) in [(500, "pods-500"), (503, "pods-503")] {
        api.misbehave_times(3, On::Creating("pods"), Fault::LostAnswer(status));
        let client = Running::of(&mut stage.submitting(&["--task", job]));
        client.until_printed(2, "begun");
        assert_eq!(api.struck(), 3);
        assert_eq!(stage.cluster().live_pods(), [0, 1].map(|index| format!("{job}-worker-{index}")));
        assert_untroubled(&stage.status(job), &stage.status(job));
        api.misbehave_times(2, On::Deleting("pods"), Fault::LostAnswer(status));
        stage.verb(&["delete", job]).code(0);
        api.until_struck(1);
        assert_eq!(stage.cluster().objects(), Vec::<String>::new());
    }
    for (status, job) in [(500, "gone-500"), (503, "gone-503")] {
        stage.submit(&["-d", "--task", job]).code(0);
        stage.follow(job).until_printed(2, "begun");
        api.misbehave_times(2, On::Deleting("configmaps"), Fault::LostAnswer(status));
        stage.verb(&["delete", job]).code(0);
        api.until_struck(1);
        assert_eq!(stage.cluster().objects(), Vec::<String>::new());
    }
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn if_answers_are_lost_a_failure_and_a_result_are_recorded_once() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, "print('begun')\nraise SystemExit(3)");
    for (status, job) in [(500, "twice-500"), (503, "twice-503")] {
        // The master replaces the record once for the restart and once for the result.
        api.misbehave_times(2, On::Replacing("configmaps"), Fault::LostAnswer(status));
        let flags = ["--task", job, "--worker-num", "1", "--max-restarts", "1", "--backoff", "0s"];
        let run = stage.submit(&flags).code(1);
        assert_eq!((run.lines("begun").len(), api.struck()), (2, 2), "{}", run.stdout);
        let view = stage.finished(job);
        assert_eq!((view.state, view.restarts.counted, view.restarts.uncounted), (JobState::Failed, 1, 0));
        assert_eq!(view.restarts.failed_starts.len(), 2);
    }
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn four_pods_start_through_an_overloaded_api_and_through_a_slow_api() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, "print('hello')");
    let vigil = Vigil::over(&stage);
    let runs = |job: &str| {
        let run = stage.submit(&["--task", job, "--worker-num", "4"]).code(0);
        assert_eq!(run.lines("hello").len(), 4, "{}", run.stdout);
        assert_eq!(stage.finished(job).restarts.total(), 0);
    };
    // The API refuses eight requests. On average, these are two for each pod.
    api.misbehave_times(8, On::Creating("pods"), Fault::TooMany);
    runs("crowded");
    assert_eq!(api.struck(), 8);
    api.misbehave(On::Everything, Fault::Slow(Duration::from_secs(2)));
    runs("slow");
    vigil.assert_no_complaints();
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_launch_and_a_restart_succeed_although_watches_break_off_and_cannot_resume() {
    let api = FaultProxy::start();
    let stage = Stage::behind(&api, &with_peers(AWAITS_ITS_END));
    stage.submit(&["-d", "--task", "watched"]).code(0);
    let forget = || {
        api.misbehave_times(4, On::Watches, Fault::Gone);
        api.cut();
    };
    forget();
    let client = stage.follow("watched");
    client.until_printed(2, "begun");
    api.until_struck(4);
    stage.kill_agent("watched");
    forget();
    client.until_printed(4, "begun");
    let view = stage.status("watched");
    assert_eq!((view.restarts.counted, view.restarts.uncounted), (1, 0));
    end_all(&view);
    client.ended().code(0);
    assert_eq!(stage.finished("watched").restarts.total(), 1);
}

/// Waits until the outage that began at `since` has lasted for [`AWAY`].
fn until_over(since: Instant) {
    let is_over = || (since.elapsed() > AWAY).then_some(());
    within("the outage has lasted for half a minute", is_over, String::new);
}

/// Asserts that a job is running or has succeeded, without a restart and in the same start as before.
#[track_caller]
fn assert_untroubled(before: &JobView, after: &JobView) {
    assert_eq!((after.generation, after.restarts.total()), (before.generation, 0));
    assert!(matches!(after.state, JobState::Running | JobState::Succeeded), "{after:?}");
}

/// Asserts that the master refuses a submit with 503 and Retry-After before a client gives up.
fn assert_refused(stage: &Stage, job: &str) {
    let begin = Instant::now();
    let (status, answer) = post(stage, job);
    assert!(begin.elapsed() < ANSWER_TIMEOUT, "the answer came after {:?}: {answer}", begin.elapsed());
    assert_eq!(status, 503, "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").expect("no end of the head");
    assert!(head.to_ascii_lowercase().contains("\r\nretry-after: "), "{head}");
    let problem: Problem = serde_json::from_str(body).expect("not a problem");
    assert_eq!(problem.code, ErrorCode::Unavailable, "{}", problem.detail);
}

/// Submits a job over HTTP. Returns the status and the whole answer.
fn post(stage: &Stage, job: &str) -> (u16, String) {
    let request = JobRequest {
        image: Some(stage.cluster().image.wrapped().parse().expect("not an image's name")),
        env: stage.script_variable(),
        ..JobRequest::new(job.parse().expect("not a name"), Strategy::AllReduce)
    };
    let body = serde_json::to_string(&request).expect("cannot serialize the request");
    let answer = stage.curl(&["-i", "-X", "POST", "--data-binary", &body], "/v1/jobs");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("an answer without a status: {answer:?}")), answer)
}

/// Returns the text of the job's record in the cluster.
fn record(stage: &Stage, job: &str) -> String {
    let name = format!("muster-{job}");
    stage.cluster().namespace.kubectl(&["get", "configmap", &name, "-o", "jsonpath={.data.record}"])
}

/// A thread that repeatedly sends a master requests that need no Kubernetes API. The thread collects late
/// or failed answers.
struct Vigil {
    is_over: Arc<AtomicBool>,
    watching: JoinHandle<Vec<String>>,
}

impl Vigil {
    fn over(stage: &Stage) -> Self {
        let address = stage.cluster().master.url.trim_start_matches("http://").to_owned();
        let is_over = Arc::new(AtomicBool::new(false));
        let should_end = Arc::clone(&is_over);
        let watching = thread::spawn(move || {
            let mut complaints = vec![];
            while !should_end.load(Ordering::Relaxed) {
                complaints.extend(["/readyz", "/healthz", "/v1/jobs"].iter().filter_map(|path| ask(&address, path)));
                thread::park_timeout(Duration::from_millis(100));
            }
            complaints
        });
        Self { is_over, watching }
    }

    fn assert_no_complaints(self) {
        self.is_over.store(true, Ordering::Relaxed);
        assert_eq!(self.watching.join().expect("the thread has panicked"), Vec::<String>::new());
    }
}

/// Sends a request. Returns a complaint if the answer is late or is not 200.
fn ask(address: &str, path: &str) -> Option<String> {
    let begin = Instant::now();
    let answer = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PROMPT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = answer().unwrap_or_else(|error| error.to_string());
    let is_good = answer.starts_with("HTTP/1.1 200 ") && begin.elapsed() < PROMPT;
    (!is_good).then(|| format!("{path} after {:?}: {answer}", begin.elapsed()))
}
