"""Trains a digit classifier on a number of workers that may change while it trains.

When workers come or go, worker 0 saves, all workers exit, and Muster starts the script again with the new number of
workers. The script continues at the next step, with the samples that this epoch has not used.
"""

import argparse
import os
from pathlib import Path

import muster
import numpy as np

# TensorFlow reads these variables at import. It then logs only errors, and computes the same sums on every processor.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", "300")))
parser.add_argument("--checkpoints", default=os.environ.get("CHECKPOINTS", "checkpoints"), help="folder that all workers share")
options = parser.parse_args()

job = muster.Job(global_batch=96)  # samples per step of all workers together
strategy = tf.distribute.MultiWorkerMirroredStrategy()
job.started()  # after the strategy, because the strategy replaces signal handlers

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype="float32")
pixels, labels = table[:, :64] / 16, table[:, 64].astype("int64")
train, test = slice(0, 1500), slice(1500, None)
sampler = job.sampler(1500, seed=1)

tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

# The step, the sampler's epoch, and the sampler's position in the epoch.
progress = tf.Variable([0, 0, 0], dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, progress=progress)
manager = tf.train.CheckpointManager(checkpoint, options.checkpoints, max_to_keep=3)
manager.restore_or_initialize()
step, *position = (int(number) for number in progress.numpy())
sampler.restore(position)


@job.saves  # a chief that must leave during an evaluation calls this function too
def save():
    if job.is_chief:
        progress.assign([step, *sampler.state()])
        manager.save(checkpoint_number=step)


# With a size of None, TensorFlow traces once for all batch sizes.
@tf.function(input_signature=[
    tf.TensorSpec([None, 64]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None]), tf.TensorSpec([2])
])
def train_step(x, y, weights, signal):
    """One step on every worker; returns the loss over the global batch, and the sum of the workers' signals."""

    def local_step(x, y, weights, signal):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            # The weights of the samples of all workers add up to 1, so the sum of the workers' gradients is the mean gradient.
            loss = tf.reduce_sum(losses * weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.concat([[loss], signal], axis=0)

    return strategy.reduce("sum", strategy.run(local_step, args=(x, y, weights, signal)), axis=None)


try:
    while step < options.steps:
        indexes, weights = sampler.take()
        loss, *summed = train_step(pixels[indexes], labels[indexes], weights, job.signal()).numpy()
        step += 1
        job.log(loss=loss)
        if job.is_chief and step % 10 == 0:
            print(f"step {step} loss {loss:.4f} world {job.world}", flush=True)
        must_leave = job.step(step, summed)
        if must_leave or step % 50 == 0 or step == options.steps:
            save()
        if must_leave:
            job.leave()
except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
    print(f"lost a worker: {type(error).__name__}", flush=True)
    job.leave()

accuracy = np.mean(np.argmax(model(pixels[test]).numpy(), axis=1) == labels[test])
print(f"step {step} accuracy {accuracy:.3f} world {job.world}", flush=True)
job.done()
