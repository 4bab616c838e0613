"""Cross entropy of logits, and of a linear layer's output; log-probabilities of tokens."""
import typing

import torch
from torch import Tensor

from ..arguments import above_zero, checked, one_a_row, one_of, refuse
from ..declared import operator, sums
from ..dtensors import of_vocabulary
from .common import _REDUCTION, _autocast, _in_type_of, _ops, _wanted
from .products import linear


class CrossEntropyOutput(typing.NamedTuple):
    """What was not called for is None; the loss alone has a gradient."""
    loss: Tensor
    z_loss: Tensor | None = None  # the part of the loss that it is
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None  # -1 for a token that is ignored


def _results(x, target, reduction, metrics):
    def number():
        return sums(x, *(target.shape if reduction == _REDUCTION["none"] else ()))
    wanted = [metrics & bit != 0 for bit in (1, 2, 4)]
    return (number(), number() if wanted[0] else None, number() if wanted[1] else None,
            x.new_empty(target.shape, dtype=torch.int64) if wanted[2] else None)


operator("cross_entropy(Tensor logits, Tensor target, Tensor? class_weight, int ignore_index, int reduction,"
         " float label_smoothing, float z_loss, float softcap, int metrics)"
         " -> loss z_loss_part token_accuracy predicted_tokens",
         lambda logits, target, class_weight, ignore_index, reduction, *options: _results(
             logits, target, reduction, options[-1]),
         keeps="logits target class_weight", gradients="logits")
operator("fused_linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight,"
         " int ignore_index, int reduction, float label_smoothing, float z_loss, float softcap, bool token_scaling,"
         " int metrics) -> loss z_loss_part token_accuracy predicted_tokens",
         lambda x, weight, bias, target, class_weight, ignore_index, reduction, *options: _results(
             x, target, reduction, options[-1]),
         keeps="x weight bias target class_weight", gradients="x weight bias", early=True)
operator("fused_linear_scaled_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index,"
         " float temperature, bool entropy) -> nll of_entropy",
         lambda x, weight, bias, target, ignore_index, temperature, entropy: (
             sums(x, *target.shape), sums(x, *target.shape) if entropy else None),
         keeps="x weight bias target", gradients="x weight bias", upstream="nll of_entropy")


def _with_metrics(results, *wanted):
    loss, *metrics = results
    return CrossEntropyOutput(loss, *(m if w else None for m, w in zip(metrics, wanted))) if any(wanted) else loss


def _metrics(*wanted):
    return sum(bit for bit, w in zip((1, 2, 4), wanted) if w)


def _as_it_is(op, options):
    for name, value in options.items():
        if isinstance(value, Tensor) or value not in (None, False, 0.0):
            refuse(op, name, "given", "none, where the vocabulary is split over ranks")


def _split_cross_entropy(logits, target, ignore_index=-100, label_smoothing=0.0, reduction="mean", group=None,
                         shard=None, **options):
    from .ranks import vocab_parallel_cross_entropy

    one_of(_REDUCTION, "cross_entropy", "reduction", reduction)
    _as_it_is("cross_entropy", options)
    loss = vocab_parallel_cross_entropy(logits, target, group, ignore_index, label_smoothing, shard=shard)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / (target != ignore_index).sum()


def _split_fused_linear(x, weight, target, bias=None, class_weight=None, return_z_loss=False,
                        return_token_accuracy=False, return_predicted_tokens=False, **options):
    from .ranks import vocab_parallel_fused_linear_cross_entropy

    _as_it_is("fused_linear_cross_entropy", dict(
        class_weight=class_weight, return_z_loss=return_z_loss, return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens))
    return vocab_parallel_fused_linear_cross_entropy(x, weight, target, bias, **options)


def _split_scaled(**arguments):
    from .ranks import vocab_parallel_scaled_cross_entropy

    return vocab_parallel_scaled_cross_entropy(**arguments)


@of_vocabulary("logits", "logits", -1, _split_cross_entropy)
@checked
def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0,
                  z_loss: float = 0.0, softcap: float | None = None, reduction: str = "mean",
                  class_weight: Tensor | None = None, return_z_loss: bool = False, return_token_accuracy: bool = False,
                  return_predicted_tokens: bool = False):
    """Cross entropy over the last axis of logits [..., vocab] with target [...], in f32 (f64 for f64).

    z_loss is the weight of lse^2; softcap makes softcap * tanh(logits / softcap) of the logits first; class_weight
    [vocab] is that of torch.nn.functional.cross_entropy. Nothing but the logits is kept for backward. With a return_
    flag the result is a CrossEntropyOutput.
    """
    how = one_of(_REDUCTION, "cross_entropy", "reduction", reduction)
    one_a_row("cross_entropy", logits, target=target)
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    results = _ops.cross_entropy(logits, target, class_weight, ignore_index, how, label_smoothing, z_loss,
                                 above_zero("cross_entropy", "softcap", softcap), _metrics(*wanted))
    return _with_metrics(results, *wanted)


def _layer(op, x, weight):
    """x and the weight in one type, that of autocast where it is on."""
    x, weight = _autocast(x, weight)
    weight, = _in_type_of(x, op, weight=weight)
    return x, weight


@of_vocabulary("x", "weight", 0, _split_fused_linear)
@checked
def fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                               ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                               softcap: float | None = None, reduction: str = "mean",
                               class_weight: Tensor | None = None, token_scaling: bool = False,
                               return_z_loss: bool = False, return_token_accuracy: bool = False,
                               return_predicted_tokens: bool = False):
    """cross_entropy(x weight^T + bias, target) without the logits ever being in memory as a whole.

    x [..., hidden], weight [vocab, hidden], target [...]. token_scaling multiplies the loss of every token by its
    probability, which is taken for a constant. The gradients that are required are made in forward; with reduction
    "none", and in a second backward through a retained graph, the logits are made again.
    """
    op = "fused_linear_cross_entropy"
    how = one_of(_REDUCTION, op, "reduction", reduction)
    cap = above_zero(op, "softcap", softcap)
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    x, weight = _layer(op, x, weight)
    one_a_row(op, x, target=target)
    if weight.shape[-1:] == (0,) and not token_scaling:
        return cross_entropy(linear(x, weight, bias), target, ignore_index, label_smoothing, z_loss, softcap, reduction,
                             class_weight, *wanted)
    need = _wanted(x, weight, bias) if how != _REDUCTION["none"] else [False] * 3
    results = _ops.fused_linear_cross_entropy(x, weight, bias, target, class_weight, ignore_index, how, label_smoothing,
                                              z_loss, cap, token_scaling, _metrics(*wanted), *need)
    return _with_metrics(results[:4], *wanted)


@of_vocabulary("x", "weight", 0, _split_scaled)
@checked
def fused_linear_scaled_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                                      temperature: float = 1.0, ignore_index: int = -100,
                                      return_entropy: bool = False):
    """The negative log-probability of every target under softmax((x weight^T + bias) / temperature), in f32 (f64 for
    f64), and with return_entropy the entropy of that distribution, too: (nll, entropy).

    x [..., hidden], weight [vocab, hidden], target [...]. Both have gradients; 0 for a target that is ignore_index. The
    logits are never in memory as a whole; backward makes them again.
    """
    x, weight = _layer("fused_linear_scaled_cross_entropy", x, weight)
    one_a_row("fused_linear_scaled_cross_entropy", x, target=target)
    nll, entropy = _ops.fused_linear_scaled_cross_entropy(x, weight, bias, target, ignore_index, temperature,
                                                          return_entropy)
    return (nll, entropy) if return_entropy else nll
