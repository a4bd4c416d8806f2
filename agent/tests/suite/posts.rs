//! The address to which a script posts its progress without the helper, as Hugging Face's Transformers does.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use protocol::agent::{ExitOutcome, RunState, RunStatus};
use protocol::warm::WarmState;
use serde_json::{Value, json};

use crate::support::warm::Folders;
use crate::support::{Agent, wait_until};

/// What `KubeflowCallback` of Transformers does. `post` returns the status of the answer.
const POST: &str = "import json, os, urllib.error, urllib.request
url = os.environ.get('KUBEFLOW_TRAINER_SERVER_URL', '')
token_file = os.environ.get('KUBEFLOW_TRAINER_SERVER_TOKEN', '')
def send(data, url=url, token=None, method='POST'):
    token = open(token_file).read() if token is None else token
    headers = {'Authorization': f'Bearer {token}', 'Content-Type': 'application/json'}
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60, context=None) as response: return response.status
    except urllib.error.HTTPError as error: return error.code
def post(**metrics):
    status = {'lastUpdatedTime': '2026-01-02T03:04:05+00:00', 'progressPercentage': 4, 'estimatedRemainingSeconds': 9}
    status['metrics'] = [{'name': name, 'value': str(value)} for name, value in metrics.items()]
    return send(json.dumps({'trainerStatus': status}).encode())
";

/// A step, and values by name.
type Shown<'a> = (Option<u64>, Vec<(&'a str, f64)>);

/// The posted step and values.
fn posted(status: &RunStatus) -> Option<Shown<'_>> {
    status.posted.as_ref().map(|progress| (progress.step, progress.values.iter().collect()))
}

/// The lines that a run of this Python prints after [`POST`], and its last status.
fn printed(lines: &str, env: &Value) -> (String, RunStatus) {
    let agent = Agent::of_python(&format!("{POST}{lines}"));
    agent.start_with(env);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(0), "{}", agent.wait_for_output(""));
    (String::from_utf8(agent.logs("stdout")).unwrap(), agent.status())
}

#[test]
fn the_status_shows_what_a_cold_and_a_warm_script_post_although_a_proxy_is_set() {
    let folders = Folders::new();
    folders.write_script(format!(
        "import standin\n{POST}
print(post(total_steps=10), post(loss=0.5, note='a text', current_step=4), post(loss=0.25, train_loss=float('nan')))
print(token_file, flush=True)
while not os.path.exists('end'): os.sched_yield()"
    ));
    let env = folders.env(&json!({"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}));
    for warm in [false, true] {
        let agent = folders.agent();
        if warm {
            assert_eq!(agent.warm_up(&env, &json!(["standin"])), WarmState::Ready);
        }
        let _ = fs::remove_file(folders.job().join("end"));
        agent.start_with(&env);
        let output = agent.wait_for_output("posts-");
        assert_eq!(output.lines().next(), Some("200 200 200"), "{output}");
        let token_file =
            wait_until("a whole line", || agent.wait_for_output("posts-").lines().nth(1).map(str::to_owned));
        assert_eq!(fs::metadata(&token_file).unwrap().permissions().mode() & 0o777, 0o600);
        let running = wait_until("the posts", || Some(agent.status()).filter(|status| status.posted.is_some()));
        assert_eq!(posted(&running), Some((Some(4), vec![("loss", 0.25)])));
        fs::write(folders.job().join("end"), "").unwrap();
        let exited = agent.wait_for(RunState::Exited);
        assert_eq!((posted(&exited), &exited.helper), (posted(&running), &None));
        assert_eq!(exited.seq, running.seq + 1, "a post was news, or the end of the run was not: {exited:?}");
        assert!(!Path::new(&token_file).exists(), "{token_file}");
        assert_eq!(agent.post("/config", "{}").status, 200);
        assert_eq!(agent.status().posted, None, "the status after a new config has the posts of the earlier run");
    }
    assert_eq!(folders.imports(), 2, "the warm run has imported the module once more");
}

#[test]
fn a_bad_post_changes_nothing_and_the_token_opens_no_other_route() {
    let lines = r#"
good = b'{"trainerStatus": {}}'
print([send(good), post(current_step=1)])
print([send(good, token=token) for token in ('', 'x', open(token_file).read() + 'x')])
print([send(body) for body in (b'', b'[]', b'\xff' * 65536, b'{"trainerStatus": {"metrics": 1}}')])
def too_large():
    # The agent may close the connection before it has received the whole body.
    while True:
        try: return send(b' ' * 65537)
        except OSError: pass
print(too_large())
print([send(None, method=method) for method in ('GET', 'PUT', 'HEAD')])
print([send(good, url=url.replace('/trainer-status', path)) for path in ('/', '/status', '/stop', '/trainer-status/x')])"#;
    let (printed, status) = printed(lines, &json!({}));
    let expected = "[200, 200]\n[401, 401, 401]\n[400, 400, 400, 400]\n413\n[405, 405, 405]\n[404, 404, 404, 404]\n";
    assert_eq!(printed, expected);
    assert_eq!(posted(&status), Some((Some(1), vec![])));
}

#[test]
fn a_job_with_an_address_of_its_own_or_without_wish_for_one_gets_none() {
    let lines = "print([os.environ.get('KUBEFLOW_TRAINER_SERVER_' + name) for name in ('URL', 'TOKEN', 'CA_CERT')])";
    for (env, expected) in [
        (json!({"KUBEFLOW_TRAINER_SERVER_URL": "https://own"}), "['https://own', None, None]\n"),
        (json!({"KUBEFLOW_TRAINER_SERVER_TOKEN": "/own"}), "[None, '/own', None]\n"),
        (json!({"DISABLE_KUBEFLOW_INTEGRATION": "TRUE"}), "[None, None, None]\n"),
    ] {
        assert_eq!(printed(lines, &env).0, expected);
    }
}

#[test]
fn the_address_is_closed_when_the_run_has_ended() {
    let (printed, _) = printed("print(post(current_step=1), url.split('/')[2])", &json!({}));
    let address = printed.strip_prefix("200 ").unwrap().trim_end();
    wait_until("the end of the address", || TcpStream::connect(address).is_err().then_some(()));
}

#[test]
fn a_script_that_only_posts_is_stopped_as_one_without_the_helper() {
    let script = "import signal, time
signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))
print(post(current_step=3), flush=True)
told = os.fdopen(int(os.environ['MUSTER_FD'].split(':')[0]), 'rb', 0).read(1)
print('told by the helper', told, flush=True)";
    let agent = Agent::of_python(&format!("{POST}{script}"));
    agent.go();
    agent.wait_for_output("200\n");
    assert_eq!(agent.post("/stop?grace=60", "").status, 202);
    agent.wait_for_output("told\n");
    let stopping = wait_until("a post", || Some(agent.status()).filter(|status| status.posted.is_some()));
    assert_eq!((posted(&stopping), &stopping.helper), (Some((Some(3), vec![])), &None));
    assert_eq!(agent.post("/stop?grace=0", "").status, 202);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Signal(9));
    let output = String::from_utf8_lossy(&agent.logs("stdout")).into_owned();
    assert!(!output.contains("by the helper"), "{output}");
}
