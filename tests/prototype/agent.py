"""Stands in for the first prototype's agent: what wire.md says of it, and nothing that ours has learned since.

It owns the two routes by which a job is started, and no more: what it does not answer, Muster must do without.

- `POST /config` takes NUM_WORKERS and TF_CONFIG (an object) out of the body; all else in it, the query and the headers
  are ignored. A later config replaces the one before. A body without these two is answered 400.
- `GET /run` starts `python exec.py` at once, each time it is called: nothing here knows generations or that a run is
  active, so whoever calls twice starts twice. Without a config exec.py gets neither variable.
- Everything else is 404.

Each start is told on stdout as a line `prototype: start N`, so that a test can count them. The process ends as the
first exec.py to end did, with 128 and the signal's number if a signal ended it. It handles no signal of its own, so as
process 1 of a pod it does not hear SIGTERM.
"""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = ("0.0.0.0", 7896)


class Agent:
    """What the requests share: the environment to start with, and how often that was done."""

    def __init__(self):
        self.lock = threading.Lock()
        self.variables = {}
        self.starts = 0

    def configure(self, body):
        """Remembers the two variables; whether both were there."""
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
        """Starts exec.py, which is given back."""
        with self.lock:
            self.starts += 1
            print(f"prototype: start {self.starts}", flush=True)
            return subprocess.Popen(["python", "exec.py"], env={**os.environ, **self.variables})


def end_with(run):
    """Ends this process as soon as a run has ended, as that did."""
    code = run.wait()
    os._exit(code if code >= 0 else 128 - code)


class Routes(BaseHTTPRequestHandler):
    """The two routes."""

    protocol_version = "HTTP/1.1"
    agent = Agent()

    def handle_request(self):
        """Answers whatever is asked."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match (self.command, self.path.partition("?")[0]):
            case ("POST", "/config"):
                self.answer(200 if self.agent.configure(body) else 400)
            case ("GET", "/run"):
                run = self.agent.start()
                self.answer(200)
                # Not before the answer: a run that ends at once would take it along.
                threading.Thread(target=end_with, args=(run,), daemon=True).start()
            case _:
                self.answer(404)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_request

    def answer(self, status):
        """Says `OK`, or in a word why not."""
        text = {200: b"OK", 400: b"bad config"}.get(status, b"not found")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format, *args):
        """Nothing: stdout and stderr are exec.py's."""


if __name__ == "__main__":
    ThreadingHTTPServer(ADDRESS, Routes).serve_forever()
