"""The 1-bit dense layer as a function of torch.autograd, in float64: y = (sign x · sign Wᵀ) ⊙ Γ + bias.

Shapes, with N rows, K inputs and D outputs: x (N, K), W (D, K) as in PyTorch, Γ and bias (D), y (N, D).
"""
from typing import NamedTuple, Optional

import torch

import fqt


class Quantization(NamedTuple):
    """What a layer quantises besides weights and activations."""
    kind: str  # qat, psq, scq or fqt
    bits: int = 1
    pruning: Optional[str] = None  # of fqt


class Record:
    """Keeps what the backward passes decided, and how near each decision came to another one."""

    def __init__(self):
        self.quantized = {}  # Quantized by (layer, product)
        self.sign_margin = 1.0  # least |x| of the layers' inputs, without exact zeros
        self.edge_margin = 1.0  # least ||x| − 1|, without exact ones

    def input(self, x):
        self.sign_margin = min(self.sign_margin, _least(x.abs()))
        self.edge_margin = min(self.edge_margin, _least((x.abs() - 1).abs()))


def _least(values):
    positive = values[values > 0]
    return positive.min().item() if len(positive) else 1.0


def sign(t):
    """−1 for t ≤ 0, else +1."""
    return torch.where(t > 0, 1.0, -1.0).to(t.dtype)


def estimates(G, quantization, key, record):
    """What stands for G (N, D) in the products that give ∇x and ∇W."""
    kind, bits, pruning = quantization
    if kind == "qat":
        return G, G

    def quantize(matrix, product):
        found = fqt.quantize(matrix.double().numpy(), bits, pruning if kind == "fqt" else None, key, product)
        if record is not None:
            record.quantized[key.layer, product] = found
        return torch.from_numpy(found.value).to(G.dtype)

    by_rows = quantize(G, fqt.INPUT)
    return by_rows, by_rows if kind == "psq" else quantize(G.T, fqt.WEIGHT).T


class BinaryLinear(torch.autograd.Function):
    """y of (x, W, Γ, bias); the other arguments have no gradient."""

    @staticmethod
    def forward(context, x, weight, gamma, bias, quantization, key, record):
        products = sign(x) @ sign(weight).T
        if record is not None:
            record.input(x)
        context.save_for_backward(x, weight, gamma, products)
        context.quantization, context.key, context.record = quantization, key, record
        return products * gamma + bias

    @staticmethod
    def backward(context, d_y):
        x, weight, gamma, products = context.saved_tensors
        for_input, for_weight = estimates(d_y * gamma, context.quantization, context.key, context.record)
        # The straight-through estimator: a sign has slope 1 inside (−1, 1) and 0 outside.
        d_x = torch.where(x.abs() < 1, for_input @ sign(weight), 0)
        d_weight = torch.where(weight.abs() < 1, for_weight.T @ sign(x), 0)
        return d_x, d_weight, (d_y * products).sum(0), d_y.sum(0), None, None, None


def binary_linear(x, weight, gamma, bias, quantization, key, record=None):
    return BinaryLinear.apply(x, weight, gamma, bias, quantization, key, record)
