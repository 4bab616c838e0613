"""Preference losses."""
from torch import Tensor

from ..arguments import checked, one_of
from ..declared import Made
from ..registration import autograd, fake
from .common import _autocast, _half, _in_type_of, _layer_gradients, _ops, _or_none, _sums, _wanted, _wide


_DPO = {name: i for i, name in enumerate(
    ["sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop",
     "ipo"])}
_NAMES = ("dpo", "orpo", "simpo", "cpo", "kto")
_DPO_KIND, _ORPO, _SIMPO, _CPO, _KTO = range(5)


def _preference(kind, x, weight, target, bias, reference=(None,) * 4, nll_target=None, desirable=None, kl=None, dpo=0,
                ignore_index=-100, nll=False, average=False, beta=0.1, label_smoothing=0.0, discopop_tau=0.05,
                gamma=0.0, alpha=1.0, desirable_weight=1.0, undesirable_weight=1.0, metrics=False):
    x, weight, ref_x, ref_weight = _autocast(x, weight, *reference[:2])
    if _half(x):
        x, weight, ref_x, ref_weight = map(_wide, (x, weight, ref_x, ref_weight))
    weight, ref_x, ref_weight = _in_type_of(x, f"fused_linear_{_NAMES[kind]}", weight=weight, ref_x=ref_x,
                                            ref_weight=ref_weight)
    numbers = [beta, label_smoothing, discopop_tau, gamma, alpha, desirable_weight, undesirable_weight]
    loss, results = _ops.fused_linear_preference(
        x, weight, bias, target, nll_target, desirable, kl, ref_x, ref_weight, *reference[2:], kind, dpo, ignore_index,
        nll, average, [float(n) for n in numbers], *_wanted(x, weight, bias))[:2]
    if not metrics:
        return loss
    if kind == _KTO:
        return loss, dict(zip(("logps", "rewards"), results.chunk(2)))
    pairs = target.shape[0] // 2
    names = ("chosen_logps", "rejected_logps", "chosen_rewards", "rejected_rewards", "nll_loss", "metrics")
    return loss, dict(zip(names, results.split([pairs] * 4 + [1, 2])))


@checked
def fused_linear_dpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ref_x: Tensor | None = None,
                     ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, ref_logps: Tensor | None = None,
                     nll_target: Tensor | None = None, loss: str = "sigmoid", beta: float = 0.1,
                     label_smoothing: float = 0.0, discopop_tau: float = 0.05, compute_nll_loss: bool = False,
                     average_log_prob: bool = False, alpha: float = 1.0, ignore_index: int = -100,
                     metrics: bool = False):
    """Direct preference optimisation of hidden states x [2 pairs, len, hidden], the chosen sequences first, with
    target [2 pairs, len] and the layer weight [vocab, hidden].

    The reference is a layer (ref_x, ref_weight, ref_bias) or its log-probabilities ref_logps, of every sequence or of
    every token. loss names one of tigon::dpo_loss. With metrics=True the result is (loss, dict of results).
    """
    return _preference(_DPO_KIND, x, weight, target, bias, (ref_x, ref_weight, ref_bias, ref_logps), nll_target,
                       dpo=one_of(_DPO, "fused_linear_dpo", "loss", loss), beta=beta, label_smoothing=label_smoothing,
                       discopop_tau=discopop_tau, nll=compute_nll_loss, average=average_log_prob, alpha=alpha,
                       ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_orpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                      nll_target: Tensor | None = None, beta: float = 0.1, compute_nll_loss: bool = True,
                      alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
    """Odds-ratio preference optimisation; arguments as fused_linear_dpo."""
    return _preference(_ORPO, x, weight, target, bias, nll_target=nll_target, beta=beta, nll=compute_nll_loss,
                       average=True, alpha=alpha, ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_simpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, beta: float = 0.1,
                       gamma: float = 0.5, label_smoothing: float = 0.0, compute_nll_loss: bool = False,
                       alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
    """Simple preference optimisation, with the margin gamma; arguments as fused_linear_dpo."""
    return _preference(_SIMPO, x, weight, target, bias, beta=beta, gamma=gamma, label_smoothing=label_smoothing,
                       nll=compute_nll_loss, average=True, alpha=alpha, ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_cpo(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, beta: float = 0.1,
                     label_smoothing: float = 0.0, compute_nll_loss: bool = True, average_log_prob: bool = False,
                     alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
    """Contrastive preference optimisation; arguments as fused_linear_dpo."""
    return _preference(_CPO, x, weight, target, bias, beta=beta, label_smoothing=label_smoothing, nll=compute_nll_loss,
                       average=average_log_prob, alpha=alpha, ignore_index=ignore_index, metrics=metrics)


@checked
def fused_linear_kto(x: Tensor, weight: Tensor, target: Tensor, desirable: Tensor, bias: Tensor | None = None,
                     kl: Tensor | None = None, ref_x: Tensor | None = None, ref_weight: Tensor | None = None,
                     ref_bias: Tensor | None = None, ref_logps: Tensor | None = None, beta: float = 0.1,
                     desirable_weight: float = 1.0, undesirable_weight: float = 1.0, average_log_prob: bool = False,
                     ignore_index: int = -100, metrics: bool = False):
    """Kahneman-Tversky optimisation of x [batch, len, hidden] with target [batch, len]; desirable [batch], 0 or not;
    kl: one number, or one a sequence. Reference and metrics as fused_linear_dpo."""
    if kl is not None and kl.dim() == 0:
        kl = kl.reshape(1)
    return _preference(_KTO, x, weight, target, bias, (ref_x, ref_weight, ref_bias, ref_logps),
                       desirable=desirable != 0, kl=kl, beta=beta, desirable_weight=desirable_weight,
                       undesirable_weight=undesirable_weight, average=average_log_prob, ignore_index=ignore_index, metrics=metrics)


@fake("fused_linear_preference")
def _(x, weight, bias, target, nll_target, desirable, kl, ref_x, ref_weight, ref_bias, ref_logps, kind, dpo,
      ignore_index, nll, average, scalars, *need):
    n = target.shape[0]
    results = x.new_empty((2 * n if kind == _KTO else n // 2 * 4 + 3,), dtype=_sums(x))
    return x.new_empty((), dtype=_sums(x)), results, *_layer_gradients(x, weight, bias, *need)


def _preference_context(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.options, need = inputs[11:17], inputs[17:]
    ctx.made = Made(output[2:] if any(need) else None)
    ctx.save_for_backward(*inputs[:11])


def _preference_backward(ctx, upstream, *_):
    need = ctx.needs_input_grad[:3]
    if upstream is None:
        return (None,) * 20
    gradients = ctx.made.take(upstream)
    if gradients is None:
        gradients = Made(_ops.fused_linear_preference(*ctx.saved_tensors, *ctx.options, *need)[2:]).take(upstream)
    return tuple(map(_or_none, gradients, need)) + (None,) * 17


autograd("fused_linear_preference", _preference_backward, _preference_context)
