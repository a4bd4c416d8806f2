"""Trains a digit classifier with ParameterServerStrategy: the chief assigns steps, workers compute, servers hold weights.

Every replica runs this script. TF_CONFIG in the environment lists all replicas, and identifies this one.
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
parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", "600")))
parser.add_argument("--batch-size", type=int, default=32, help="samples per step")
options = parser.parse_args()

cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster.task_type in ("worker", "ps"):
    # Workers and servers never end by themselves. Muster stops them when the chief has ended.
    server = tf.distribute.Server(
        cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id, protocol="grpc"
    )
    print(f"serving as {cluster.task_type} {cluster.task_id}", flush=True)
    server.join()

# Only the chief runs the rest of the script.
strategy = tf.distribute.ParameterServerStrategy(cluster)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype="float32")
pixels, labels = table[:, :64] / 16, table[:, 64].astype("int64")
train, test = slice(0, 1500), slice(1500, None)

tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def batches(_context):
    """The training data, shuffled and repeated without end; each worker has its own order."""
    data = tf.data.Dataset.from_tensor_slices((pixels[train], labels[train]))
    return data.shuffle(1500).repeat().batch(options.batch_size, drop_remainder=True).prefetch(2)


@tf.function
def worker_batches():
    return strategy.distribute_datasets_from_function(batches)


@tf.function
def train_step(iterator):
    """One step, on a worker that the coordinator chooses; returns the loss of the step."""

    def local_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.run(local_step, args=(next(iterator),))


iterator = iter(coordinator.create_per_worker_dataset(worker_batches))
for done in range(0, options.steps, 50):
    count = min(50, options.steps - done)
    losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(count)]
    coordinator.join()
    print(f"step {done + count} loss {np.mean(coordinator.fetch(losses)):.4f}", flush=True)

weights = b"".join(variable.numpy().astype("float32").tobytes() for variable in model.variables)
accuracy = np.mean(np.argmax(model(pixels[test]).numpy(), axis=1) == labels[test])
print(f"digest {hashlib.sha256(weights).hexdigest()[:16]} accuracy {accuracy:.3f}", flush=True)
