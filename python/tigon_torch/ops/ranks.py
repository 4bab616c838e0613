"""Losses of a vocabulary that is split over the ranks of a process group of torch.distributed.

Every rank has the classes [first, first + n) of its shard, in the order of ranks; by default the vocabulary in equal parts.
What goes over tokens (hidden states, targets, results, the gradient of hidden states) is the same on all ranks, and all
ranks call forward and backward together. group=None: one rank, which has the whole vocabulary.
"""
from torch import Tensor

from ..arguments import above_zero, checked, one_a_row, one_of, refuse, whole
from ..declared import operator, sums
from ..ranks import of_group
from .common import _REDUCTION, _ops, _wanted
from .entropies import _layer, fused_linear_scaled_cross_entropy

_SHARD = "int group, int rank, int ranks, int first, int vocab"
operator(f"vocab_parallel_cross_entropy(Tensor logits, Tensor target, {_SHARD}, int ignore_index,"
         " float label_smoothing, bool megatron, bool partition) -> loss top rest",
         lambda logits, target, *_: tuple(sums(logits, *target.shape) for _ in range(3)),
         keeps="logits target top rest", gradients="logits")
operator(f"vocab_parallel_fused_linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, {_SHARD},"
         " int ignore_index, int reduction, float label_smoothing, float z_loss, float softcap, bool token_scaling)"
         " -> loss",
         lambda x, weight, bias, target, group, rank, ranks, first, vocab, ignore_index, reduction, *_: sums(
             x, *(target.shape if reduction == _REDUCTION["none"] else ())),
         keeps="x weight bias target", gradients="x weight bias", early=True)
operator(f"vocab_parallel_scaled_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, {_SHARD},"
         " int ignore_index, float temperature, bool entropy) -> nll of_entropy",
         lambda x, weight, bias, target, *numbers: (
             sums(x, *target.shape), sums(x, *target.shape) if numbers[-1] else None),
         keeps="x weight bias target", gradients="x weight bias", upstream="nll of_entropy")


def _shard(op, group, cols, shard):
    """The numbers of a shard of so many classes."""
    number, rank, ranks = of_group(group)
    if shard is None:
        return number, rank, ranks, rank * cols, ranks * cols
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        refuse(op, "shard", repr(shard), "(the first class, the size of the vocabulary), or None")
    return number, rank, ranks, *(whole(op, "shard", n, 0) for n in shard)


@checked
def vocab_parallel_cross_entropy(logits: Tensor, target: Tensor, group=None, ignore_index: int = -100,
                                 label_smoothing: float = 0.0, formula: str = "pytorch", mode: str = "global",
                                 shard=None) -> Tensor:
    """The loss of every token of logits [..., classes of this rank] and target [...] in the whole vocabulary. One exchange
    of a few numbers a token in forward, none in backward.

    Smoothing as by "pytorch" or "megatron", over the whole vocabulary ("global") or over this rank's "partition" of it.
    """
    op = "vocab_parallel_cross_entropy"
    megatron = one_of({"pytorch": False, "megatron": True}, op, "formula", formula)
    partition = one_of({"global": False, "partition": True}, op, "mode", mode)
    one_a_row(op, logits, target=target)
    return _ops.vocab_parallel_cross_entropy(logits, target, *_shard(op, group, logits.shape[-1], shard), ignore_index,
                                             label_smoothing, megatron, partition)[0]


@checked
def vocab_parallel_fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                                              group=None, ignore_index: int = -100, label_smoothing: float = 0.0,
                                              z_loss: float = 0.0, softcap: float | None = None,
                                              reduction: str = "mean", token_scaling: bool = False,
                                              shard=None) -> Tensor:
    """fused_linear_cross_entropy of a head whose weight [classes of this rank, hidden] and bias are split over ranks."""
    op = "vocab_parallel_fused_linear_cross_entropy"
    how = one_of(_REDUCTION, op, "reduction", reduction)
    x, weight = _layer(op, x, weight)
    one_a_row(op, x, target=target)
    need = _wanted(x, weight, bias) if how != _REDUCTION["none"] else [False] * 3
    return _ops.vocab_parallel_fused_linear_cross_entropy(
        x, weight, bias, target, *_shard(op, group, weight.shape[0], shard), ignore_index, how, label_smoothing, z_loss,
        above_zero(op, "softcap", softcap), token_scaling, *need)[0]


@checked
def vocab_parallel_scaled_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                                        group=None, temperature: float = 1.0, ignore_index: int = -100,
                                        return_entropy: bool = False, shard=None):
    """fused_linear_scaled_cross_entropy of a head whose weight [classes of this rank, hidden] and bias are split over
    ranks."""
    op = "vocab_parallel_scaled_cross_entropy"
    x, weight = _layer(op, x, weight)
    one_a_row(op, x, target=target)
    nll, entropy = _ops.vocab_parallel_scaled_cross_entropy(
        x, weight, bias, target, *_shard(op, group, weight.shape[0], shard), ignore_index, temperature, return_entropy)
    return (nll, entropy) if return_entropy else nll


@checked
def logprobs(hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None = None, temperature: float = 1.0,
             entropy: bool = False, ignore_index: int = -100, group=None, shard=None):
    """log softmax((hidden weight^T + bias) / temperature) at the tokens [...], and with entropy=True the entropies as
    well: what policy losses are made of. 0 for a token that is ignore_index.

    hidden [..., hidden], weight [vocab, hidden], or with a group [classes of this rank, hidden]. Both results have
    gradients; the logits are never in memory as a whole, and backward makes them again.
    """
    if group is None and shard is None:
        results = fused_linear_scaled_cross_entropy(hidden, weight, tokens, bias, temperature, ignore_index, entropy)
    else:
        results = vocab_parallel_scaled_cross_entropy(hidden, weight, tokens, bias, group, temperature, ignore_index,
                                                      entropy, shard)
    return (-results[0], results[1]) if entropy else -results
