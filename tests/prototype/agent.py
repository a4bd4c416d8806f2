"""Imitates the agent of the first prototype. It has none of the newer features of Muster's agent.

It has only two routes:

- `POST /config` reads NUM_WORKERS and TF_CONFIG (an object) from the body. It ignores everything else. A later config
  replaces an earlier one. If a variable is missing, or TF_CONFIG is not an object, the answer is 400.
- `GET /run` starts `python exec.py` at each call. It checks neither generations nor active runs, so two calls start two
  runs. Without a config, the agent sets neither variable for exec.py.
- The answer to all other requests is 404.

Each start prints the line `prototype: start N`, so that a test can count the starts. As soon as an exec.py ends, the
agent exits with the exit code of exec.py, or with 128 plus the signal's number. The agent handles no signals, so as
process 1 of a pod it does not end at SIGTERM.
"""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = ("0.0.0.0", 7896)


class Agent:
    """The state of the agent: variables for exec.py, and the number of starts."""

    def __init__(self):
        self.lock = threading.Lock()
        self.variables = {}
        self.starts = 0

    def configure(self, body):
        """Stores the two variables if the body is valid. Returns whether it is valid."""
        try:
            config = json.loads(body)
            workers, tf_config = config["NUM_WORKERS"], config["TF_CONFIG"]
        except (ValueError, KeyError, TypeError):
            return False
        if not isinstance(tf_config, dict):
            return False
        with self.lock:
            self.variables = {"NUM_WORKERS": str(workers), "TF_CONFIG": json.dumps(tf_config)}
        return True

    def start(self):
        """Starts exec.py and returns its process."""
        with self.lock:
            self.starts += 1
            print(f"prototype: start {self.starts}", flush=True)
            return subprocess.Popen(["python", "exec.py"], env={**os.environ, **self.variables})


def end_with(run):
    """Waits for a run, and ends this process with its exit status."""
    code = run.wait()
    os._exit(code if code >= 0 else 128 - code)


class Routes(BaseHTTPRequestHandler):
    """The routes of the agent."""

    protocol_version = "HTTP/1.1"
    agent = Agent()

    def handle_request(self):
        """Answers a request of any method."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match (self.command, self.path.partition("?")[0]):
            case ("POST", "/config"):
                self.answer(200 if self.agent.configure(body) else 400)
            case ("GET", "/run"):
                run = self.agent.start()
                self.answer(200)
                # Wait for the run only after the answer: a short run could end this process before the answer.
                threading.Thread(target=end_with, args=(run,), daemon=True).start()
            case _:
                self.answer(404)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_request

    def answer(self, status):
        """Sends `OK` or a short error."""
        text = {200: b"OK", 400: b"bad config"}.get(status, b"not found")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format, *args):
        """Logs no requests, because stdout and stderr contain the output of exec.py."""


if __name__ == "__main__":
    ThreadingHTTPServer(ADDRESS, Routes).serve_forever()
