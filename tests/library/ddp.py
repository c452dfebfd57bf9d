# mpirun -n 4 python3 -m mpi4py ddp.py, or torchrun --nproc_per_node=4 ddp.py
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from onebit.torch import CompressedHookState, compressed_hook

if "RANK" not in os.environ:  # under mpirun: what torchrun would set, for gloo
    from mpi4py import MPI
    os.environ.update(RANK=str(MPI.COMM_WORLD.rank), WORLD_SIZE=str(MPI.COMM_WORLD.size))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # rank 0's host
    os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("gloo")

torch.manual_seed(dist.get_rank())  # each rank draws its own batches
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(net)
model.register_comm_hook(CompressedHookState(), compressed_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(201):
    x = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(model(x), torch.tanh(x.sum(1, keepdim=True)))
    optimizer.zero_grad()
    loss.backward()  # the hook averages the gradients
    optimizer.step()
    if dist.get_rank() == 0 and step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f}")
