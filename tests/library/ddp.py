# mpirun -n 4 python3 -m mpi4py ddp.py
import os

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

from onebit.torch import CompressedHookState, compressed_hook

comm = MPI.COMM_WORLD
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # rank 0's host, for gloo
os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)

torch.manual_seed(comm.rank)  # each rank draws its own batches
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(net)
model.register_comm_hook(CompressedHookState(comm), compressed_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(201):
    x = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(model(x), torch.tanh(x.sum(1, keepdim=True)))
    optimizer.zero_grad()
    loss.backward()  # the hook averages the gradients
    optimizer.step()
    if comm.rank == 0 and step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f}")
