# mpirun -n 4 python3 -m mpi4py adam.py
import torch
from mpi4py import MPI

from onebit.torch import AutoFreeze, OneBitAdam

comm, steps = MPI.COMM_WORLD, 401
torch.manual_seed(comm.rank)  # each rank draws its own batches
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = OneBitAdam(net.parameters(), AutoFreeze(steps), lr=1e-2, comm=comm)  # rank 0's parameters go to all

for step in range(steps):
    x = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(net(x), torch.tanh(x.sum(1, keepdim=True)))
    optimizer.zero_grad()
    loss.backward()  # of this rank's batch
    optimizer.step()  # averages
    if comm.rank == 0 and step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f} variance frozen at {optimizer.frozen_at}")
