"""An MLP in tiles of tokens."""
from torch import Tensor

from ..arguments import checked, one_of, whole
from ..declared import like, operator
from .common import _autocast, _in_type_of, _ops

operator("tiled_mlp(Tensor x, Tensor gate, Tensor up, Tensor down, bool geglu, int shards) -> y",
         lambda x, *_: like(x), keeps="x gate up down", gradients="x gate up down")


@checked
def tiled_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str = "swiglu",
              num_shards: int | None = None) -> Tensor:
    """(act(x gate^T) * (x up^T)) down^T of x [..., hidden], some tokens at a time: of what lies between nothing is kept,
    and backward makes it again. gate and up [intermediate, hidden], down [hidden, intermediate]; activation is "swiglu"
    or "geglu" (tanh). num_shards None: ceil(tokens / hidden)."""
    geglu = one_of({"swiglu": False, "geglu": True}, "tiled_mlp", "activation", activation)
    shards = 0 if num_shards is None else whole("tiled_mlp", "num_shards", num_shards, 1)
    x, gate, up, down = _autocast(x, gate, up, down)
    gate, up, down = _in_type_of(x, "tiled_mlp", gate=gate, up=up, down=down)
    return _ops.tiled_mlp(x, gate, up, down, geglu, shards)
