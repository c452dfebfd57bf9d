#!/usr/bin/env python3
"""Writes the fixtures of 1-bit dense layers: layers, quantisers and whole models as PyTorch computes them in float64.

    pip install torch h5py
    python3 tests/reference/make_fqt_fixtures.py

philox.py, fqt.py, fqt_layer.py and models.py define what is computed, without a look at src. fqt_cases.py has the
cases. Inputs and parameters are single precision numbers; everything else is computed in float64. No decision is near
to another one, so single precision makes the same.

fixtures/fqt_layer.h5
    shapes            S names of shapes, SHAPE below
    cases             C names of cases, CASE below
    SHAPE/extents     N, K, D
    SHAPE/x           (N, K) float32; some |x| ≥ 1, in the shape `tails` also 0, 1 and −1 exactly
    SHAPE/W           (D, K) float32; the same
    SHAPE/gamma       (D) float32 Γ; the last is negative, but not in the shape `constant_rows`
    SHAPE/bias        (D) float32
    SHAPE/d_output    (N, D) float32 ∇y
    SHAPE/y           (N, D) (sign x · sign Wᵀ) ⊙ Γ + bias
    SHAPE/d_gamma     (D) ∇Γ
    SHAPE/d_bias      (D)
    CASE/shape        name of the shape, a text
    CASE/kind         qat, psq, scq or fqt, a text
    CASE/pruning      bernoulli, systematic or topk, a text; `none` except for fqt
    CASE/key          bits, seed, step, first_sample, layer; int64
    CASE/d_x          (N, K) ∇x
    CASE/d_W          (D, K) ∇W
  and for the cases WITH_QUANTIZER the quantiser of G = ∇y ⊙ Γ by AXIS = rows (product 0, groups are rows of G) and,
  except for psq, columns (product 1, groups are columns of G)
    CASE/AXIS/Z       (groups) least element
    CASE/AXIS/R       (groups) greatest minus least
    CASE/AXIS/p       (groups) probability to be kept; for topk 1 or 0
    CASE/AXIS/kept    (groups) uint8, 1 for a group that is kept
    CASE/AXIS/q       (groups × elements) uint8, group after group; 0 in groups that are not kept

fixtures/fqt_model.h5: MODEL is bert, gpt or classifier (of BERT, without mean pooling), KIND a quantisation of KINDS.
The layers qkv, attention.output, feed_forward.input and feed_forward.output are 1-bit; no dropout, no next-sentence
head. Layer l of the model numbers them 4 l to 4 l + 3.
    MODEL/shape       layers, hidden, heads, feed_forward, vocabulary, positions, batch, sequence, classes; int32
    MODEL/tensors     names of the parameters in their order; a 1-bit layer has NAME.weight, NAME.gamma, NAME.bias
    MODEL/sizes       number of elements of each; int32
    MODEL/x           all parameters in this order, flat, float32
    MODEL/input       (B*T) tokens, int32
    MODEL/predicted   (P) rows of (B*T), int32
    MODEL/target      (P) tokens, or classes, int32
    MODEL/loss        (1) mean cross entropy over the P rows, float64; the same for every kind
    MODEL/KIND/key    bits, seed, step, first_sample; int64
    MODEL/KIND/gradient  of the loss at x, flat, float32
"""
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F

import fqt
import fqt_cases
import fqt_layer
import models
from fqt_cases import CASES, PRUNING_MARGIN, SHAPES, WITH_QUANTIZER

# In a model, errors add up. An input of a 1-bit layer differs from 0 and ±1 by at least SIGN_MARGIN.
MODEL_ROUNDING_MARGIN, SIGN_MARGIN = 1e-5, 1e-5

# Extents that are not multiples of 32 bits.
MODEL = dict(layers=2, hidden=18, heads=2, feed_forward=36, vocabulary=50, positions=10)
BATCH, SEQUENCE, CLASSES = 3, 8, 5
KINDS = {"qat": ("qat", 1, None), "psq_1": ("psq", 1, None), "scq_2": ("scq", 2, None),
         "fqt_4": ("fqt", 4, "systematic")}
STEP, FIRST_SAMPLE = 6, 9
INNER = "attention.qkv", "attention.output", "feed_forward.input", "feed_forward.output"

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


def run_layer(inputs, case, dtype=torch.float64):
    """Outputs of a case by name, and the Record of its decisions."""
    _, kind, bits, pruning, key = case
    record = fqt_layer.Record()
    x, W, gamma, bias = (torch.from_numpy(inputs[name]).to(dtype).requires_grad_()
                         for name in ("x", "W", "gamma", "bias"))
    quantization = fqt_layer.Quantization(kind, bits, pruning)
    y = fqt_layer.binary_linear(x, W, gamma, bias, quantization, key, record)
    y.backward(torch.from_numpy(inputs["d_output"]).to(dtype))
    found = {"y": y, "d_x": x.grad, "d_W": W.grad, "d_gamma": gamma.grad, "d_bias": bias.grad}
    return {name: values.detach().numpy() for name, values in found.items()}, record


class Writer:
    """An HDF5 file in fixtures/."""

    def __init__(self, name):
        FIXTURES.mkdir(exist_ok=True)
        self.file = h5py.File(FIXTURES / name, "w", libver=("v108", "v110"))
        self.file.attrs["pytorch"] = np.bytes_(torch.__version__)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def store(self, name, values):
        self.file.create_dataset(name, data=np.asarray(values), track_times=False)


