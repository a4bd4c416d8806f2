"""A training of ranks of unequal speed, without TensorFlow. exec.py FOLDER

The rank whose number is in the file FOLDER/slow computes each sample SLOWNESS times. The script ends when the file
FOLDER/end exists. With AHEAD=N in the environment, another thread takes the batches N steps early.

In each start, each rank writes a journal: for each step a line with the samples of this rank, the version of the batch
sizes, and the newest version that this rank knows. The line is written before the sum over all ranks. So if any rank has
completed a step, all ranks have written their lines of this step.
"""

import json
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path

import muster
import numpy as np

SAMPLES, SLOWNESS = 1500, 8
folder = Path(sys.argv[1])
job = muster.Job(ahead=int(os.environ.get("AHEAD", "0")))


def connected():
    """The sockets to the other ranks: from rank 0 to each of them, and from each of them to rank 0."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if job.rank == 0:
        with socket.create_server(address, backlog=job.world) as server:
            return [server.accept()[0] for _ in range(job.world - 1)]
    while True:
        try:
            return [socket.create_connection(address)]
        except ConnectionRefusedError:
            time.sleep(0.01)


def received(peer, count):
    data = peer.recv(8 * count, socket.MSG_WAITALL)
    if len(data) < 8 * count:
        raise ConnectionError("lost a peer")
    return np.frombuffer(data)


def summed(numbers):
    """The sums over all ranks. Rank 0 adds, and sends the sums to the other ranks."""
    numbers = np.array(numbers, "float64")
    if job.rank == 0:
        numbers = sum([received(peer, len(numbers)) for peer in peers], numbers)
    for peer in peers:
        peer.sendall(numbers.tobytes())
    return numbers if job.rank == 0 else received(peers[0], len(numbers))


def compute(indexes):
    """Some work for each sample, about 0.1 ms."""
    is_slow = (folder / "slow").read_text() == str(job.rank)
    for _ in indexes * (SLOWNESS if is_slow else 1):
        sum(number * number for number in range(2000))


step, saved, sampler = 0, folder / "saved.json", job.sampler(SAMPLES, seed=1)
if saved.exists():
    step, position = json.loads(saved.read_text())
    sampler.restore(position)


@job.saves
def save():
    if job.is_chief:
        (folder / "saved.new").write_text(json.dumps([step, sampler.state()]))
        os.replace(folder / "saved.new", saved)


def take_all():
    while True:
        ready.put(sampler.take())


ready = queue.SimpleQueue()
if job.ahead:
    threading.Thread(target=take_all, daemon=True).start()
job.started()
peers = connected()
try:
    with open(folder / f"{job.generation}.{job.rank}.journal", "a", buffering=1) as journal:
        is_end = False
        while not is_end:
            indexes, weights = ready.get() if job.ahead else sampler.take()
            indexes = indexes[weights > 0].tolist()
            with job.measure():
                compute(indexes)
            versions = job._split, job._noticed[0] if job._noticed else 0
            journal.write(json.dumps([step + 1, indexes, *versions]) + "\n")
            *signals, is_end = summed((*job.signal(), job.is_chief and (folder / "end").exists()))
            step += 1
            if job.step(step, signals):
                save()
                job.leave()
except ConnectionError as error:
    print(error, flush=True)
    job.leave()
job.done()
