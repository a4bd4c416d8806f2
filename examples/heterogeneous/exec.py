"""Trains a digit classifier on workers of unequal speed. Each worker has its own batch size.

With `--work 1=4`, rank 1 repeats the largest part of the computation four times as often, like a slower machine. Muster
then gives this rank smaller batches, so that the other ranks do not wait for it.
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
parser.add_argument("--rounds", type=int, default=300, help="how much work each sample needs")
parser.add_argument("--work", default="", help="RANK=N[,RANK=N]: ranks that do N times as many rounds for each sample")
options = parser.parse_args()

job = muster.Job()  # the global batch comes from the client's option --global-batch
strategy = tf.distribute.MultiWorkerMirroredStrategy()
job.started()  # after the strategy, because the strategy replaces signal handlers
slow = dict((int(number) for number in pair.split("=")) for pair in options.work.split(",") if pair)
rounds = tf.constant(options.rounds * slow.get(job.rank, 1))
mix = tf.random.stateless_normal((64, 64), seed=(1, 1)) / 8

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype="float32")
pixels, labels = table[:, :64] / 16, table[:, 64].astype("int64")
sampler = job.sampler(len(labels), seed=1)

tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


# Two functions, because only the first one is this worker's own work: the second one waits for the other workers. With a
# size of None, TensorFlow traces once for all batch sizes.
@tf.function(input_signature=[tf.TensorSpec([None, 64]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])])
def local_gradients(x, y, weights):
    def local(x, y, weights):
        _, work = tf.while_loop(lambda i, _: i < rounds, lambda i, h: (i + 1, tf.tanh(h @ mix)), (0, x))
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            # The weights of the samples of all workers add up to 1, so the sum of the gradients is the mean gradient.
            loss = tf.reduce_sum(losses * weights) + 0 * tf.reduce_sum(work)
        return loss, tape.gradient(loss, model.trainable_variables)

    return strategy.run(local, args=(x, y, weights))


@tf.function
def update(loss, gradients, signal):
    """Applies the sum of all workers' gradients; returns the loss over the global batch, and the sum of the signals."""

    def apply(loss, gradients, signal):
        # To sum gradients, TensorFlow must know their device. The arguments of a tf.function have no device, but copies
        # have one.
        gradients = [tf.identity(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.distribute.get_replica_context().all_reduce("sum", tf.concat([[loss], signal], axis=0))

    return strategy.run(apply, args=(loss, gradients, signal))


try:
    for step in range(1, options.steps + 1):
        indexes, weights = sampler.take()
        with job.measure():
            loss, gradients = local_gradients(pixels[indexes], labels[indexes], weights)
            loss.numpy()  # waits until the computation is done
        loss, *summed = update(loss, gradients, job.signal()).numpy()
        job.log(loss=loss)
        if job.is_chief and step % 10 == 0:
            print(f"step {step} loss {loss:.4f} sizes {job.sizes}", flush=True)
        if job.step(step, summed):
            job.leave()
except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
    print(f"lost a worker: {type(error).__name__}", flush=True)
    job.leave()
job.done()
