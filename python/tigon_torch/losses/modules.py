"""Losses as modules."""
from __future__ import annotations

from torch import Tensor, nn

from .. import ops


class _Loss(nn.Module):
    """Keeps the options of an operator and shows them."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class CrossEntropyLoss(_Loss):
    """nn.CrossEntropyLoss of logits [..., vocab] and target [...], with z-loss and soft cap."""

    def __init__(self, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                 softcap: float | None = None, reduction: str = "mean"):
        super().__init__(ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap,
                         reduction=reduction)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.cross_entropy(logits, target, **self.options)


class FusedLinearCrossEntropyLoss(CrossEntropyLoss):
    """The same of hidden states x [..., hidden] and the head's weight [vocab, hidden]."""

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        return ops.fused_linear_cross_entropy(x, weight, target, bias, **self.options)


class JSD(_Loss):
    """Generalised Jensen-Shannon divergence of log-probabilities [..., vocab]; beta is the weight of the teacher."""

    def __init__(self, beta: float = 0.5, ignore_index: int = -100):
        super().__init__(beta=beta, ignore_index=ignore_index)

    def forward(self, student_log_probs: Tensor, teacher_log_probs: Tensor, labels: Tensor | None = None) -> Tensor:
        return ops.jsd(student_log_probs, teacher_log_probs, labels=labels, **self.options)


class KLDiv(_Loss):
    """nn.KLDivLoss: divergence of the teacher from the student's log-probabilities. batchmean divides by rows."""

    def __init__(self, reduction: str = "batchmean", log_target: bool = False, eps: float = 0.0):
        super().__init__(reduction=reduction, log_target=log_target, eps=eps)

    def forward(self, student_log_probs: Tensor, teacher: Tensor) -> Tensor:
        return ops.kl_div(student_log_probs, teacher, **self.options)


class FusedLinearDPOLoss(_Loss):
    """Direct preference optimisation; `loss` is one of sigmoid, hinge, exo_pair, nca_pair, robust, bco_pair, sppo_hard,
    apo_zero, apo_down, discopop, ipo. The reference is a layer (ref_x, ref_weight, ref_bias), or its log-probabilities
    ref_logps of every sequence or token, or none. With metrics=True: (loss, results)."""

    def __init__(self, beta: float = 0.1, loss: str = "sigmoid", label_smoothing: float = 0.0,
                 discopop_tau: float = 0.05, compute_nll_loss: bool = False, average_log_prob: bool = False,
                 alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
        super().__init__(beta=beta, loss=loss, label_smoothing=label_smoothing, discopop_tau=discopop_tau,
                         compute_nll_loss=compute_nll_loss, average_log_prob=average_log_prob, alpha=alpha,
                         ignore_index=ignore_index, metrics=metrics)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                ref_x: Tensor | None = None, ref_weight: Tensor | None = None, ref_bias: Tensor | None = None,
                ref_logps: Tensor | None = None, nll_target: Tensor | None = None):
        return ops.fused_linear_dpo(x, weight, target, bias, ref_x, ref_weight, ref_bias, ref_logps, nll_target,
                                    **self.options)


class FusedLinearORPOLoss(_Loss):
    """Odds-ratio preference optimisation, without a reference."""

    def __init__(self, beta: float = 0.1, compute_nll_loss: bool = True, alpha: float = 1.0, ignore_index: int = -100,
                 metrics: bool = False):
        super().__init__(beta=beta, compute_nll_loss=compute_nll_loss, alpha=alpha, ignore_index=ignore_index,
                         metrics=metrics)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None,
                nll_target: Tensor | None = None):
        return ops.fused_linear_orpo(x, weight, target, bias, nll_target, **self.options)


class FusedLinearSimPOLoss(_Loss):
    """Simple preference optimisation, with the margin gamma and without a reference."""

    def __init__(self, beta: float = 0.1, gamma: float = 0.5, label_smoothing: float = 0.0,
                 compute_nll_loss: bool = False, alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
        super().__init__(beta=beta, gamma=gamma, label_smoothing=label_smoothing, compute_nll_loss=compute_nll_loss,
                         alpha=alpha, ignore_index=ignore_index, metrics=metrics)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None):
        return ops.fused_linear_simpo(x, weight, target, bias, **self.options)


class FusedLinearCPOLoss(_Loss):
    """Contrastive preference optimisation, without a reference."""

    def __init__(self, beta: float = 0.1, label_smoothing: float = 0.0, compute_nll_loss: bool = True,
                 average_log_prob: bool = False, alpha: float = 1.0, ignore_index: int = -100, metrics: bool = False):
        super().__init__(beta=beta, label_smoothing=label_smoothing, compute_nll_loss=compute_nll_loss,
                         average_log_prob=average_log_prob, alpha=alpha, ignore_index=ignore_index, metrics=metrics)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None):
        return ops.fused_linear_cpo(x, weight, target, bias, **self.options)


class FusedLinearKTOLoss(_Loss):
    """Kahneman-Tversky optimisation of sequences that are desirable or not; kl: one number, one a sequence, or none."""

    def __init__(self, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0,
                 average_log_prob: bool = False, ignore_index: int = -100, metrics: bool = False):
        super().__init__(beta=beta, desirable_weight=desirable_weight, undesirable_weight=undesirable_weight,
                         average_log_prob=average_log_prob, ignore_index=ignore_index, metrics=metrics)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, desirable: Tensor, bias: Tensor | None = None,
                kl: Tensor | None = None, ref_x: Tensor | None = None, ref_weight: Tensor | None = None,
                ref_bias: Tensor | None = None, ref_logps: Tensor | None = None):
        return ops.fused_linear_kto(x, weight, target, desirable, bias, kl, ref_x, ref_weight, ref_bias, ref_logps,
                                    **self.options)


class GRPOLoss(_Loss):
    """The losses of the GRPO family on logits [batch, len or len + 1, vocab] of sampled ids [batch, len].

    type: grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, gmpo; further options as ops.grpo_loss has them."""

    def __init__(self, type: str = "dapo", level: str = "token", temperature: float = 1.0, beta: float = 0.0,
                 epsilon_low: float = 0.2, epsilon_high: float = 0.2, **options):
        super().__init__(type=type, level=level, temperature=temperature, beta=beta, epsilon_low=epsilon_low,
                         epsilon_high=epsilon_high, **options)

    def forward(self, logits: Tensor, ids: Tensor, advantages: Tensor, old_logp: Tensor | None = None,
                ref_logp: Tensor | None = None, mask: Tensor | None = None, sampling_ratio: Tensor | None = None):
        return ops.grpo_loss(logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio, **self.options)


class FusedLinearGRPOLoss(GRPOLoss):
    """The same of hidden states x [batch, len or len + 1, hidden] and the head's weight [vocab, hidden]. The reference
    is ref_logp, or a layer (ref_x, ref_weight, ref_bias)."""

    def forward(self, x: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor, bias: Tensor | None = None,
                old_logp: Tensor | None = None, ref_logp: Tensor | None = None, mask: Tensor | None = None,
                sampling_ratio: Tensor | None = None, ref_x: Tensor | None = None, ref_weight: Tensor | None = None,
                ref_bias: Tensor | None = None):
        return ops.fused_linear_grpo(x, weight, ids, advantages, bias, old_logp, ref_logp, mask, sampling_ratio, ref_x,
                                     ref_weight, ref_bias, **self.options)