def write_layers():
    with Writer("fqt_layer.h5") as file:
        file.store("shapes", np.bytes_([*SHAPES]))
        file.store("cases", np.bytes_([*CASES]))
        inputs = {shape: fqt_cases.clear_inputs(shape) for shape in SHAPES}
        for shape, values in inputs.items():
            file.store(f"{shape}/extents", np.int32(SHAPES[shape]))
            for name, array in values.items():
                file.store(f"{shape}/{name}", array)
            outputs, _ = run_layer(values, CASES["qat"])
            for name in ("y", "d_gamma", "d_bias"):
                file.store(f"{shape}/{name}", outputs[name])
        for name, case in CASES.items():
            shape, kind, bits, pruning, key = case
            outputs, record = run_layer(inputs[shape], case)
            for text, value in (("shape", shape), ("kind", kind), ("pruning", pruning or "none")):
                file.store(f"{name}/{text}", np.bytes_(value))
            # A seed has 64 bits without a sign.
            file.store(f"{name}/key", np.array([bits, *key], dtype=np.uint64).astype(np.int64))
            file.store(f"{name}/d_x", outputs["d_x"])
            file.store(f"{name}/d_W", outputs["d_W"])
            if name in WITH_QUANTIZER:
                for (_, product), found in record.quantized.items():
                    for field, values in fqt_cases.stored(found).items():
                        file.store(f"{name}/{('rows', 'columns')[product]}/{field}", values)


def model_parameters(table, random):
    """Values by name, float32. A fifth of the 1-bit layers' |W| and about a third of their |x| are ≥ 1."""
    parameters = {}
    for name, shape in table.items():
        layer, _, kind = name.rpartition(".")
        binary = layer + ".gamma" in table
        values = random.standard_normal(shape)
        if kind == "gamma":
            values = table[layer + ".weight"][1] ** -0.5 * (1 + 0.2 * values)
        elif binary and kind == "weight":
            values *= 0.8
        else:
            values = 0.15 * values + name.endswith("norm.weight")
        parameters[name] = values.astype("f4")
    return parameters


def run_model(model, shape, batch, parameters, quantization, seed, dtype=torch.float64):
    """Loss, flat gradient and the Record of the decisions."""
    record = fqt_layer.Record()

    def inner(p, name, x):
        _, number, layer = name.split(".", 2)
        key = fqt.Key(seed, STEP, FIRST_SAMPLE, 4 * int(number) + INNER.index(layer))
        y = fqt_layer.binary_linear(x.flatten(0, 1), p[name + ".weight"], p[name + ".gamma"], p[name + ".bias"],
                                    fqt_layer.Quantization(*quantization), key, record)
        return y.view(*x.shape[:2], -1)

    p = {name: torch.from_numpy(values).to(dtype).requires_grad_() for name, values in parameters.items()}
    tokens, predicted, target = (torch.from_numpy(values) for values in batch)
    loss = F.cross_entropy(model(p, shape, tokens, predicted, inner), target)
    gradient = torch.cat([g.flatten() for g in models.gradients(p, loss).values()])
    return loss.item(), gradient.numpy(), record


def clear_model(model, shape, table, rows, outputs):
    """The first parameters and batch, by seed, with which no input of a 1-bit layer is near to 0 or ±1."""
    for seed in range(1, 1000):
        random = np.random.RandomState(seed)
        parameters = model_parameters(table, random)
        batch = (random.randint(shape["vocabulary"], size=(BATCH, SEQUENCE)), rows,
                 random.randint(outputs, size=len(rows)))
        record = run_model(model, shape, batch, parameters, KINDS["qat"], 0)[2]
        if min(record.sign_margin, record.edge_margin) > SIGN_MARGIN:
            return parameters, batch
    raise AssertionError("every seed has an input near to 0 or ±1")


def clear_seed(*arguments):
    """The first seed of the draws with which no decision is near to another one, and what `run_model` finds with it."""
    for seed in range(1, 1000):
        found = run_model(*arguments, seed)
        rounding, pruning = fqt_cases.least_margins(found[2].quantized.values())
        if rounding > MODEL_ROUNDING_MARGIN and pruning > PRUNING_MARGIN:
            return seed, found
    raise AssertionError("every seed has a decision near to another one")


def write_models():
    rows = np.arange(BATCH * SEQUENCE)
    chosen = {"bert": (models.bert, models.bert_parameters(MODEL, True, False), np.array([20, 3, 11, 0, 14, 9])),
              "gpt": (models.gpt, models.gpt_parameters(MODEL, True), rows[rows % SEQUENCE != SEQUENCE - 1]),
              "classifier": (models.classifier, models.classifier_parameters({**MODEL, "classes": CLASSES}, True),
                             rows[::SEQUENCE])}
    with Writer("fqt_model.h5") as file:
        for name, (model, table, predicted) in chosen.items():
            table, classes = dict(table), CLASSES if name == "classifier" else 0
            parameters, batch = clear_model(model, MODEL, table, predicted, classes or MODEL["vocabulary"])
            file.store(f"{name}/shape", np.int32([*MODEL.values(), BATCH, SEQUENCE, classes]))
            file.store(f"{name}/tensors", np.bytes_([*parameters]))
            file.store(f"{name}/sizes", np.int32([values.size for values in parameters.values()]))
            file.store(f"{name}/x", np.concatenate([values.ravel() for values in parameters.values()]))
            for field, values in zip(("input", "predicted", "target"), batch):
                file.store(f"{name}/{field}", values.astype(np.int32).ravel())
            for kind, quantization in KINDS.items():
                seed, (loss, gradient, _) = clear_seed(model, MODEL, batch, parameters, quantization)
                file.store(f"{name}/{kind}/key", np.int64([quantization[1], seed, STEP, FIRST_SAMPLE]))
                file.store(f"{name}/{kind}/gradient", gradient.astype("f4"))
            file.store(f"{name}/loss", [loss])


def main():
    write_layers()
    write_models()


if __name__ == "__main__":
    sys.exit(main())
