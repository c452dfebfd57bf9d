# mpirun -n 4 python3 -m mpi4py adam.py, or torchrun --nproc_per_node=4 adam.py
import os

import torch
import torch.distributed as dist

from onebit.torch import AutoFreeze, OneBitAdam

if "RANK" in os.environ:  # set by torchrun; under mpirun MPI carries the messages
    dist.init_process_group("gloo")
steps = 401
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = OneBitAdam(net.parameters(), AutoFreeze(steps), lr=1e-2)  # rank 0's parameters go to all
rank = optimizer.comm.rank
torch.manual_seed(rank)  # each rank draws its own batches

for step in range(steps):
    x = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(net(x), torch.tanh(x.sum(1, keepdim=True)))
    optimizer.zero_grad()
    loss.backward()  # of this rank's batch
    optimizer.step()  # averages
    if rank == 0 and step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f} variance frozen at {optimizer.frozen_at}")
