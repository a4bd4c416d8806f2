"""Trains examples/heterogeneous on two ranks, and changes their batch sizes a number of times. Prints one line for each
change: the mean of the two steps of the vote, the first step with the new sizes, and the median of the ten steps around
these three, all in nanoseconds. Fails if a step is lost, or if TensorFlow traces a function again.

This program acts as the agents and the master. With the argument `rank`, it is one of the two ranks.
"""

import json
import os
import queue
import random
import socket
import subprocess
import sys
import threading
from statistics import median

SIZES = ([144, 112], [112, 144])
BESIDE = 5  # steps before a vote, and steps after it
SECONDS = 120


def rank():
    """Runs the example. Notes the end of each step, and the sizes then, and prints them at the end."""
    import atexit
    import runpy
    import time

    import muster

    journal, end_step = [], muster.Job.step

    def step(job, number, summed):
        leaves = end_step(job, number, summed)
        journal.append((number, time.perf_counter_ns(), job.sizes))
        return leaves

    def write():
        functions = [getattr(sys.modules["__main__"], name) for name in ("local_gradients", "update")]
        print(json.dumps([[function.experimental_get_tracing_count() for function in functions], journal]), flush=True)

    muster.Job.step = step
    atexit.register(write)
    sys.argv = ["exec.py", "--steps", "1000000"]
    runpy.run_path("exec.py", run_name="__main__")


def start(number, port):
    """Starts a rank. Returns its process, the agent's end of its socket, and its messages."""
    agent, inherited = socket.socketpair()
    cluster = {"worker": [f"127.0.0.1:{port + each}" for each in range(2)]}
    variables = {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": number}}),
        "MUSTER_FD": f"{inherited.fileno()}:{os.fstat(inherited.fileno()).st_ino}",
        "MUSTER_BATCH_SIZES": json.dumps(SIZES[1]),
        "RANK": str(number),
        "WORLD_SIZE": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
    }
    command = [sys.executable, __file__, "rank"]
    process = subprocess.Popen(command, env=os.environ | variables, pass_fds=[inherited.fileno()], stdout=subprocess.PIPE, text=True)
    inherited.close()
    messages = queue.Queue()
    threading.Thread(target=lambda: [messages.put(json.loads(line)) for line in agent.makefile()], daemon=True).start()
    return process, agent, messages


def until(ranks, reached):
    """Waits until each rank has sent a progress for which `reached` is true. Returns the largest step of these."""
    steps = []
    for _, _, messages in ranks:
        while not ((message := messages.get(timeout=SECONDS).get("progress")) and message["step"] and reached(message)):
            pass
        steps.append(message["step"])
    return max(steps)


def train(changes):
    """Trains, with this number of changes. Returns what each rank has printed at its end."""
    port = random.randrange(20000, 32000)
    ranks = [start(number, port) for number in range(2)]

    def tell(notice):
        for _, agent, _ in ranks:
            agent.sendall(json.dumps({"notice": notice}).encode() + b"\n")

    try:
        step = until(ranks, lambda message: message["step"] > 20)
        for change in range(changes):
            tell({"split": {"version": change + 1, "sizes": SIZES[change % 2]}})
            step = until(ranks, lambda message: message["split"] == change + 1)
            step = until(ranks, lambda message: message["step"] > step + 2 * BESIDE)
        tell({"leave": True, "reason": "all changes are made"})
        outputs = [process.communicate(timeout=SECONDS)[0].splitlines() for process, _, _ in ranks]
    finally:
        for process, _, _ in ranks:
            process.kill()
    return [json.loads(output[-1]) for output in outputs]


def changes_of(journal):
    """The indexes of the first steps with new sizes."""
    pairs = zip(journal, journal[1:])
    return [index + 1 for index, ((_, _, before), (_, _, after)) in enumerate(pairs, start=1) if before != after]


def main(changes):
    (traces, first), (other_traces, second) = train(changes)
    if traces != [1, 1] or other_traces != [1, 1]:
        sys.exit(f"TensorFlow has traced {traces} and {other_traces} times")
    if [(step, sizes) for step, _, sizes in first] != [(step, sizes) for step, _, sizes in second]:
        sys.exit("the ranks have not trained the same steps with the same sizes")
    if [step for step, _, _ in first] != list(range(1, len(first) + 1)):
        sys.exit("a step is missing")
    found = changes_of(first)
    if len(found) != changes:
        sys.exit(f"{len(found)} changes instead of {changes}")
    took = [0] + [later[1] - earlier[1] for earlier, later in zip(first, first[1:])]
    for index in found:
        around = took[index - 2 - BESIDE : index - 2] + took[index + 1 : index + 1 + BESIDE]
        print((took[index - 2] + took[index - 1]) // 2, took[index], round(median(around)))


if sys.argv[1] == "rank":
    rank()
else:
    main(int(sys.argv[1]))
