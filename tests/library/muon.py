"""onebit.torch.OneBitMuon: its step against a plain simulation of all ranks, checkpoints and errors; runs on every
rank."""

import io
import sys
import unittest

import numpy as np
import torch

import skips
from job import COMM
from onebit.torch import OneBitAdam, OneBitMuon
from onebit.torch._muon import orthogonal

LR, BETAS, EPS, DECAY = 0.02, (0.9, 0.99), 1e-8, 0.1
WORDS, WIDTH = 23, 6


class Net(torch.nn.Module):
    """Tables, a matrix of three, matrices that are tall and wide, and vectors."""

    def __init__(self, seed=1):
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.gain = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Parameter(torch.ones(20))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(3 * WIDTH, 3)

    def forward(self, words):
        x = torch.tanh(self.qkv(self.words(words)))
        return self.out(x * self.gain[:3 * WIDTH])

    def groups(self):
        """Weights with a decay, vectors without one and with a learning rate of their own."""
        return [{"params": [p for p in self.parameters() if p.dim() > 1], "weight_decay": DECAY},
                {"params": [self.qkv.bias, self.out.bias], "lr": 0.5 * LR},
                {"params": [self.gain], "betas": (0.5, 0.9), "table_beta1": 0.7}]

    def tables(self):
        return [self.words.weight, self.gain]  # the second is one row, of less than a word


def one_bit_muon(net, **options):
    return OneBitMuon(net.groups(), LR, BETAS, EPS, embeddings=net.tables(), stacked={net.qkv.weight: 3}, **options)


def backward(net, step):
    """The gradients of this rank's batch of a step."""
    words = torch.randint(WORDS, (16,), generator=torch.Generator().manual_seed(100 * step + COMM.rank))
    net.zero_grad()
    wanted = torch.stack([words % 2, words % 3, words % 5], 1).float()
    loss = (net(words) - wanted).square().mean()
    loss.backward()
    return loss.item()


def train(net, optimizer, steps, scheduler=None):
    for step in steps:
        backward(net, step)
        optimizer.step()
        if scheduler:
            scheduler.step()


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().copy()


def bits(net):
    return flat(net.parameters()).tobytes()


def signs(c, scale):
    """C(c): the signs of each row, times its mean magnitude, or its root mean square."""
    of_row = abs(c).mean(-1, keepdims=True) if scale == "l1" else np.sqrt((c**2).mean(-1, keepdims=True))
    return np.where(c < 0, -1, 1) * of_row


class Matrix:
    """One of the matrices of a parameter on all ranks, by docs/reference/algorithms/muon.md; or a table."""

    def __init__(self, of_group, shape, is_table, scale):
        self.of_group, self.shape, self.is_table, self.scale = of_group, shape, is_table, scale
        self.m, self.residuals = (np.zeros((COMM.size, *shape)) for _ in range(2))
        self.mean, self.error, self.v = (np.zeros(shape) for _ in range(3))

    def direction(self, gradients, t):
        """gradients: (ranks, rows, columns)"""
        beta1 = self.of_group["table_beta1"] if self.is_table else self.of_group["betas"][0]
        change = (1 - beta1) * (gradients - self.m)
        self.m += change
        sent = np.stack([signs(c, self.scale) for c in change + self.residuals])
        self.residuals += change - sent
        self.mean += sent.mean(0)
        u = self.adams(beta1, t) if self.is_table else self.orthogonalised()
        self.error += u
        sent = signs(self.error, self.scale)
        self.error -= sent
        return sent

    def adams(self, beta1, t):
        beta2 = self.of_group["betas"][1]
        self.v = beta2 * self.v + (1 - beta2) * self.mean**2
        return quotient(self.of_group, beta1, self.mean, self.v, t)

    def orthogonalised(self):
        rows, columns = self.mean.shape
        x = self.mean / max(np.linalg.norm(self.mean), 1e-30)
        for _ in range(self.of_group["iterations"]):
            s = x @ x.T
            x = 3.4445 * x - 4.7750 * s @ x + 2.0315 * s @ s @ x
        return self.of_group["lr_factor"] * max(1, rows / columns) ** 0.5 * x


class Vector:
    def __init__(self, of_group, shape):
        self.of_group, self.shape, self.m, self.v = of_group, shape, np.zeros(shape), np.zeros(shape)

    def direction(self, gradients, t):
        g, (beta1, beta2) = gradients.mean(0), self.of_group["betas"]
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g**2
        return quotient(self.of_group, beta1, self.m, self.v, t)


def quotient(of_group, beta1, m, v, t):
    c1, c2 = (1 - beta**t if of_group["bias_correction"] else 1 for beta in (beta1, of_group["betas"][1]))
    return m / c1 / (np.sqrt(v / c2) + of_group["eps"])


