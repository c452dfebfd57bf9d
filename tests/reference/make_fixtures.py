#!/usr/bin/env python3
"""Writes the fixtures of tests/unit/nn_parity_test.cpp: tiny BERT and GPT models as PyTorch computes them.

    pip install torch h5py
    python3 tests/reference/make_fixtures.py

The models are written here in plain PyTorch operations, without a look at src/nn; only the names of the parameters
are agreed on. Parameters are single precision numbers; PyTorch computes with them in double precision, so that the
test measures the error of our single precision alone.

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

SHAPE = dict(layers=2, hidden=32, heads=2, feed_forward=64, vocabulary=61, positions=20)
BATCH, SEQUENCE = 3, 16
# Single precision holds these and 1 - beta2 exactly; 1 - 0.999 it would miss by 5e-5.
ADAM = dict(learning_rate=2**-10, beta1=1 - 2**-3, beta2=1 - 2**-10, epsilon=2**-20)


def bert_parameters():
    h, f, v = SHAPE["hidden"], SHAPE["feed_forward"], SHAPE["vocabulary"]
    yield "embeddings.word.weight", (v, h)
    yield "embeddings.position.weight", (SHAPE["positions"], h)
    yield "embeddings.type.weight", (2, h)
    yield from norm("embeddings.norm")
    for i in range(SHAPE["layers"]):
        yield from dense(f"encoder.{i}.attention.qkv", 3 * h, h)
        yield from dense(f"encoder.{i}.attention.output", h, h)
        yield from norm(f"encoder.{i}.attention.norm")
        yield from dense(f"encoder.{i}.feed_forward.input", f, h)
        yield from dense(f"encoder.{i}.feed_forward.output", h, f)
        yield from norm(f"encoder.{i}.feed_forward.norm")
    yield from dense("pooler", h, h)
    yield from dense("next_sentence", 2, h)
    yield from dense("head.dense", h, h)
    yield from norm("head.norm")
    yield "head.output.bias", (v,)


def gpt_parameters():
    h, f, v = SHAPE["hidden"], SHAPE["feed_forward"], SHAPE["vocabulary"]
    yield "embeddings.word.weight", (v, h)
    yield "embeddings.position.weight", (SHAPE["positions"], h)
    for i in range(SHAPE["layers"]):
        yield from norm(f"decoder.{i}.attention.norm")
        yield from dense(f"decoder.{i}.attention.qkv", 3 * h, h)
        yield from dense(f"decoder.{i}.attention.output", h, h)
        yield from norm(f"decoder.{i}.feed_forward.norm")
        yield from dense(f"decoder.{i}.feed_forward.input", f, h)
        yield from dense(f"decoder.{i}.feed_forward.output", h, f)
    yield from norm("norm")


def dense(name, out, in_):
    yield name + ".weight", (out, in_)
    yield name + ".bias", (out,)


def norm(name):
    yield from ((name + ".weight", (SHAPE["hidden"],)), (name + ".bias", (SHAPE["hidden"],)))


def initial_parameters(table):
    """Far from zero everywhere, so that no part of a gradient is too small to be seen."""
    parameters = {}
    for name, shape in table:
        values = 0.15 * torch.randn(shape)
        if name.endswith("norm.weight"):
            values += 1
        parameters[name] = values.double().requires_grad_()
    return parameters


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p[name + ".bias"])


def layer_norm(p, name, x, epsilon):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], epsilon)


def attention(p, name, x, causal):
    batch, sequence, hidden = x.shape
    heads = SHAPE["heads"]
    query, key, value = (t.view(batch, sequence, heads, hidden // heads).transpose(1, 2)
                         for t in linear(p, name + ".qkv", x).chunk(3, dim=-1))
    scores = query @ key.transpose(-2, -1) / (hidden // heads) ** 0.5
    if causal:
        hidden_positions = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden_positions, float("-inf"))
    context = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, sequence, hidden)
    return linear(p, name + ".output", context)


def feed_forward(p, name, x):
    return linear(p, name + ".output", F.gelu(linear(p, name + ".input", x), approximate="tanh"))


def bert(p, tokens, predicted):
    epsilon = 1e-12
    x = p["embeddings.word.weight"][tokens] + p["embeddings.position.weight"][: tokens.shape[1]]
    x = layer_norm(p, "embeddings.norm", x + p["embeddings.type.weight"][0], epsilon)
    for i in range(SHAPE["layers"]):
        name = f"encoder.{i}"
        x = layer_norm(p, name + ".attention.norm", x + attention(p, name + ".attention", x, False), epsilon)
        x = layer_norm(p, name + ".feed_forward.norm", x + feed_forward(p, name + ".feed_forward", x), epsilon)
    x = F.gelu(linear(p, "head.dense", x.flatten(0, 1)[predicted]), approximate="tanh")
    x = layer_norm(p, "head.norm", x, epsilon)
    return x @ p["embeddings.word.weight"].T + p["head.output.bias"]


def gpt(p, tokens, predicted):
    epsilon = 1e-5
    x = p["embeddings.word.weight"][tokens] + p["embeddings.position.weight"][: tokens.shape[1]]
    for i in range(SHAPE["layers"]):
        name = f"decoder.{i}"
        x = x + attention(p, name + ".attention", layer_norm(p, name + ".attention.norm", x, epsilon), True)
        x = x + feed_forward(p, name + ".feed_forward", layer_norm(p, name + ".feed_forward.norm", x, epsilon))
    x = layer_norm(p, "norm", x, epsilon)
    return x.flatten(0, 1)[predicted] @ p["embeddings.word.weight"].T


def gradients(parameters, loss):
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(parameters.items(), found)}


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
            for n, g in gradients(x, loss).items():
                m[n] = b1 * m[n] + (1 - b1) * g
                v[n] = b2 * v[n] + (1 - b2) * g * g
                x[n] -= lr * m[n] / (v[n].sqrt() + epsilon)
    return losses


def write(architecture, model, table, predicted):
    parameters = initial_parameters(table)
    tokens = torch.randint(SHAPE["vocabulary"], (BATCH, SEQUENCE))
    target = torch.randint(SHAPE["vocabulary"], predicted.shape)
    logits = model(parameters, tokens, predicted)
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
        for name, values in gradients(parameters, loss).items():
            store("gradients/" + name, values.float())
        store("input", tokens.flatten().int())
        store("predicted", predicted.int())
        store("target", target.int())
        store("logits", logits.detach().float())
        store("loss", [loss.item()])
        store("adam", np.float64([*ADAM.values()]))
        store("adam_losses", adam_losses(parameters, lambda p: F.cross_entropy(model(p, tokens, predicted), target)))


if __name__ == "__main__":
    torch.manual_seed(1)
    rows = torch.arange(BATCH * SEQUENCE)
    write("bert", bert, bert_parameters(), rows[torch.randperm(len(rows))[:9]])
    write("gpt", gpt, gpt_parameters(), rows[rows % SEQUENCE != SEQUENCE - 1])
