"""A small GPT learns as well with OneBitAdam and OneBitMuon as with torch.optim.Adam; runs on every rank and prints the
losses."""

import math
import pathlib
import unittest

import torch
from mpi4py import MPI
from torch.nn import functional

import skips
from onebit.torch import AutoFreeze, OneBitAdam, OneBitMuon

COMM = MPI.COMM_WORLD
STEPS, WARMUP, LR, BETAS = 160, 20, 1e-2, (0.9, 0.95)
BATCH, CONTEXT, WIDTH, HEADS = 16, 32, 32, 4  # BATCH is of all ranks
TEXT = (pathlib.Path(__file__).resolve().parents[2] / "LICENSE").read_bytes()
TOKENS = sorted(set(TEXT))
DATA = torch.tensor([TOKENS.index(byte) for byte in TEXT])
TOLERANCE = 0.1  # nats


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(),
                                       torch.nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -math.inf).triu(1))

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(WIDTH / HEADS) + self.mask
        x = x + self.out((scores.softmax(-1) @ heads[2]).transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norms[1](x))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.tokens, self.places = torch.nn.Embedding(len(TOKENS), WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, len(TOKENS)))

    def loss(self, windows):
        x = self.tokens(windows[:, :-1]) + self.places.weight
        return functional.cross_entropy(self.head(self.blocks(x)).transpose(1, 2), windows[:, 1:])


def windows_of(step, count):
    begins = torch.randint(len(DATA) - CONTEXT, (count,), generator=torch.Generator().manual_seed(step))
    return torch.stack([DATA[begin:begin + CONTEXT + 1] for begin in begins])


def average_gradients(net):
    for p in net.parameters():
        COMM.Allreduce(MPI.IN_PLACE, p.grad.numpy())
        p.grad.div_(COMM.size)


def train(net, optimizer, before_step=None):
    """\returns the loss of other windows in the end"""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARMUP))
    for step in range(STEPS):
        optimizer.zero_grad()
        net.loss(windows_of(step, BATCH)[COMM.rank::COMM.size]).backward()
        if before_step:
            before_step(net)
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return net.loss(windows_of(STEPS, 256)).item()


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        net = Gpt()
        cls.adam = train(net, torch.optim.Adam(net.parameters(), LR, BETAS), average_gradients)

    def test_same_loss_as_adam(self):
        net = Gpt()
        optimizer = OneBitAdam(net.parameters(), AutoFreeze(STEPS, WARMUP), LR, BETAS)
        compressed = train(net, optimizer)
        print(f"loss: Adam {self.adam:.4f}, 1-bit Adam {compressed:.4f}, frozen at {optimizer.frozen_at}", flush=True)
        self.assertLessEqual(optimizer.frozen_at, STEPS // 5)
        self.assertLess(compressed, self.adam + TOLERANCE)

    def test_muon_has_the_loss_of_adam(self):
        net = Gpt()
        optimizer = OneBitMuon(
            net.parameters(),
            lr=0.01,
            embeddings=[net.tokens.weight, net.places.weight],
            stacked={block.qkv.weight: 3 for block in net.blocks},  # q, k and v are matrices of their own
        )
        compressed = train(net, optimizer)
        print(f"loss: Adam {self.adam:.4f}, 1-bit Muon {compressed:.4f}", flush=True)
        self.assertLess(compressed, self.adam + TOLERANCE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    skips.main(["--failfast"])