class Reference:
    """All ranks in NumPy and double precision, tensor by tensor."""

    def __init__(self, net, optimizer, scale):
        self.params = [(p, group) for group in optimizer.param_groups for p in group["params"]]
        self.x = [p.detach().numpy().astype(float) for p, _ in self.params]
        self.parts = [self.parts_of(net, p, group, scale) for p, group in self.params]

    @staticmethod
    def parts_of(net, p, group, scale):
        is_table = any(p is table for table in net.tables())
        if p.dim() == 1 and not is_table:
            return [Vector(group, p.shape)]
        count = 3 if p is net.qkv.weight else 1
        return [Matrix(group, (p.numel() // p.shape[-1] // count, p.shape[-1]), is_table, scale) for _ in range(count)]

    def step(self, t):
        for x, (p, group), parts in zip(self.x, self.params, self.parts):
            gradients = np.split(np.stack(COMM.allgather(p.grad.numpy())).astype(float), len(parts), 1)
            u = [part.direction(g.reshape(COMM.size, *part.shape), t) for part, g in zip(parts, gradients)]
            x -= group["lr"] * (np.concatenate(u).reshape(x.shape) + group["weight_decay"] * x)


class Muon(unittest.TestCase):
    def same_on_all_ranks(self, net):
        self.assertEqual(len(set(COMM.allgather(bits(net)))), 1, "the replicas differ")

    def test_the_orthogonal_factor(self):
        generator = torch.Generator().manual_seed(1)
        for shape in ((20, 50), (50, 20), (20, 20), (1, 7), (7, 1)):
            m = torch.randn(shape, generator=generator)
            left, s, right = torch.linalg.svd(orthogonal(m, 5), full_matrices=False)
            self.assertGreater(s[s > 0.1 * s[0]].min(), 0.65)  # one that was tiny may be small
            self.assertLess(s.max(), 1.25)
            u, _, v = torch.linalg.svd(m, full_matrices=False)
            self.assertGreater((u @ v * orthogonal(m, 5)).sum() / min(shape), 0.6)  # ⟨U Vᵀ, O⟩ = Σ of the values
        self.assertFalse(orthogonal(torch.zeros(3, 4), 5).any())

    def test_it_is_the_simulation_of_all_ranks(self):
        for options in ({}, {"bias_correction": True, "iterations": 3, "lr_factor": 2.0, "table_beta1": 0.9},
                        {"scale": "l2"}):
            net = Net()
            optimizer = one_bit_muon(net, **options)
            reference, scheduler = Reference(net, optimizer, options.get("scale", "l1")), halving(optimizer)
            for step in range(9):
                backward(net, step)
                reference.step(step + 1)
                optimizer.step()
                scheduler.step()
            for (p, _), x in zip(reference.params, reference.x):
                np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-4, atol=1e-5)
            self.same_on_all_ranks(net)

    def test_it_learns(self):
        net = Net()
        optimizer = one_bit_muon(net)
        first = backward(net, 0)
        train(net, optimizer, range(200), torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 200))
        self.assertLess(max(COMM.allgather(backward(net, 300))), 0.25 * first)
        self.same_on_all_ranks(net)

    def test_a_server_has_its_tensors_alone(self):
        optimizer = one_bit_muon(Net())
        sent = 3 * WIDTH * WIDTH + 3 * 3 * WIDTH + WORDS * WIDTH + 20
        lengths = COMM.allgather([len(optimizer.state_dict()[name]) for name in ("server_momentum", "table_variance")])
        self.assertEqual([sum(of) for of in zip(*lengths)], [sent, WORDS * WIDTH + 20])
        self.assertEqual(len(optimizer.state_dict()["momentum"]), sent)

    def test_a_bit_for_an_element(self):
        p = torch.nn.Parameter(torch.ones(2048, 512))
        optimizer = OneBitMuon([p])
        p.grad = torch.ones_like(p)
        before = optimizer._allreduce.bytes_sent
        optimizer.step()
        sent = sum(COMM.allgather(optimizer._allreduce.bytes_sent - before))
        # One matrix has one server: all others send to it, and it sends to them.
        self.assertLess(sent, 2 * (COMM.size - 1) * COMM.size * p.numel() / 8 * 1.1 + 1)

    def test_parameters_that_require_no_gradient_stay(self):
        def trained(frozen):
            net = Net()
            optimizer = OneBitMuon([*net.parameters(), *frozen], LR, embeddings=net.words.weight)
            train(net, optimizer, range(5))
            return bits(net)

        frozen = torch.nn.Parameter(torch.full((5, 4, 3), float(COMM.rank)), requires_grad=False)
        self.assertEqual(trained([frozen]), trained([]))
        self.assertTrue((frozen == 0).all())  # rank 0's

    def test_matrices_alone(self):
        net = torch.nn.Linear(5, 5, bias=False)
        optimizer = OneBitMuon(net.parameters(), LR)
        before = flat(net.parameters())
        net(torch.ones(1, 5)).sum().backward()
        optimizer.step()
        self.assertTrue((flat(net.parameters()) != before).all())

    def test_checkpoint(self):
        net, file = Net(), io.BytesIO()
        optimizer = one_bit_muon(net)
        scheduler = halving(optimizer)
        train(net, optimizer, range(4), scheduler)
        torch.save([part.state_dict() for part in (net, optimizer, scheduler)], file)
        train(net, optimizer, range(4, 9), scheduler)

        file.seek(0)
        other = Net(seed=2)
        restarted = one_bit_muon(other, lr_factor=1.0, bias_correction=True)  # what the state has counts
        for part, state in zip((other, restarted, again := halving(restarted)), torch.load(file)):
            part.load_state_dict(state)
        train(other, restarted, range(4, 9), again)
        self.assertEqual(bits(other), bits(net))
        ours, theirs = optimizer.state_dict(), restarted.state_dict()
        for name in ("momentum", "server_momentum", "table_variance", "vector_momentum", "vector_variance"):
            self.assertTrue(ours[name].equal(theirs[name]), name)
        for name in ("worker", "server"):
            self.assertTrue(ours["residuals"][name].equal(theirs["residuals"][name]), name)

    def test_a_gradient_that_is_not_finite(self):
        net, twin = Net(), Net()
        optimizer, expected = (one_bit_muon(n, on_nonfinite="skip") for n in (net, twin))
        for step in range(6):
            backward(net, step)
            if step in (0, 3):
                if COMM.rank == COMM.size - 1:
                    net.out.weight.grad[1, 3] = float("nan")
            else:
                backward(twin, step)
                expected.step()
            optimizer.step()
        self.assertEqual(bits(net), bits(twin))

        net = Net()
        optimizer, before = one_bit_muon(net), bits(net)
        backward(net, 0)
        if COMM.rank == COMM.size - 1:
            net.out.weight.grad[1, 3] = float("inf")
        with self.assertRaisesRegex(FloatingPointError, r"parameter 2 of group 0, of shape \(3, 18\) is not finite on "
                                    rf"rank {COMM.size - 1}\n.*remedy: "):
            optimizer.step()
        self.assertEqual(bits(net), before)

    @unittest.skipIf(COMM.size == 1, "nothing is left out: one rank cannot differ")
    def test_a_hyperparameter_of_one_rank_alone(self):
        net = Net()
        optimizer = one_bit_muon(net)
        backward(net, 0)
        optimizer.param_groups[1]["iterations"] = 5 if COMM.rank == 0 else 6
        with self.assertRaisesRegex(ValueError, "iterations of group 1 is 5 on one rank and 6 on another\n.*remedy: "):
            optimizer.step()

    def refuse(self, text, call, *arguments, **options):
        with self.assertRaisesRegex(ValueError, text + "(.|\n)*remedy: "):
            call(*arguments, **options)

    def test_errors(self):
        net = Net()
        for text, options in (("lr_factor is 0", {"lr_factor": 0}), ("table_beta1 is 1", {"table_beta1": 1}),
                              ("iterations is 0", {"iterations": 0}), ("iterations is 1.5", {"iterations": 1.5}),
                              ("bias_correction is 2", {"bias_correction": 2}), ("on_nonfinite", {"on_nonfinite": ""}),
                              ("group and group_begins", {"group": 32}), ("17 bits", {"bits": 17})):
            self.refuse(text, one_bit_muon, net, **options)
        other = torch.nn.Parameter(torch.ones(4, 4))
        self.refuse("embeddings has something that is no par", OneBitMuon, net.parameters(), embeddings=[other])
        for p in (other, net.out.bias):
            self.refuse("stacked has something that is no matrix", OneBitMuon, net.parameters(), stacked={p: 1})
        self.refuse("18 rows does not hold 4", OneBitMuon, net.parameters(), stacked={net.qkv.weight: 4})
        self.refuse("a number of stacked is 0", OneBitMuon, net.parameters(), stacked={net.qkv.weight: 0})
        self.refuse("no parameter is a matrix", OneBitMuon, [net.qkv.bias])
        kernel = torch.nn.Parameter(torch.ones(2, 3, 4))
        self.refuse(r"\(2, 3, 4\), which is no matrix", OneBitMuon, [kernel])
        OneBitMuon([kernel], embeddings=[kernel])
        optimizer = one_bit_muon(net)
        of_adam = OneBitAdam(net.groups(), 1).state_dict()
        self.refuse("the state has no momentum, ", optimizer.load_state_dict, of_adam)
        self.refuse("the state is of 300 parameters", optimizer.load_state_dict, OneBitMuon(net.groups()).state_dict())
        self.refuse("parameters of other shapes", optimizer.load_state_dict,
                    OneBitMuon(net.groups(), embeddings=net.tables()).state_dict())


if __name__ == "__main__":
    skips.main(["--failfast", *sys.argv[1:]])
