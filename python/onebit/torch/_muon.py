"""Muon with one bit as an optimizer of PyTorch."""

import dataclasses
import math
import typing

import numpy as np
import torch

from onebit.torch._average import average
from onebit.torch._freeze import whole_number
from onebit.torch._optimizer import DataParallelOptimizer, quotient

MATRIX, TABLE, VECTOR = range(3)  # what a parameter is, in the order of the vectors
WORD = 32  # elements whose bits are sent as one word


class Hyperparameters(typing.NamedTuple):
    """Those of a group, as numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    lr_factor: float
    table_beta1: float
    iterations: float
    bias_correction: float

    def correction(self, beta, t):
        """What an average with this β is divided by after t steps."""
        return 1 - beta**t if self.bias_correction else 1


@dataclasses.dataclass
class Matrix:
    begin: int  # its first element in the vectors
    rows: int
    columns: int
    group: int  # its number

    def of(self, vector, first):
        """\\returns the matrix, where a vector begins with element `first` of all vectors"""
        begin = self.begin - first
        return vector[begin:begin + self.rows * self.columns].view(self.rows, self.columns)


def orthogonal(m, iterations):
    """\\returns O ≈ U Vᵀ of a matrix M = U Σ Vᵀ by Newton–Schulz; 0 for 0

    X_0 = M / ‖M‖_F, and then X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X: src/linalg/newton_schulz.hpp in Python.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = m.shape[0] > m.shape[1]  # its transpose has the smaller X Xᵀ, and the transposed result
    norm = torch.linalg.vector_norm(m, dtype=torch.float64).clamp_(min=torch.finfo(m.dtype).tiny)
    x = (m.t() if is_tall else m) / norm
    for _ in range(iterations):
        s = x @ x.t()
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.t() if is_tall else x


