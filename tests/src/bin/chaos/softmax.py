"""Softmax regression on digits, for the campaign `resizes`. exec.py FOLDER STEPS

The script ends after STEPS steps. It trains only up to the step in the file FOLDER/limit. While the script waits for a
higher limit, all ranks repeat the all-reduce without samples. In each start, each rank writes the samples of its steps
to a journal.
"""

import json
import os
import sys
import time
from pathlib import Path

import muster
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import tensorflow as tf

RATE = 0.5
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
job = muster.Job(global_batch=96)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
job.started()

table = np.loadtxt("digits.csv.gz", delimiter=",", dtype="float32")[:1500]
pixels, labels = table[:, :64] / 16, table[:, 64].astype("int64")
sampler = job.sampler(len(table), seed=1)
nothing = np.empty(0, "int64"), np.empty(0, "float32")

with strategy.scope():
    weights = tf.Variable(tf.zeros([65, 10]))  # the last row is the bias
step, saved = 0, folder / "saved.npz"
if saved.exists():
    with np.load(saved) as state:
        step = int(state["step"])
        weights.assign(state["weights"])
        sampler.restore(state["position"])


def save():
    if job.is_chief:
        with open(folder / "new.npz", "wb") as file:
            np.savez(file, step=step, weights=weights.numpy(), position=sampler.state())
        os.replace(folder / "new.npz", saved)


@tf.function(input_signature=[
    tf.TensorSpec([None, 64]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None]), tf.TensorSpec([3])
])
def summed(x, y, shares, numbers):
    """Returns the sums over all ranks: first of `numbers`, then of the gradient."""

    def local(x, y, shares, numbers):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.matmul(x, weights[:64]) + weights[64])
            loss = tf.reduce_sum(losses * shares)
        return tf.concat([numbers, tf.reshape(tape.gradient(loss, weights), [-1])], axis=0)

    return strategy.reduce("sum", strategy.run(local, args=(x, y, shares, numbers)), axis=None)


limit = 0
with open(folder / f"{job.generation or 'alone'}.{job.rank}.journal", "a", buffering=1) as journal:
    while step < steps:
        is_training = step < limit
        indexes, shares = sampler.take() if is_training else nothing
        # All ranks must use the same limit. So only the chief reads it, and the sum passes it to the other ranks.
        newest = int((folder / "limit").read_text()) if job.is_chief else 0
        numbers = summed(pixels[indexes], labels[indexes], shares, (*job.signal(), newest)).numpy()
        leave, split, limit, gradient = *numbers[:3], numbers[3:]
        if is_training:
            weights.assign_sub(RATE * gradient.reshape(65, 10))
            step += 1
            journal.write(json.dumps([step, indexes[shares > 0].tolist()]) + "\n")
        if job.step(step, (leave, split)):
            save()
            job.leave()
        time.sleep(0.005)
if job.is_chief:
    (folder / "weights.json").write_text(json.dumps(weights.numpy().ravel().tolist()))
job.done()
