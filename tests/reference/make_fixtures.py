#!/usr/bin/env python3
"""Writes the fixtures of tests/unit/nn_parity_test.cpp: tiny BERT and GPT models as PyTorch computes them.

    pip install torch h5py
    python3 tests/reference/make_fixtures.py

models.py has the models. Parameters are single precision numbers; PyTorch computes with them in double precision, so
that the test measures the error of our single precision alone.

Each file holds
    shape             layers, hidden, heads, feed_forward, vocabulary, positions, batch, sequence
    parameters/NAME   initial parameters, weights (out, in)
    input             (B*T) tokens
    predicted         (P) rows of (B*T) at which a token is predicted
    target            (P) those tokens
    logits            (P, V)
    loss              mean cross entropy over the P rows
    gradients/NAME    gradient of the loss at the initial parameters
    adam              learning rate, beta1, beta2, epsilon
    adam_losses       (10) losses before each of ten steps of Adam on this batch, without bias correction:
                      m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, x = x - lr m / (sqrt(v) + eps)
and, as an attribute, the version of PyTorch that made it.
"""
import pathlib

import h5py
import numpy as np
import torch
import torch.nn.functional as F

import models

SHAPE = dict(layers=2, hidden=32, heads=2, feed_forward=64, vocabulary=61, positions=20)
BATCH, SEQUENCE = 3, 16
# Single precision holds these and 1 - beta2 exactly; 1 - 0.999 it would miss by 5e-5.
ADAM = dict(learning_rate=2**-10, beta1=1 - 2**-3, beta2=1 - 2**-10, epsilon=2**-20)


def initial_parameters(table):
    """Far from zero everywhere, so that no part of a gradient is too small to be seen."""
    parameters = {}
    for name, shape in table:
        values = 0.15 * torch.randn(shape)
        if name.endswith("norm.weight"):
            values += 1
        parameters[name] = values.double().requires_grad_()
    return parameters


def adam_losses(parameters, loss_of):
    lr, b1, b2, epsilon = ADAM.values()
    x = {n: p.detach().clone().requires_grad_() for n, p in parameters.items()}
    m = {n: torch.zeros_like(p) for n, p in x.items()}
    v = {n: torch.zeros_like(p) for n, p in x.items()}
    losses = []
    for _ in range(10):
        loss = loss_of(x)
        losses.append(loss.item())
        with torch.no_grad():
            for n, g in models.gradients(x, loss).items():
                m[n] = b1 * m[n] + (1 - b1) * g
                v[n] = b2 * v[n] + (1 - b2) * g * g
                x[n] -= lr * m[n] / (v[n].sqrt() + epsilon)
    return losses


def write(architecture, model, table, predicted):
    parameters = initial_parameters(table)
    tokens = torch.randint(SHAPE["vocabulary"], (BATCH, SEQUENCE))
    target = torch.randint(SHAPE["vocabulary"], predicted.shape)
    logits = model(parameters, SHAPE, tokens, predicted)
    loss = F.cross_entropy(logits, target)

    directory = pathlib.Path(__file__).parent / "fixtures"
    directory.mkdir(exist_ok=True)
    with h5py.File(directory / f"{architecture}.h5", "w") as file:
        file.attrs["pytorch"] = np.bytes_(torch.__version__)

        def store(name, values):
            file.create_dataset(name, data=np.asarray(values), track_times=False)

        store("shape", np.int32([*SHAPE.values(), BATCH, SEQUENCE]))
        for name, values in parameters.items():
            store("parameters/" + name, values.detach().float())
        for name, values in models.gradients(parameters, loss).items():
            store("gradients/" + name, values.float())
        store("input", tokens.flatten().int())
        store("predicted", predicted.int())
        store("target", target.int())
        store("logits", logits.detach().float())
        store("loss", [loss.item()])
        store("adam", np.float64([*ADAM.values()]))
        store("adam_losses",
              adam_losses(parameters, lambda p: F.cross_entropy(model(p, SHAPE, tokens, predicted), target)))


if __name__ == "__main__":
    torch.manual_seed(1)
    rows = torch.arange(BATCH * SEQUENCE)
    write("bert", models.bert, models.bert_parameters(SHAPE), rows[torch.randperm(len(rows))[:9]])
    write("gpt", models.gpt, models.gpt_parameters(SHAPE), rows[rows % SEQUENCE != SEQUENCE - 1])
