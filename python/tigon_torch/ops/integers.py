"""Bytes times weights of two bits."""
import torch
from torch import Tensor

from ..arguments import checked, refuse, whole
from ..registration import fake
from .common import _ops


def _of_rows(op, name, t):
    """Everything behind the first dimension as columns."""
    if t.dim() == 0:
        refuse(op, name, "a number", "at least one dimension")
    return t[:, None].flatten(1)


@checked
def matmul_int8_int2(a: Tensor, packed: Tensor) -> Tensor:
    """a times weights that are -1, 0, 1 or 2: a [..., 4 q] in int8, packed [q, n] in uint8, as pack_weights makes it; the
    result [..., n] is exact, in int32.

    Where the weights had k rows, k no multiple of 4, the columns of a beyond k are multiplied by 0. No gradient.
    """
    return _ops.matmul_int8_int2(a, packed)


fake("matmul_int8_int2", lambda a, packed: a.new_empty((*a.shape[:-1], packed.shape[1]), dtype=torch.int32))


@checked
def pack_weights(weight: Tensor) -> Tensor:
    """Weights [k, ...] in int8, each -1, 0, 1 or 2, four to a byte: [q, ...] in uint8, q = ceil(k / 4). A byte has rows r,
    q + r, 2 q + r and 3 q + r; rows beyond k are weights of 0."""
    packed = _ops.pack_weights(_of_rows("pack_weights", "weight", weight))
    return packed.reshape(packed.shape[0], *weight.shape[1:])


fake("pack_weights", lambda weight: weight.new_empty((-(-weight.shape[0] // 4), weight.shape[1]), dtype=torch.uint8))


@checked
def unpack_weights(packed: Tensor, rows: int | None = None) -> Tensor:
    """The weights [rows, ...] in int8 that pack_weights made packed [q, ...] of; rows None is 4 q."""
    columns, q = _of_rows("unpack_weights", "packed", packed), packed.shape[0]
    rows = 4 * q if rows is None else whole("unpack_weights", "rows", rows, 0)
    if -(-rows // 4) != q:
        refuse("unpack_weights", "rows", rows, f"from {max(4 * q - 3, 0)} to {4 * q}, as packed has {q} rows")
    return _ops.unpack_weights(columns, rows).reshape(rows, *packed.shape[1:])


fake("unpack_weights", lambda packed, rows: packed.new_empty((rows, packed.shape[1]), dtype=torch.int8))