class OneBitMuon(DataParallelOptimizer):
    """Muon with one bit (`onebit_muon` of docs/reference/algorithms/muon.md) for data-parallel training: each rank has
    its own batch, and no DistributedDataParallel. The ranks are those of OneBitAdam.

    From the first step on a rank sends the signs of what changed in its momentum. The server of a matrix adds up the
    mean of the changes, orthogonalises it by Newton–Schulz, and sends the signs of the result. Both sides have error
    feedback, and each row of a matrix has a scale of its own: a bit for each element and 32 for each row, each way.

    - A parameter of two dimensions is a matrix, whose learning rate is lr · lr_factor · √max(1, rows/columns). If its
      rows are looked up, it is a table, which moves by Adam's quotient of its mean momentum: name it in `embeddings`.
    - Biases and other parameters of at most one dimension are vectors. Their gradients are averaged densely, and they
      move by Adam.
    - Weight decay is decoupled, and lr times weight_decay for each of them.
    - Parameters without a gradient, or that require none, and what ranks agree on in each step: as in OneBitAdam.
    """

    HYPERPARAMETERS = (*DataParallelOptimizer.HYPERPARAMETERS, "lr_factor", "table_beta1", "iterations",
                       "bias_correction")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, lr_factor=5.0,
                 table_beta1=0.6, iterations=5, bias_correction=False, embeddings=(), stacked=None,
                 on_nonfinite="abort", comm=None, **options):
        """Collective, with the same arguments on every rank. Rank 0's parameters go to all ranks. Defaults are those of
        the program's input.

        params: float32 tensors on one device, or groups of them, each with its own arguments up to bias_correction
        betas: β1 of matrices and vectors, and β2 of the variances of tables and vectors
        eps: added to the root of a variance
        lr_factor: μ, by which matrices move faster than tables and vectors
        table_beta1: β1 of tables
        iterations: of Newton–Schulz
        bias_correction: divide Adam's m and v by 1 − βᵗ
        embeddings: the parameters that are tables, such as net.embedding.weight
        stacked: how many matrices a parameter is that holds several, one above the other: {net.qkv.weight: 3}
        on_nonfinite, comm: as OneBitAdam's
        options: of CompressedAllreduce: bits, error_feedback, message_bytes, backend, scale, grid
        """
        tables = [embeddings] if isinstance(embeddings, torch.Tensor) else list(embeddings)
        stacked = dict(stacked or {})
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "lr_factor": lr_factor, "table_beta1": table_beta1, "iterations": iterations,
                                  "bias_correction": bias_correction},
                         on_nonfinite, comm, self._kind_by(set(map(id, tables))))
        self._check_named("embeddings", tables, TABLE, "parameter")
        self._check_named("stacked", stacked, MATRIX, "matrix")
        self._matrices = self._matrices_of(stacked)
        self._sent = max((segment.range.stop for segment in self._segments if segment.kind != VECTOR), default=0)
        if self._sent == 0:
            raise ValueError(self._bad("no parameter is a matrix or an embedding", "use OneBitAdam"))
        self._momentum = self._zeros(self._sent)
        rows, borders = self._rows_and_borders()
        self._begin(self._momentum, dict(**options, group_begins=rows, chunk_borders=borders))
        self._make_server()
        self._vector_momentum, self._vector_variance = (self._zeros(len(self._gradient) - self._sent)
                                                        for _ in range(2))

    def _kind_by(self, tables):
        """tables: the ids of parameters"""
        def kind(p):
            if id(p) in tables:
                return TABLE
            if p.dim() > 2:
                raise ValueError(self._bad(f"a parameter has the shape {tuple(p.shape)}, which is no matrix",
                                           "name it in embeddings, so that it moves by Adam's quotient"))
            return MATRIX if p.dim() == 2 else VECTOR
        return kind

    def _check_named(self, name, params, kind, what):
        """Raises ValueError unless those that the argument `name` has are of this kind, or are not trained."""
        known = {id(p) for _, p, _, _ in self._sent_params(kind)}
        known |= {id(p) for group in self.param_groups for p in group["params"] if not p.requires_grad}
        if not known.issuperset(map(id, params)):
            raise ValueError(self._bad(f"{name} has something that is no {what} of this optimizer",
                                       "give a weight itself, such as net.embedding.weight"))

    def _matrices_of(self, stacked):
        """\\returns the matrices in the order of their elements. stacked: how many a parameter holds"""
        counts, matrices = {id(p): count for p, count in stacked.items()}, []
        for segment, p, begin, _ in self._sent_params(MATRIX):
            count = whole_number("torch.OneBitMuon", "a number of stacked", counts.get(id(p), 1), 1)
            rows, columns = p.shape
            if rows % count:
                raise ValueError(self._bad(f"a parameter of {rows} rows does not hold {count} stacked matrices",
                                           "give a number that divides its rows"))
            matrices += [Matrix(begin + first * columns, rows // count, columns, segment.group)
                         for first in range(0, rows, rows // count)]
        return matrices

    def _sent_params(self, *kinds):
        """Yields each parameter of these kinds with its segment and its range in the vectors."""
        for segment in self._segments:
            end = segment.range.start
            for p in segment.params:
                begin, end = end, end + p.numel()
                if segment.kind in kinds:
                    yield segment, p, begin, end

    def _rows_and_borders(self):
        """\\returns the first elements of what shares a scale, and where chunks may begin: no matrix is cut"""
        rows, borders = [], [np.array([matrix.begin for matrix in self._matrices], np.int64)]
        for segment, p, begin, end in self._sent_params(MATRIX, TABLE):
            rows.append(np.arange(begin, end, p.shape[-1] if p.dim() > 1 else end - begin))
            if segment.kind == TABLE:
                borders.append(rows[-1] if p.dim() > 1 else np.arange(begin, end, WORD))
        return np.concatenate(rows), np.concatenate(borders)

    def _make_server(self):
        """This rank's state as the server of its chunk."""
        self._chunk = self._allreduce.chunk
        self._served = [matrix for matrix in self._matrices if self._chunk.start <= matrix.begin < self._chunk.stop]
        self._server_momentum = self._zeros(self._chunk.stop - self._chunk.start)
        self._table_variance = self._zeros(sum(end - begin for _, begin, end in self._served_tables()))

    def _served_tables(self):
        """\\returns (group, begin, end) of the elements of tables in this rank's chunk, counted from its first one"""
        first, parts = self._chunk.start, []
        for segment in self._segments:
            begin, end = max(segment.range.start, first), min(segment.range.stop, self._chunk.stop)
            if segment.kind == TABLE and begin < end:
                parts.append((segment.group, begin - first, end - first))
        return parts

    def _hyperparameters(self, group):
        return Hyperparameters(
            *super()._hyperparameters(group),
            self._number("lr_factor", group["lr_factor"], lambda value: value > 0, "give a number above 0"),
            self._number("table_beta1", group["table_beta1"], lambda beta: 0 <= beta < 1,
                         "give a number from 0 to below 1"),
            self._number("iterations", group["iterations"], lambda count: count >= 1 and count % 1 == 0,
                         "give a whole number from 1 on"),
            self._number("bias_correction", group["bias_correction"], lambda value: value in (0, 1),
                         "give True or False"))

    def _of_group(self, index):
        return self._hyperparameters(self.param_groups[index])

    def _move(self):
        self._vector_directions()
        self._take_changes()
        self._allreduce.run_served(self._gradient[:self._sent], self._serve)
        for segment in self._segments:
            of_group = self._of_group(segment.group)
            for p, u in segment.places(self._gradient):  # the gradient has become the direction
                if of_group.weight_decay:
                    u.add_(p, alpha=of_group.weight_decay)
                p.sub_(u, alpha=of_group.lr)

    def _vector_directions(self):
        """g ← Adam's direction of vectors, whose gradients are averaged densely."""
        gradients = self._gradient[self._sent:]
        if len(gradients) == 0:
            return
        average(self.comm, gradients)
        for segment in self._segments:
            if segment.kind != VECTOR:
                continue
            of_group, part = self._of_group(segment.group), slice(segment.range.start - self._sent,
                                                                  segment.range.stop - self._sent)
            g, m, v = gradients[part], self._vector_momentum[part], self._vector_variance[part]
            m.mul_(of_group.beta1).add_(g, alpha=1 - of_group.beta1)
            v.mul_(of_group.beta2).addcmul_(g, g, value=1 - of_group.beta2)
            self._quotient(of_group, of_group.beta1, m, v, out=g)

    def _quotient(self, of_group, beta1, m, v, out):
        correction1, correction2 = (of_group.correction(beta, self._steps) for beta in (beta1, of_group.beta2))
        quotient(m, v, of_group.eps, correction2, 1 / correction1, out)

    def _take_changes(self):
        """m ← m + (1 − β1) (g − m), and g ← what this rank's momentum has changed by; of matrices and tables."""
        for segment in self._segments:
            if segment.kind == VECTOR:
                continue
            of_group = self._of_group(segment.group)
            beta1 = of_group.table_beta1 if segment.kind == TABLE else of_group.beta1
            for (_, g), (_, m) in zip(segment.places(self._gradient), segment.places(self._momentum)):
                old = m.clone()
                m.add_(g.sub_(m), alpha=1 - beta1)
                torch.sub(m, old, out=g)  # as it was rounded, so that the changes add up to m

    def _serve(self, chunk):
        """chunk ← the directions of its tensors. It is the mean of what the ranks' momenta have changed by."""
        momentum, first = self._server_momentum.add_(chunk), self._chunk.start
        for matrix in self._served:
            of_group = self._of_group(matrix.group)
            scale = of_group.lr_factor * math.sqrt(max(1, matrix.rows / matrix.columns))
            o = orthogonal(matrix.of(momentum, first), int(of_group.iterations))
            torch.mul(o, scale, out=matrix.of(chunk, first))
        end_of_variance = 0
        for group, begin, end in self._served_tables():
            of_group, m = self._of_group(group), momentum[begin:end]
            begin_of_variance, end_of_variance = end_of_variance, end_of_variance + end - begin
            v = self._table_variance[begin_of_variance:end_of_variance]
            v.mul_(of_group.beta2).addcmul_(m, m, value=1 - of_group.beta2)
            self._quotient(of_group, of_group.table_beta1, m, v, out=chunk[begin:end])

    def _shapes(self):
        return [*super()._shapes(), [(matrix.rows, matrix.columns) for matrix in self._matrices]]

    def _vectors(self):
        return {name: getattr(self, f"_{name}") for name in ("momentum", "server_momentum", "table_variance",
                                                             "vector_momentum", "vector_variance")}
