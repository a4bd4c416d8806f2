"""Trains a digit classifier on all workers at once with MultiWorkerMirroredStrategy.

Every worker runs this script. TF_CONFIG in the environment lists all workers, and identifies this one.
"""

import argparse
import hashlib
import os
from pathlib import Path

import numpy as np

# TensorFlow reads these variables at import. It then logs only errors, and computes the same sums on every processor.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", "300")))
parser.add_argument("--batch-size", type=int, default=32, help="samples per worker and step")
options = parser.parse_args()

# Create the strategy before any other use of TensorFlow. It connects the workers, and waits for all of them.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch = options.batch_size * strategy.num_replicas_in_sync

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype="float32")
pixels, labels = table[:, :64] / 16, table[:, 64].astype("int64")
train, test = slice(0, 1500), slice(1500, None)


def batches(context):
    """This worker's share of the training data, shuffled and repeated without end."""
    data = tf.data.Dataset.from_tensor_slices((pixels[train], labels[train]))
    share = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return share.shuffle(1500, seed=1).repeat().batch(options.batch_size, drop_remainder=True).prefetch(2)


tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)


@tf.function
def train_step(iterator):
    """One step on every worker; returns the loss over the global batch."""

    def local_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            # Divided by the global batch, because the workers' gradients are summed.
            loss = tf.reduce_sum(losses) / global_batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce("sum", strategy.run(local_step, args=(next(iterator),)), axis=None)


@tf.function
def meet():
    """Returns when every worker has called this function."""
    return strategy.reduce("sum", strategy.run(lambda: tf.constant(1.0)), axis=None)


iterator = iter(strategy.distribute_datasets_from_function(batches))
for step in range(1, options.steps + 1):
    loss = float(train_step(iterator))
    if step % 50 == 0 and os.environ.get("RANK", "0") == "0":
        print(f"step {step} loss {loss:.4f}", flush=True)

# A slower worker may still fetch its share of the last sum from this worker, so wait for all workers before exiting.
# An error means that a faster worker has exited already. A worker exits only after all have called meet().
try:
    meet()
except tf.errors.OpError:
    pass

weights = b"".join(variable.numpy().astype("float32").tobytes() for variable in model.variables)
accuracy = np.mean(np.argmax(model(pixels[test]).numpy(), axis=1) == labels[test])
print(f"digest {hashlib.sha256(weights).hexdigest()[:16]} accuracy {accuracy:.3f}", flush=True)
