"""The training that try_drain.py drains. Arguments: the folder for checkpoints, the number of steps, the step at which
the moments come, and the moment of each start. `now` in the output tells that the moment has come."""

import os
import sys
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import muster
import numpy as np
import tensorflow as tf

folder, steps, at, moments = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
job = muster.Job(global_batch=32)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
job.started()
folder.mkdir(parents=True, exist_ok=True)
starts = folder / f"starts-{job.rank}"
earlier = len(starts.read_text()) if starts.exists() else 0
starts.write_text("." * (earlier + 1))
moment = moments[earlier] if earlier < len(moments) else ""
random = np.random.RandomState(1)
x = random.normal(size=(200, 8)).astype("float32")
y = x @ random.normal(size=(8, 1)).astype("float32")
sampler = job.sampler(200, seed=1)
with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))
progress = tf.Variable([0, 0, 0], dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, progress=progress)
manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=3)
manager.restore_or_initialize()
step, *position = (int(number) for number in progress.numpy())
sampler.restore(position)
restored = step

@job.saves
def save():
    if job.is_chief:
        progress.assign([step, *sampler.state()])
        manager.save(checkpoint_number=step)

def now():
    if job.is_chief:
        print("now", flush=True)

def pause(seconds=4):
    now()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))

def begins(name):
    return moment == name and step == at

@tf.function
def train_step(x, y, weight, signal, variant):
    if begins("the first step") and step == restored or begins("a step is traced again"):
        pause()
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
            pause()
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
            pause()
        if begins("an evaluation is traced"):
            evaluate(x, "quick")
        if begins("an evaluation in one call"):
            now()
            evaluate(x, "slow")
        if begins("the chief alone evaluates") and job.is_chief:
            pause()
except (tf.errors.UnavailableError, tf.errors.AbortedError):
    job.leave()
save()
job.done()
