"""Drains two workers with real TensorFlow at each kind of moment, and counts the lost steps.

Run by hand, with a Python that has TensorFlow: python agent/python/tests/try_drain.py. This script acts as the agents
and the master. Each training is drained at least 10 steps after its last checkpoint, and then started again. Its losses
are compared with those of an undisturbed training.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELPER = Path(__file__).resolve().parent.parent
STEPS, DRAINED_AFTER = 26, 12
GRACE_SECONDS = 25
DEADLINE_SECONDS = 120

SCRIPT = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import muster
import numpy as np
import tensorflow as tf

moment, folder, steps, at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
job = muster.Job(global_batch=32)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
job.started()
random = np.random.RandomState(1)
x = random.normal(size=(200, 8)).astype("float32")
y = x @ random.normal(size=(8, 1)).astype("float32")
sampler = job.sampler(200, seed=1)
with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))
progress = tf.Variable([0, 0, 0], dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, progress=progress)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
manager.restore_or_initialize()
step, *position = (int(number) for number in progress.numpy())
sampler.restore(position)
restored = step

@job.saves
def save():
    if job.is_chief:
        progress.assign([step, *sampler.state()])
        manager.save(checkpoint_number=step)

def pause(text, seconds=4):
    print(text, flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))

def begins(name):
    return moment == name and step == at

@tf.function
def train_step(x, y, weight, signal, variant):
    if begins("the first step") and step == restored or begins("a step is traced again"):
        pause("now")
    def local_step(x, y, weight, signal):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight[:, None] * (x @ weights - y) ** 2)
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        weights.assign_sub(0.05 * gradient)
        return tf.concat([[loss], signal], axis=0)
    return strategy.reduce("sum", strategy.run(local_step, args=(x, y, weight, signal)), axis=None)

@tf.function
def evaluate(x, variant):
    def local(x):
        if begins("an evaluation is traced"):
            pause("now")
        with tf.GradientTape() as tape:
            result = x @ weights
        if variant == "slow":
            rounds = tf.while_loop(lambda i, a: i < 800_000, lambda i, a: (i + 1, a * 1.0), [0, result])
            result = rounds[1]
        return tf.reduce_sum(result)
    return strategy.reduce("sum", strategy.run(local, args=(x,)), axis=None)

try:
    while step < steps:
        indexes, weight = sampler.take()
        variant = "again" if begins("a step is traced again") else "usual"
        loss, *summed = train_step(x[indexes], y[indexes], weight, job.signal(), variant).numpy()
        step += 1
        if job.is_chief:
            print(f"step {step} loss {loss:.5f}", flush=True)
        if job.step(step, summed):
            save()
            job.leave()
        if begins("between two steps"):
            pause("now")
        if begins("an evaluation is traced"):
            evaluate(x, "quick")
        if begins("an evaluation in one call"):
            print("now", flush=True)
            evaluate(x, "slow")
        if begins("the chief alone evaluates") and job.is_chief:
            pause("now")
except (tf.errors.UnavailableError, tf.errors.AbortedError):
    job.leave()
save()
job.done()
"""


def free_port():
    """A port that is free on all addresses, below those that Linux gives to clients."""
    while True:
        port = random.randrange(20000, 32768)
        try:
            socket.create_server(("", port)).close()
            return port
        except OSError:
            pass


def start(folder, arguments, ports):
    """Starts the workers. Returns each process with the agent's end of its socket."""
    workers = []
    for rank in range(len(ports)):
        agent, inherited = socket.socketpair()
        number = inherited.fileno()
        cluster = {"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]}, "task": {"type": "worker", "index": rank}}
        variables = {"TF_CONFIG": json.dumps(cluster), "RANK": str(rank), "WORLD_SIZE": str(len(ports)),
                     "MUSTER_FD": f"{number}:{os.fstat(number).st_ino}", "PYTHONPATH": str(HELPER)}
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments],
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


def run(folder, moment, at):
    """One start. Drains it when the chief prints `now`, as the agents do: SIGTERM to all, then a notice to all. Returns
    the exit codes, the chief's losses by step, and the seconds from the drain to the chief's end."""
    workers = start(folder, [moment, str(folder / "checkpoints"), str(STEPS), str(at)], [free_port(), free_port()])
    chief, seconds, losses = workers[0][0], None, {}
    try:
        for line in chief.stdout:
            if line == "now\n":
                time.sleep(0.5)
                began = time.monotonic()
                for process, agent in workers:
                    process.terminate()
                    agent.sendall(b'{"notice": {"leave": true}}\n')
            elif found := re.fullmatch(r"step (\d+) loss (.+)\n", line):
                assert int(found[1]) not in losses
                losses[int(found[1])] = found[2]
        chief.wait(timeout=DEADLINE_SECONDS)
        if moment:
            seconds = time.monotonic() - began
        codes = [process.wait(timeout=DEADLINE_SECONDS) for process, _ in workers]
    finally:
        for process, agent in workers:
            process.kill()
            process.stdout.close()
            agent.close()
    return codes, losses, seconds


with tempfile.TemporaryDirectory() as alone:
    codes, expected, _ = run(Path(alone), "", 0)
    assert codes == [0, 0] and list(expected) == list(range(1, STEPS + 1)), (codes, expected)

MOMENTS = ["between two steps", "a step is traced again", "an evaluation is traced", "an evaluation in one call",
           "the chief alone evaluates", "the first step"]
for moment in sys.argv[1:] or MOMENTS:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = {}
        if moment == "the first step":
            codes, before, _ = run(folder, "between two steps", DRAINED_AFTER)
            assert codes == [75, 75], (codes, (folder / "stderr-0").read_text())
        codes, losses, seconds = run(folder, moment, max(before, default=DRAINED_AFTER))
        errors = (folder / "stderr-0").read_text() + (folder / "stderr-1").read_text()
        assert codes == [75, 75] and seconds < GRACE_SECONDS, (moment, codes, seconds, errors)
        last = max(losses)
        codes, after, _ = run(folder, "", 0)
        lost = last - (min(after) - 1)
        print(f"{moment}: {last - max(before, default=0)} steps since the last checkpoint, "
              f"left {seconds:.1f} s after SIGTERM, {lost} steps lost", flush=True)
        assert codes == [0, 0] and before | losses | after == expected and lost == 0, (codes, losses, after, expected, errors)
