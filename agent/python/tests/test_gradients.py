"""Tests that any split of a batch over ranks gives the gradient of one process, in TensorFlow and PyTorch. A test is
skipped if its library is not installed. To run only these: python -m unittest discover agent/python/tests -p
test_gradients.py"""

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from test_muster import FOLDER, boundary

import muster

FEATURES, CLASSES, SAMPLES, BATCH = 64, 10, 1000, 96
EXACT = 1e-6  # of the largest gradient
DEADLINE_SECONDS = 300  # each rank imports PyTorch

# A rank of a PyTorch training whose sizes change after every second step. Rank 0 prints the sizes of each step, and the
# gradients of each way to sum them, in all ranks and in one process.
TORCH_RANK = """
import json, sys
import muster, numpy as np, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
job = muster.Job()
dist.init_process_group("gloo")
job.started()
x, y, splits = (torch.tensor(part) for part in np.load(sys.argv[1]).values())
sampler = job.sampler(len(x), seed=1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
parallel = DistributedDataParallel(model)

def losses(model, indexes):
    return torch.nn.functional.cross_entropy(model(x[indexes]), y[indexes], reduction="none")

def gradients():
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).tolist()

for step in range(2 * len(splits)):
    job._on_notice({"split": {"version": 1 + step // 2, "sizes": splits[step // 2].tolist()}})
    sizes = job.sizes
    indexes, weights = (torch.from_numpy(part) for part in sampler.take())
    # DistributedDataParallel divides the sum of the gradients by the number of ranks.
    model.zero_grad()
    loss = (losses(parallel, indexes) * weights).sum() * job.world
    loss.backward()
    by_parallel = gradients()
    # A sum of its own.
    model.zero_grad()
    (losses(model, indexes) * weights).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    by_sum = gradients()
    # One process.
    begin = step * job.global_batch
    model.zero_grad()
    losses(model, sampler._order[begin : begin + job.global_batch]).mean().backward()
    if job.is_chief:
        print(json.dumps([sizes, by_parallel, by_sum, gradients()]))
    signal = torch.from_numpy(job.signal())
    dist.all_reduce(signal)
    job.step(step, signal)
dist.destroy_process_group()
"""


def is_missing(library):
    return unittest.skipIf(importlib.util.find_spec(library) is None, f"Python has no {library}")


def random_sizes(dice, world):
    """Sizes of which some may be 0."""
    cuts = sorted(dice.randint(0, BATCH) for _ in range(world - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, BATCH])]


class Gradients(unittest.TestCase):
    def assert_equal_gradients(self, found, expected, what):
        largest = max(abs(number) for number in expected)
        difference = max(abs(one - other) for one, other in zip(found, expected, strict=True))
        self.assertLessEqual(difference, EXACT * largest, what)

    @is_missing("tensorflow")
    def test_with_tensorflow_weighted_gradients_of_any_split_add_up_to_those_of_one_process_without_a_retrace(self):
        os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
        import numpy as np
        import tensorflow as tf

        layers = tf.keras.layers
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([layers.Input((FEATURES,)), layers.Dense(32, activation="relu"), layers.Dense(CLASSES)])
        signature = [tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])]

        @tf.function(input_signature=signature)
        def gradients(x, y, weights):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
                loss = tf.reduce_sum(losses * weights)
            return tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(loss, model.trainable_variables)], axis=0)

        x, y = np.random.RandomState(1).normal(size=(SAMPLES, FEATURES)).astype("float32"), np.arange(SAMPLES) % CLASSES
        dice = random.Random(1)
        for world in (1, 2, 3, 5, 8):
            environment = {"RANK": "0", "WORLD_SIZE": str(world)}
            jobs = [muster.Job(BATCH, environment | {"RANK": str(rank)}) for rank in range(world)]
            alone = muster.Job(BATCH, {})
            samplers = [job.sampler(SAMPLES, seed=world) for job in (*jobs, alone)]
            for step in range(14):  # the 11th batch is shorter
                split = {"version": 1 + step // 2, "sizes": random_sizes(dice, world)}
                for job in jobs:
                    job._on_notice({"split": split})
                *parts, whole = (gradients(x[i], y[i], weights).numpy() for i, weights in (s.take() for s in samplers))
                self.assert_equal_gradients(sum(parts), whole, jobs[0].sizes)
                boundary(jobs, step)
                boundary([alone], step)
            self.assertEqual(jobs[0]._split, 7)
        self.assertEqual(gradients.experimental_get_tracing_count(), 1)

    @is_missing("torch")
    def test_with_pytorch_both_ways_to_sum_give_the_gradients_of_one_process(self):
        import numpy as np

        numbers = np.random.RandomState(1)
        x, y = numbers.normal(size=(SAMPLES, FEATURES)).astype("float32"), np.arange(SAMPLES) % CLASSES
        world, dice = 3, random.Random(1)
        splits = [muster.shares(BATCH, [dice.randint(1, 9) for _ in range(world)]) for _ in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            data = f"{folder}/data.npz"
            np.savez(data, x=x, y=y, splits=splits)
            steps = self.torch_steps(world, data)
        # Sizes are used from the first step after the two steps of the vote.
        self.assertEqual([sizes for sizes, *_ in steps[2::2]], splits[:-1])
        for sizes, by_parallel, by_sum, alone in steps:
            self.assert_equal_gradients(by_parallel, alone, sizes)
            self.assert_equal_gradients(by_sum, alone, sizes)

    def torch_steps(self, world, data):
        """The lines of rank 0."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        first = json.dumps(muster.shares(BATCH, [1] * world))
        environment = {**os.environ, "PYTHONPATH": str(FOLDER), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment |= {"WORLD_SIZE": str(world), "MUSTER_BATCH_SIZES": first, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", TORCH_RANK, data]
        processes = [
            subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        try:
            outputs = [process.communicate(timeout=DEADLINE_SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        self.assertEqual([process.returncode for process in processes], [0] * world)
        return [json.loads(line) for line in outputs[0].splitlines()]


if __name__ == "__main__":
    unittest.main()
