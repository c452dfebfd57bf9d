#!/usr/bin/env python3
"""Writes the fixtures of 1-bit dense layers: layers, quantisers and whole models as PyTorch computes them in float64.

    pip install torch h5py
    python3 tests/reference/make_fqt_fixtures.py

fqt.py, fqt_layer.py and philox.py define what is computed, without a look at src. Inputs and parameters are single
precision numbers; everything else is in float64. No decision is near to another one: see MARGINS below.

fixtures/fqt_layer.h5
    shapes            S names of shapes, SHAPE below
    cases             C names of cases, CASE below
    SHAPE/extents     N, K, D
    SHAPE/x           (N, K) float32; some |x| ≥ 1, in the shape `tails` also 0, 1 and −1 exactly
    SHAPE/W           (D, K) float32; the same
    SHAPE/gamma       (D) float32 Γ; one is negative
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
  and for each case of fqt, and one each of psq and scq, the quantiser of G = ∇y ⊙ Γ by AXIS = rows (product 0, groups
  are rows) and, except for psq, columns (product 1, groups are columns of G)
    CASE/AXIS/Z       (groups) least element
    CASE/AXIS/R       (groups) greatest minus least
    CASE/AXIS/p       (groups) probability to be kept; for topk 1 or 0
    CASE/AXIS/kept    (groups) uint8, 1 for a group that is kept
    CASE/AXIS/q       (groups × elements) uint8, group after group; 0 in groups that are not kept
"""
import pathlib
import sys

import h5py
import numpy as np
import torch

import fqt
import fqt_layer

# Another arithmetic decides alike, if it computes an element of G to within this part of R, a probability or a sum of
# them to within PRUNING, and (for models) what a 1-bit layer reads to within SIGN.
ROUNDING_MARGIN, PRUNING_MARGIN = 1e-6, 1e-5

#         N,  K,  D
SHAPES = {"tails": (35, 12, 33), "words": (32, 64, 16), "one_row": (1, 70, 6), "one_output": (9, 33, 1),
          "one_input": (13, 1, 5)}
# name: shape, kind, bits, pruning, key
CASES = {
    "qat": ("tails", "qat", 1, None, fqt.Key(1, 0, 0, 0)),
    "psq_1": ("tails", "psq", 1, None, fqt.Key(2, 3, 0, 0)),
    "psq_8": ("tails", "psq", 8, None, fqt.Key(3, 4, 8, 1)),
    "scq_1": ("tails", "scq", 1, None, fqt.Key(4, 70000, 16, 2)),
    "scq_2": ("tails", "scq", 2, None, fqt.Key(5, 2**31 + 5, 24, 3)),
    "fqt_1": ("tails", "fqt", 1, "systematic", fqt.Key(6, 7, 1, 4)),
    "fqt_2_systematic": ("tails", "fqt", 2, "systematic", fqt.Key(7, 8, 2, 5)),
    "fqt_4_systematic": ("tails", "fqt", 4, "systematic", fqt.Key(12345678901234567890, 9, 3, 6)),
    "fqt_8_systematic": ("tails", "fqt", 8, "systematic", fqt.Key(9, 10, 4, 7)),
    "fqt_2_bernoulli": ("tails", "fqt", 2, "bernoulli", fqt.Key(10, 11, 5, 8)),
    "fqt_4_bernoulli": ("tails", "fqt", 4, "bernoulli", fqt.Key(11, 12, 6, 9)),
    "fqt_2_topk": ("tails", "fqt", 2, "topk", fqt.Key(12, 13, 7, 10)),
    "fqt_4_topk": ("tails", "fqt", 4, "topk", fqt.Key(13, 14, 8, 11)),
    "words_fqt_4": ("words", "fqt", 4, "systematic", fqt.Key(15, 16, 2**31 + 1, 32767 // 2)),
    "one_row_scq_1": ("one_row", "scq", 1, None, fqt.Key(16, 17, 11, 1)),
    "one_row_fqt_4": ("one_row", "fqt", 4, "systematic", fqt.Key(17, 18, 12, 2)),
    "one_output_psq_1": ("one_output", "psq", 1, None, fqt.Key(18, 19, 13, 3)),
    "one_output_fqt_2": ("one_output", "fqt", 2, "bernoulli", fqt.Key(19, 20, 14, 4)),
    "one_input_fqt_2": ("one_input", "fqt", 2, "systematic", fqt.Key(20, 21, 15, 5)),
}
WITH_QUANTIZER = {"psq_1", "scq_2"} | {name for name in CASES if name.startswith("fqt")}
FIXTURES = pathlib.Path(__file__).parent / "fixtures"


def layer_inputs(name, seed):
    """x, W, Γ, bias and ∇y of a shape, float32. The rows of ∇y differ in size, as they do between samples."""
    random = np.random.RandomState(seed)  # its streams are the same in every version of numpy
    N, K, D = SHAPES[name]
    x, W = 0.8 * random.standard_normal((N, K)), 0.6 * random.standard_normal((D, K))
    gamma = K**-0.5 * (1 + 0.3 * random.standard_normal(D))
    gamma[-1] *= -1
    d_output = random.standard_normal((N, D)) * np.exp(random.standard_normal((N, 1)))
    if name == "tails":
        x[0, :3], W[0, :3] = (0, 1, -1), (1, 0, -1)
    return {"x": x.astype("f4"), "W": W.astype("f4"), "gamma": gamma.astype("f4"),
            "bias": random.standard_normal(D).astype("f4"), "d_output": d_output.astype("f4")}


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


def margins(record):
    """The least rounding and pruning margins of a record."""
    quantized = record.quantized.values()
    return (min((found.rounding_margin for found in quantized), default=1.0),
            min((found.pruning_margin for found in quantized), default=1.0))


def clear_inputs(shape):
    """The first inputs, by seed, with which no case of a shape has a decision near to another one."""
    cases = [case for case in CASES.values() if case[0] == shape]
    for seed in range(1, 1000):
        inputs = layer_inputs(shape, seed)
        found = [margins(run_layer(inputs, case)[1]) for case in cases]
        if all(rounding > ROUNDING_MARGIN and pruning > PRUNING_MARGIN for rounding, pruning in found):
            return inputs
    raise AssertionError(f"{shape}: every seed has a decision near to another one")


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
        inputs = {shape: clear_inputs(shape) for shape in SHAPES}
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
            assert min(margins(record)) > 1e-9, name
            for text, value in (("shape", shape), ("kind", kind), ("pruning", pruning or "none")):
                file.store(f"{name}/{text}", np.bytes_(value))
            # A seed has 64 bits without a sign.
            file.store(f"{name}/key", np.array([bits, *key], dtype=np.uint64).astype(np.int64))
            file.store(f"{name}/d_x", outputs["d_x"])
            file.store(f"{name}/d_W", outputs["d_W"])
            if name not in WITH_QUANTIZER:
                continue
            for (_, product), found in record.quantized.items():
                axis = f"{name}/{'columns' if product == fqt.WEIGHT else 'rows'}"
                for field in ("Z", "R", "p"):
                    file.store(f"{axis}/{field}", getattr(found, field))
                file.store(f"{axis}/kept", found.kept.astype(np.uint8))
                file.store(f"{axis}/q", found.q.astype(np.uint8).ravel())


def main():
    write_layers()


if __name__ == "__main__":
    sys.exit(main())
