import torch
import torch.distributed as dist

# The address of rank 0, the rank and the number of ranks come from the environment, as with torchrun.
dist.init_process_group("gloo")
number = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(number)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {number.item()}")
dist.destroy_process_group()
