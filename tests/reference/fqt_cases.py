"""The cases of fixtures/fqt_layer.h5 (make_fqt_fixtures.py), in numpy alone, so that a test can make them again."""
import numpy as np

import fqt

# Another arithmetic decides alike if it computes each element of G to within this part of R, and each probability or
# sum of probabilities to within PRUNING_MARGIN.
ROUNDING_MARGIN, PRUNING_MARGIN = 1e-6, 1e-5

#         N,  K,  D
SHAPES = {"tails": (35, 12, 33), "words": (32, 64, 8), "one_row": (1, 70, 6), "one_output": (9, 33, 1),
          "one_input": (13, 1, 5), "constant_rows": (10, 8, 7), "constant_columns": (9, 6, 12)}
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
    "constant_rows_psq_1": ("constant_rows", "psq", 1, None, fqt.Key(21, 22, 16, 6)),
    "constant_rows_fqt_2": ("constant_rows", "fqt", 2, "systematic", fqt.Key(22, 23, 17, 7)),
    "constant_columns_fqt_2": ("constant_columns", "fqt", 2, "bernoulli", fqt.Key(23, 24, 18, 8)),
    "constant_columns_fqt_4": ("constant_columns", "fqt", 4, "systematic", fqt.Key(24, 25, 19, 9)),
}
# Cases whose quantisers are stored. In the others a program may drop groups of zeros or keep them.
WITH_QUANTIZER = {"psq_1", "scq_2"} | {name for name in CASES if name.startswith("fqt") and name != "fqt_1"}


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
    # G = ∇y ⊙ Γ is constant in two rows and zero in one; the same of columns.
    if name == "constant_rows":
        gamma[:], d_output[2], d_output[5], d_output[7] = 0.25, 1.5, -0.5, 0
    if name == "constant_columns":
        gamma[4], d_output[:, 1], d_output[:, 6] = 0, 1.5, -0.5
    return {"x": x.astype("f4"), "W": W.astype("f4"), "gamma": gamma.astype("f4"),
            "bias": random.standard_normal(D).astype("f4"), "d_output": d_output.astype("f4")}


def quantized(inputs, case):
    """The quantisers of a case by product."""
    _, kind, bits, pruning, key = case
    G = inputs["d_output"].astype("f8") * inputs["gamma"].astype("f8")
    if kind == "qat":
        return {}
    found = {fqt.INPUT: fqt.quantize(G, bits, pruning, key, fqt.INPUT)}
    if kind != "psq":
        found[fqt.WEIGHT] = fqt.quantize(G.T, bits, pruning, key, fqt.WEIGHT)
    return found


def stored(found):
    """The datasets of a quantiser."""
    return {"Z": found.Z, "R": found.R, "p": found.p, "kept": found.kept.astype(np.uint8),
            "q": found.q.astype(np.uint8).ravel()}


def least_margins(quantizers):
    """The least rounding and pruning margins."""
    quantizers = list(quantizers)
    return (min((found.rounding_margin for found in quantizers), default=1.0),
            min((found.pruning_margin for found in quantizers), default=1.0))


def clear_inputs(shape):
    """The first inputs, by seed, with which no case of a shape has a decision near to another one."""
    cases = [case for case in CASES.values() if case[0] == shape]
    for seed in range(1, 1000):
        inputs = layer_inputs(shape, seed)
        found = (least_margins(quantized(inputs, case).values()) for case in cases)
        if all(rounding > ROUNDING_MARGIN and pruning > PRUNING_MARGIN for rounding, pruning in found):
            return inputs
    raise AssertionError(f"{shape}: every seed has a decision near to another one")
