"""Resizes examples/elastic from 2 to 4 to 3 workers with real TensorFlow, and compares the losses with
those of a single process.

Run by hand, with a Python that has TensorFlow: python agent/python/tests/try_tensorflow.py. This script acts as the
agents and the master.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STEPS = 300
DEADLINE_SECONDS = 60


def free_ports(count):
    """Ports that are free on all addresses, because TensorFlow listens on all addresses. Linux gives higher ports to
    clients."""
    ports = []
    while len(ports) < count:
        port = random.randrange(20000, 32768)
        try:
            socket.create_server(("", port)).close()
            ports.append(port)
        except OSError:
            pass
    return ports


def start(folder, rank, ports, generation):
    """Starts one worker, or the whole training in one process if there are no `ports`. Returns the process and the
    agent's end of the socket."""
    agent, inherited = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "agent/python"), "PYTHONUNBUFFERED": "1"}
    if ports:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(len(ports)), "MUSTER_GENERATION": f"1.{generation}"}
        environment["MUSTER_FD"] = f"{inherited.fileno()}:{os.fstat(inherited.fileno()).st_ino}"
    process = subprocess.Popen(
        [sys.executable, "exec.py", "--steps", str(STEPS), "--checkpoints", folder],
        cwd=ROOT / "examples/elastic",
        env=environment,
        pass_fds=[inherited.fileno()] if ports else [],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    inherited.close()
    agent.settimeout(DEADLINE_SECONDS)
    return process, agent


def last_step(worker, leave_after):
    """Reads a worker's messages to the end, and returns its last step. After step `leave_after`, asks the worker to
    leave: by a notice if `leave_after` is below 50, otherwise by SIGTERM."""
    (process, agent), step = worker, None
    for line in agent.makefile("r"):
        message = json.loads(line)
        step = (message.get("progress") or message.get("leaving") or {}).get("step", step)
        if leave_after is not None and step is not None and step >= leave_after:
            if leave_after < 50:
                agent.sendall(b'{"notice": {"leave": true, "reason": "a resize"}}\n')
            else:
                process.terminate()
            leave_after = None
    return step


def run(folder, world, generation, leave_after):
    """One start. Returns the exit codes, the output of rank 0, and each rank's last step."""
    ports = free_ports(world)
    workers = [start(folder, rank, ports, generation) for rank in range(world)]
    # Only the last rank is asked to leave. The other ranks learn about this from the all-reduce.
    asked = [None] * (world - 1) + [leave_after]
    try:
        with ThreadPoolExecutor(world) as pool:
            steps = list(pool.map(last_step, workers, asked))
        outputs = [process.communicate(timeout=DEADLINE_SECONDS)[0] for process, _ in workers]
    finally:
        for process, _ in workers:
            process.kill()
    return [process.returncode for process, _ in workers], outputs[0], steps


def losses(output):
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", output)}


with tempfile.TemporaryDirectory() as alone:
    process, _ = start(alone, 0, None, 0)
    expected = losses(process.communicate(timeout=DEADLINE_SECONDS)[0])
    assert process.returncode == 0 and len(expected) == STEPS // 10, (process.returncode, expected)

found = {}
with tempfile.TemporaryDirectory() as folder:
    for generation, (world, leave_after) in enumerate([(2, 10), (4, 50), (3, None)], start=1):
        codes, output, steps = run(folder, world, generation, leave_after)
        print(f"world {world}: exit codes {codes}, last steps {steps}\n{output}", end="", flush=True)
        assert codes == [0 if leave_after is None else 75] * world, codes
        assert len(set(steps)) == 1, steps
        found |= losses(output)

worst = max(abs(found[step] - loss) for step, loss in expected.items())
print(f"{len(found)} of {len(expected)} losses; the largest difference to one process is {worst:.4f}")
assert found.keys() == expected.keys() and worst <= 0.0001, (found, expected)
