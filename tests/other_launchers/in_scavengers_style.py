"""Trains one weight in the style of a script for Scavenger: the cluster, the batch size of each task and the folder of the
model come from TF_CONFIG, and its first task is a `master`. Only the style is Scavenger's: there is no TensorFlow here, and
nothing of Scavenger's code. The tasks sum their gradients at the address of the master.
"""

import argparse
import json
import os
import socket
import struct
import time

STEPS, RATE, DATA = 50, 0.5, [(number / 96, 3 * number / 96) for number in range(96)]

parser = argparse.ArgumentParser()
parser.add_argument("--node_batch_size", type=int, default=128)
parser.add_argument("--global_batch_size_value", type=int, default=512)
parser.add_argument("--sync_mode", choices=["bsp"], default="bsp")
flags = parser.parse_args()

config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
# The sizes of the master and of the workers, in this order.
batch_sizes = json.loads(config["batch_size_list"])
position = 0 if task["type"] == "master" else 1 + task["index"]
if batch_sizes[position] != flags.node_batch_size or sum(batch_sizes) != flags.global_batch_size_value:
    raise SystemExit(f"the flags {flags} differ from batch_size_list {batch_sizes}")

host, port = cluster["master"][0].rsplit(":", 1)
if position == 0:
    server = socket.create_server((host, int(port)))
    peers = [server.accept()[0] for _ in cluster["worker"]]
else:
    while True:
        try:
            peers = [socket.create_connection((host, int(port)))]
            break
        except OSError:  # the master does not listen yet
            time.sleep(0.01)


def received(peer):
    return struct.unpack("d", peer.recv(8, socket.MSG_WAITALL))[0]


def summed(number):
    if position == 0:
        number += sum(received(peer) for peer in peers)
    for peer in peers:
        peer.sendall(struct.pack("d", number))
    return number if position == 0 else received(peers[0])


begin, weight = sum(batch_sizes[:position]), 0.0
mine = DATA[begin : begin + flags.node_batch_size]
for step in range(STEPS):
    gradient = sum(2 * (weight * x - y) * x for x, y in mine) / len(mine)
    weight -= RATE * summed(gradient * len(mine) / flags.global_batch_size_value)
print(f"{task['type']} {task['index']}: {len(mine)} of {flags.global_batch_size_value}, weight {weight:.9f}", flush=True)
if task["type"] == "master":
    with open(os.path.join(config["model_dir"], "model.json"), "w") as file:
        json.dump({"weight": weight, "batch_size_list": batch_sizes, "environment": config["environment"]}, file)
