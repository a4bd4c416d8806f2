"""Trains one weight in the style of OmniLearn's synchronous program: rank, world size, the address of rank 0 and the batch
sizes are arguments. Only the style is OmniLearn's: there is no PyTorch here, and nothing of OmniLearn's code. The ranks sum
their gradients at the address of rank 0.
"""

import argparse
import socket
import struct
import time

STEPS, RATE, DATA = 50, 0.5, [(number / 96, 3 * number / 96) for number in range(96)]

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--world-size", type=int, required=True)
parser.add_argument("--master-addr", required=True)
parser.add_argument("--master-port", type=int, required=True)
parser.add_argument("--bsz", type=int, required=True, help="samples of this rank in a step")
parser.add_argument("--globalB", type=int, required=True, help="samples of all ranks in a step")
flags = parser.parse_args()

address = (flags.master_addr, flags.master_port)
if flags.rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(flags.world_size - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(address)]
            break
        except OSError:  # rank 0 does not listen yet
            time.sleep(0.01)


def exchange(numbers):
    """Sums each number over all ranks."""
    form = f"{len(numbers)}d"
    received = lambda peer: struct.unpack(form, peer.recv(8 * len(numbers), socket.MSG_WAITALL))
    if flags.rank == 0:
        numbers = [sum(column) for column in zip(numbers, *map(received, peers))]
    for peer in peers:
        peer.sendall(struct.pack(form, *numbers))
    return numbers if flags.rank == 0 else received(peers[0])


sizes = [int(size) for size in exchange([flags.bsz if rank == flags.rank else 0 for rank in range(flags.world_size)])]
if sum(sizes) != flags.globalB:
    raise SystemExit(f"the sizes {sizes} do not add up to {flags.globalB}")
begin, weight = sum(sizes[: flags.rank]), 0.0
mine = DATA[begin : begin + flags.bsz]
for step in range(STEPS):
    gradient = sum(2 * (weight * x - y) * x for x, y in mine) / flags.bsz
    # The mean over all samples, for any sizes.
    weight -= RATE * exchange([gradient * flags.bsz / flags.globalB])[0]
print(f"rank {flags.rank}: {flags.bsz} of {flags.globalB}, weight {weight:.9f}", flush=True)
