"""Trains with `fit` of tf_keras on ranks of unequal batches, and compares the weights and the losses with those of a
single process.

Run by hand, with a Python that has TensorFlow and tf_keras: python agent/python/tests/try_fit.py. The training itself is
`train` below, without an agent.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SPLITS = ([32, 32, 32], [64, 24, 8], [90, 6])
OPTIMIZERS = ("SGD", "Momentum", "Adam")
EPOCHS = 5
DEADLINE_SECONDS = 120


def train(folder, name):
    """One rank. Writes its weights, and prints the losses of all epochs."""
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    sys.path.insert(0, str(ROOT / "agent/python"))
    import muster
    import numpy as np
    import tensorflow as tf
    import tf_keras

    job = muster.Job()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    job.started()
    table = np.loadtxt(ROOT / "examples/elastic/digits.csv.gz", delimiter=",", dtype="float32")
    steps = len(table) // job.global_batch
    # Batch n of all ranks together is the same for all sizes.
    part = slice(sum(job.sizes[: job.rank]), sum(job.sizes[: job.rank + 1]))
    mine = np.arange(steps * job.global_batch).reshape(steps, -1)[:, part].reshape(-1)
    x, y = table[mine, :64] / 16, table[mine, 64].astype("int64")
    weights = tf.fill([len(mine)], 1 / job.global_batch)
    samples = tf.data.Dataset.from_tensor_slices((x, y, weights)).repeat(EPOCHS)
    data = strategy.distribute_datasets_from_function(lambda _: samples.batch(job.batch))
    tf_keras.utils.set_random_seed(1)
    with strategy.scope():
        dense = tf_keras.layers.Dense
        model = tf_keras.Sequential([tf_keras.layers.Input((64,)), dense(64, activation="relu"), dense(10)])
        optimizers = tf_keras.optimizers
        optimizer = {"SGD": optimizers.SGD(0.1), "Momentum": optimizers.SGD(0.1, 0.9), "Adam": optimizers.Adam(0.01)}[name]
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        metric = tf_keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="mean_loss")
        model.compile(optimizer, loss, weighted_metrics=[metric])
    callback = muster.KerasCallback(job, f"{folder}/{name}-{job.sizes}")
    history = model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=[callback]).history
    trained = np.concatenate([variable.reshape(-1) for variable in model.get_weights()])
    np.save(f"{folder}/{name}-{job.sizes}-{job.rank}.npy", trained)
    print(json.dumps([history["loss"], history["mean_loss"]]), flush=True)
    job.done()
    os._exit(0)


def run(folder, name, sizes):
    """Trains with one process for each size. Returns each rank's losses."""
    world, begin = len(sizes), random.randrange(20000, 32000)
    cluster = {"worker": [f"127.0.0.1:{begin + rank}" for rank in range(world)]}
    processes = []
    for rank in range(world):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MUSTER_BATCH_SIZES": json.dumps(sizes)}
        if world > 1:
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        command = [sys.executable, __file__, folder, name]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        return [json.loads(process.communicate(timeout=DEADLINE_SECONDS)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()


def compare(folder, name):
    import numpy as np

    def weights(sizes, rank):
        return np.load(f"{folder}/{name}-{sizes}-{rank}.npy")

    def relative(found, expected):
        return np.max(np.abs(np.subtract(found, expected)) / np.abs(expected))

    (alone,) = run(folder, name, [96])
    for sizes in SPLITS:
        losses = run(folder, name, sizes)
        expected = weights([96], 0)
        distance = max(np.max(np.abs(weights(sizes, rank) - expected)) for rank in range(len(sizes))) / np.max(np.abs(expected))
        shown, mean = (max(relative(rank[kind], alone[kind]) for rank in losses) for kind in (0, 1))
        print(f"{name} {sizes}: weights differ by {distance:.1e} of the largest, loss by {shown:.1e}, mean_loss by {mean:.1e}")


if len(sys.argv) == 3:
    train(*sys.argv[1:])
with tempfile.TemporaryDirectory() as place:
    for optimizer_name in OPTIMIZERS:
        compare(place, optimizer_name)
