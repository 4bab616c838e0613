"""Losses as modules."""
from __future__ import annotations

from torch import Tensor, nn

from .. import ops
from ..arguments import check_options, refuse


class _Loss(nn.Module):
    """Keeps the options of an operator and shows them."""

    def __init__(self, **options):
        super().__init__()
        check_options(type(self), options)
        self.options = options

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class CrossEntropyLoss(_Loss):
    """nn.CrossEntropyLoss of logits [..., vocab] and target [...], with z-loss and soft cap. weight [vocab] is that of
    classes; with a return_ flag the result is an ops.CrossEntropyOutput."""

    def __init__(self, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                 softcap: float | None = None, reduction: str = "mean", weight: Tensor | None = None,
                 return_z_loss: bool = False, return_token_accuracy: bool = False,
                 return_predicted_tokens: bool = False, **more):
        if isinstance(ignore_index, Tensor):
            refuse(type(self).__name__, "ignore_index", "a tensor", "an integer (weights of classes are `weight=`)")
        super().__init__(ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap,
                         reduction=reduction, return_z_loss=return_z_loss, return_token_accuracy=return_token_accuracy,
                         return_predicted_tokens=return_predicted_tokens, **more)
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, target: Tensor):
        return ops.cross_entropy(logits, target, class_weight=self.weight, **self.options)


class FusedLinearCrossEntropyLoss(CrossEntropyLoss):
    """The same of hidden states x [..., hidden] and the head's weight [vocab, hidden]. token_scaling multiplies the
    loss of a token by its probability."""

    def __init__(self, *args, token_scaling: bool = False, **options):
        super().__init__(*args, token_scaling=token_scaling, **options)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None):
        return ops.fused_linear_cross_entropy(x, weight, target, bias, class_weight=self.weight, **self.options)


class FusedLinearScaledCrossEntropyLoss(_Loss):
    """The negative log-probability of every target, and its distribution's entropy with return_entropy."""

    def __init__(self, temperature: float = 1.0, ignore_index: int = -100, return_entropy: bool = False):
        super().__init__(temperature=temperature, ignore_index=ignore_index, return_entropy=return_entropy)

    def forward(self, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None):
        return ops.fused_linear_scaled_cross_entropy(x, weight, target, bias, **self.options)


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


class TVDLoss(_Loss):
    """Total variation distance of probabilities [..., vocab]."""

    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100):
        super().__init__(reduction=reduction, ignore_index=ignore_index)

    def forward(self, student_probs: Tensor, teacher_probs: Tensor, labels: Tensor | None = None) -> Tensor:
        return ops.tvd(student_probs, teacher_probs, labels, **self.options)


class FusedLinearKLDivLoss(_Loss):
    """KLDiv of the softmax of a linear layer's output from a teacher's probabilities."""

    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100, temperature: float = 1.0,
                 eps: float = 0.0, log_target: bool = False):
        super().__init__(reduction=reduction, ignore_index=ignore_index, temperature=temperature, eps=eps,
                         log_target=log_target)

    def forward(self, x: Tensor, weight: Tensor, teacher: Tensor, labels: Tensor | None = None,
                bias: Tensor | None = None) -> Tensor:
        return ops.fused_linear_kl_div(x, weight, teacher, labels, bias=bias, **self.options)


class FusedLinearJSD(_Loss):
    """JSD of a student's linear layer and a teacher's, or the teacher's logits; labels say which rows count."""

    def __init__(self, beta: float = 0.5, ignore_index: int = -100, temperature: float = 1.0):
        super().__init__(beta=beta, ignore_index=ignore_index, temperature=temperature)

    def forward(self, x: Tensor, weight: Tensor, teacher_x: Tensor | None = None, teacher_weight: Tensor | None = None,
                labels: Tensor | None = None, bias: Tensor | None = None, teacher_bias: Tensor | None = None,
                teacher_logits: Tensor | None = None) -> Tensor:
        return ops.fused_linear_jsd(x, weight, teacher_x, teacher_weight, labels, bias=bias, teacher_bias=teacher_bias,
                                    teacher_logits=teacher_logits, **self.options)


class FusedLinearJSDLoss(_Loss):
    """Distillation: weight_hard times cross entropy of labels, weight_soft times JSD from a teacher. With
    return_soft_hard_loss: (loss, soft, hard)."""

    operator = staticmethod(ops.fused_linear_jsd_distillation)

    def __init__(self, weight_hard: float = 0.5, weight_soft: float = 0.5, beta: float = 0.5, ignore_index: int = -100,
                 temperature: float = 1.0, return_soft_hard_loss: bool = False):
        super().__init__(weight_hard=weight_hard, weight_soft=weight_soft, beta=beta, ignore_index=ignore_index,
                         temperature=temperature, return_soft_hard_loss=return_soft_hard_loss)

    def forward(self, x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, target: Tensor,
                bias: Tensor | None = None, teacher_bias: Tensor | None = None):
        return self.operator(x, weight, target, teacher_x, teacher_weight, bias=bias, teacher_bias=teacher_bias,
                             **self.options)


class FusedLinearCosineSimilarityLoss(FusedLinearJSDLoss):
    """The same with beta * (1 - cosine of the logits) for the divergence; the temperature has no effect on it."""

    operator = staticmethod(ops.fused_linear_cosine_distillation)

    def __init__(self, weight_hard: float = 0.5, weight_soft: float = 0.5, beta: float = 0.5, ignore_index: int = -100,
                 return_soft_hard_loss: bool = False):
        super().__init__(weight_hard, weight_soft, beta, ignore_index, return_soft_hard_loss=return_soft_hard_loss)
        del self.options["temperature"]


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
