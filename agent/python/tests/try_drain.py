"""Drains two workers with real TensorFlow at each kind of moment, and counts the lost steps.

Run by hand, with a Python that has TensorFlow: python agent/python/tests/try_drain.py. Then this script acts as the
agents and the master. With --pods IMAGE VOLUME, an elastic job of the master in MUSTER_MASTER trains instead, and
kubectl deletes the pod of one worker, first of the chief, then of the other. VOLUME is a --volume whose path all pods
share. `client` and `kubectl` must be in PATH. Afterwards, moments may be named.

Each training is drained at least 10 steps after its last checkpoint, and then starts again. A step that is trained
twice was lost. The losses are compared with those of an undisturbed training.
"""

import json
import math
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SCRIPT = TESTS / "drained.py"
STEPS, DRAINED_AFTER = 26, 12
DEADLINE_SECONDS = 120
MOMENTS = ["between two steps", "a step is traced again", "an evaluation is traced", "an evaluation in one call",
           "the chief alone evaluates", "the first step"]


def free_port():
    """A port that is free on all addresses, below those that Linux gives to clients."""
    while True:
        port = random.randrange(20000, 32768)
        try:
            socket.create_server(("", port)).close()
            return port
        except OSError:
            pass


def start(folder, moments, ports):
    """Starts the workers. Returns each process with the agent's end of its socket."""
    workers = []
    for rank in range(len(ports)):
        agent, inherited = socket.socketpair()
        number = inherited.fileno()
        cluster = {"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]}, "task": {"type": "worker", "index": rank}}
        variables = {"TF_CONFIG": json.dumps(cluster), "RANK": str(rank), "WORLD_SIZE": str(len(ports)),
                     "MUSTER_FD": f"{number}:{os.fstat(number).st_ino}", "PYTHONPATH": str(TESTS.parent)}
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(STEPS), str(DRAINED_AFTER), *moments],
            env={**os.environ, **variables},
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=open(folder / f"stderr-{rank}", "a"),
            text=True,
        )
        inherited.close()
        workers.append((process, agent))
    return workers


def train_here(folder, moments):
    """Trains with processes of this machine, and starts them again after each drain. A drain does what the agents do:
    SIGTERM to all, then a notice to all. Yields the chief's lines."""
    code = 75
    while code == 75:
        workers = start(folder, moments, [free_port(), free_port()])
        try:
            for line in workers[0][0].stdout:
                yield line
                if line == "now\n":
                    time.sleep(0.5)
                    for process, agent in workers:
                        process.terminate()
                        agent.sendall(b'{"notice": {"leave": true}}\n')
            codes = {process.wait(timeout=DEADLINE_SECONDS) for process, _ in workers}
        finally:
            for process, agent in workers:
                process.kill()
                process.stdout.close()
                agent.close()
        assert codes in ({0}, {75}), (codes, (folder / "stderr-0").read_text(), (folder / "stderr-1").read_text())
        code = codes.pop()


def train_in_pods(image, volume, victim, moments):
    """Trains with an elastic job. A drain deletes the victim's pod. Yields the chief's lines."""
    task = f"drained-{os.getpid()}-{time.monotonic_ns() // 1000 % 1_000_000}"
    folder = f"{volume.split(':')[2]}/{task}"
    command = ["client", str(SCRIPT), "--task", task, "--image", image, "--volume", volume, "--worker-num", "1:2",
               "--max-restarts", "0", "--", folder, str(STEPS), str(DRAINED_AFTER), *moments]
    client = subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True)
    for line in client.stdout:
        if found := re.fullmatch(r"worker-\d+ │ ((?:now|step .*)\n)", line):
            yield found[1]
            if found[1] == "now\n":
                subprocess.run(["kubectl", "delete", "pod", f"{task}-{victim}", "--wait=false"], check=True)
    assert client.wait() == 0, subprocess.run(["client", "why", task], capture_output=True, text=True).stdout
    subprocess.run(["client", "delete", task], check=True, capture_output=True)


def measure(lines):
    """The losses by step, and for each drain the steps since the last checkpoint. A step that comes again was lost."""
    losses, lost, saved, drains = {}, 0, 0, []
    for line in lines:
        if line == "now\n":
            drains.append(max(losses, default=0) - saved)
            saved = max(losses, default=0)
        elif found := re.fullmatch(r"step (\d+) loss (.+)\n", line):
            lost += int(found[1]) in losses
            losses.setdefault(int(found[1]), float(found[2]))
    return losses, lost, drains


def check(moment, lines, expected, drained):
    losses, lost, drains = measure(lines)
    print(f"{moment}: drained {' and '.join(map(str, drains))} steps after the last checkpoint, {lost} steps lost", flush=True)
    assert len(drains) == drained and drains[0] >= 10, drains
    assert list(losses) == list(expected) and lost == 0, (losses, expected)
    assert all(math.isclose(losses[step], expected[step], rel_tol=1e-3) for step in expected), (losses, expected)


in_pods = sys.argv[2:4] if sys.argv[1:2] == ["--pods"] else None
named = sys.argv[4 if in_pods else 1:]
with tempfile.TemporaryDirectory() as name:
    expected, _, _ = measure(train_here(Path(name), []))
assert list(expected) == list(range(1, STEPS + 1)), expected
for moment in named or MOMENTS:
    # Only a training with earlier steps can lose one in its first step.
    moments = ["between two steps", moment] if moment == "the first step" else [moment]
    if in_pods:
        for victim in ["worker-0", "worker-1"]:
            check(f"{moment}, {victim} deleted", train_in_pods(*in_pods, victim, moments), expected, len(moments))
    else:
        with tempfile.TemporaryDirectory() as name:
            check(moment, train_here(Path(name), moments), expected, len(moments))
