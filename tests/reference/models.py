"""BERT, GPT and BERT's classifier in plain PyTorch operations, without a look at src/nn; only the names and the order
of the parameters are agreed on. make_fixtures.py and make_fqt_fixtures.py run them.

`shape` is a dict of layers, hidden, heads, feed_forward, vocabulary, positions and, for the classifier, classes.
The dense layers of the encoder or decoder have a Γ between weight and bias if `binary`, and `inner` computes them.
"""
import torch
import torch.nn.functional as F


def dense(name, out, in_, binary=False):
    yield name + ".weight", (out, in_)
    if binary:
        yield name + ".gamma", (out,)
    yield name + ".bias", (out,)


def norm(name, shape):
    yield from ((name + ".weight", (shape["hidden"],)), (name + ".bias", (shape["hidden"],)))


def encoder_parameters(shape, binary):
    h, f = shape["hidden"], shape["feed_forward"]
    yield "embeddings.word.weight", (shape["vocabulary"], h)
    yield "embeddings.position.weight", (shape["positions"], h)
    yield "embeddings.type.weight", (2, h)
    yield from norm("embeddings.norm", shape)
    for i in range(shape["layers"]):
        yield from dense(f"encoder.{i}.attention.qkv", 3 * h, h, binary)
        yield from dense(f"encoder.{i}.attention.output", h, h, binary)
        yield from norm(f"encoder.{i}.attention.norm", shape)
        yield from dense(f"encoder.{i}.feed_forward.input", f, h, binary)
        yield from dense(f"encoder.{i}.feed_forward.output", h, f, binary)
        yield from norm(f"encoder.{i}.feed_forward.norm", shape)


def bert_parameters(shape, binary=False, next_sentence_head=True):
    h = shape["hidden"]
    yield from encoder_parameters(shape, binary)
    if next_sentence_head:
        yield from dense("pooler", h, h)
        yield from dense("next_sentence", 2, h)
    yield from dense("head.dense", h, h)
    yield from norm("head.norm", shape)
    yield "head.output.bias", (shape["vocabulary"],)


def classifier_parameters(shape, binary=False):
    yield from encoder_parameters(shape, binary)
    yield from dense("classifier.dense", shape["hidden"], shape["hidden"])
    yield from dense("classifier.output", shape["classes"], shape["hidden"])


def gpt_parameters(shape, binary=False):
    h, f = shape["hidden"], shape["feed_forward"]
    yield "embeddings.word.weight", (shape["vocabulary"], h)
    yield "embeddings.position.weight", (shape["positions"], h)
    for i in range(shape["layers"]):
        yield from norm(f"decoder.{i}.attention.norm", shape)
        yield from dense(f"decoder.{i}.attention.qkv", 3 * h, h, binary)
        yield from dense(f"decoder.{i}.attention.output", h, h, binary)
        yield from norm(f"decoder.{i}.feed_forward.norm", shape)
        yield from dense(f"decoder.{i}.feed_forward.input", f, h, binary)
        yield from dense(f"decoder.{i}.feed_forward.output", h, f, binary)
    yield from norm("norm", shape)


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p[name + ".bias"])


def layer_norm(p, name, x, epsilon):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], epsilon)


def attention(p, shape, name, x, causal, inner):
    batch, sequence, hidden = x.shape
    heads = shape["heads"]
    query, key, value = (t.view(batch, sequence, heads, hidden // heads).transpose(1, 2)
                         for t in inner(p, name + ".qkv", x).chunk(3, dim=-1))
    scores = query @ key.transpose(-2, -1) / (hidden // heads) ** 0.5
    if causal:
        hidden_positions = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden_positions, float("-inf"))
    context = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, sequence, hidden)
    return inner(p, name + ".output", context)


def feed_forward(p, name, x, inner):
    return inner(p, name + ".output", F.gelu(inner(p, name + ".input", x), approximate="tanh"))


def encoder(p, shape, tokens, inner):
    epsilon = 1e-12
    x = p["embeddings.word.weight"][tokens] + p["embeddings.position.weight"][: tokens.shape[1]]
    x = layer_norm(p, "embeddings.norm", x + p["embeddings.type.weight"][0], epsilon)
    for i in range(shape["layers"]):
        name = f"encoder.{i}"
        branch = attention(p, shape, name + ".attention", x, False, inner)
        x = layer_norm(p, name + ".attention.norm", x + branch, epsilon)
        branch = feed_forward(p, name + ".feed_forward", x, inner)
        x = layer_norm(p, name + ".feed_forward.norm", x + branch, epsilon)
    return x


def bert(p, shape, tokens, predicted, inner=linear):
    x = encoder(p, shape, tokens, inner)
    x = F.gelu(linear(p, "head.dense", x.flatten(0, 1)[predicted]), approximate="tanh")
    x = layer_norm(p, "head.norm", x, 1e-12)
    return x @ p["embeddings.word.weight"].T + p["head.output.bias"]


def classifier(p, shape, tokens, predicted, inner=linear):
    x = encoder(p, shape, tokens, inner)
    return linear(p, "classifier.output", linear(p, "classifier.dense", x.flatten(0, 1)[predicted]).tanh())


def gpt(p, shape, tokens, predicted, inner=linear):
    epsilon = 1e-5
    x = p["embeddings.word.weight"][tokens] + p["embeddings.position.weight"][: tokens.shape[1]]
    for i in range(shape["layers"]):
        name = f"decoder.{i}"
        normed = layer_norm(p, name + ".attention.norm", x, epsilon)
        x = x + attention(p, shape, name + ".attention", normed, True, inner)
        x = x + feed_forward(p, name + ".feed_forward", layer_norm(p, name + ".feed_forward.norm", x, epsilon), inner)
    x = layer_norm(p, "norm", x, epsilon)
    return x.flatten(0, 1)[predicted] @ p["embeddings.word.weight"].T


def gradients(parameters, loss):
    """The gradient of each parameter; zero for one without an effect on the loss."""
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(parameters.items(), found)}
