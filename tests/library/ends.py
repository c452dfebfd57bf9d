"""What remains of a process group after destroy_process_group, where an object of each kind averaged over it."""

import os

import numpy as np
import torch
import torch.distributed as dist

import onebit
from onebit.torch import CompressedHookState, OneBitAdam


def threads():
    return len(os.listdir("/proc/self/task"))


before = threads()
dist.init_process_group("gloo")
assert threads() > before, "gloo has no threads here, so that none can remain"
allreduces = [onebit.CompressedAllreduce(group, 100) for group in (None, dist.new_group())]
for allreduce in allreduces:
    allreduce(np.ones(100, np.float32))
parameter = torch.nn.Parameter(torch.ones(100))
optimizer = OneBitAdam([parameter], 1)
for _ in range(3):
    parameter.grad = torch.ones(100)
    optimizer.step()
state = CompressedHookState()
dist.destroy_process_group()
assert threads() == before, f"{threads() - before} threads of gloo still run, which need the interpreter"

for use in (lambda: allreduces[1](np.ones(100, np.float32)), lambda: optimizer.comm.sum(torch.ones(1))):
    try:
        use()
    except Exception as error:
        errors = f"{error}; {error.__cause__}"
        assert "the process group has been destroyed" in errors, errors
    else:
        raise AssertionError("an average over a group that is no more")
