import os

import jax
from jax.experimental.multihost_utils import process_allgather

# JAX itself reads JAX_COORDINATOR_ADDRESS, but no variables for the following two values.
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
numbers = process_allgather(jax.numpy.array(jax.process_index() + 1))
print(f"process {jax.process_index()} of {jax.process_count()}: the sum is {numbers.sum()}")
