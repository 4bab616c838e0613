"""Divergences of a linear layer's distribution from a teacher's, the logits of neither of which are in memory."""
import torch
from torch import Tensor

from ..arguments import checked, expect_shape, one_a_row, one_of, refuse
from ..declared import operator, sums
from .common import _autocast, _in_type_of, _ops, _wanted
from .divergences import _DIVERGENCE_REDUCTION
from .entropies import fused_linear_cross_entropy

_JSD, _COSINE = range(2)

operator("fused_linear_kl_div(Tensor x, Tensor weight, Tensor? bias, Tensor teacher, Tensor? labels, int reduction,"
         " int ignore_index, bool log_target, float eps, float temperature) -> loss",
         lambda x, weight, bias, teacher, labels, reduction, *_: sums(x, *(teacher.shape if reduction == 3 else ())),
         keeps="x weight bias teacher labels", gradients="x weight bias", early=True)
operator("fused_linear_distillation(Tensor x, Tensor weight, Tensor? bias, Tensor? teacher_x, Tensor? teacher_weight,"
         " Tensor? teacher_bias, Tensor? teacher_logits, Tensor target, int kind, float weight_hard,"
         " float weight_soft, float beta, float temperature, int ignore_index) -> loss soft hard",
         lambda x, weight, bias, tx, tw, tb, tl, target, kind, weight_hard, *_: (
             sums(x), *(sums(x) if weight_hard != 0 else None for _ in range(2))),
         keeps="x weight bias teacher_x teacher_weight teacher_bias teacher_logits target",
         gradients="x weight bias", early=True)


def _teacher(op, x, teacher_x, teacher_weight, teacher_bias, teacher_logits):
    """The teacher's tensors in the type of x: a layer, or logits that were made before."""
    if (teacher_x is None) != (teacher_weight is None) or (teacher_x is None) == (teacher_logits is None):
        refuse(op, "the teacher", "no layer and no logits, or both", "teacher_x and teacher_weight, or teacher_logits")
    return _in_type_of(x, op, teacher_x=teacher_x, teacher_weight=teacher_weight, teacher_bias=teacher_bias,
                       teacher_logits=teacher_logits)


def _distillation(op, kind, x, weight, teacher, target, bias, numbers):
    x, weight = _autocast(x, weight)
    weight, = _in_type_of(x, op, weight=weight)
    one_a_row(op, x, target=target)
    return _ops.fused_linear_distillation(x, weight, bias, *_teacher(op, x, *teacher), target, kind, *numbers,
                                          *_wanted(x, weight, bias))[:3]


@checked
def fused_linear_jsd(x: Tensor, weight: Tensor, teacher_x: Tensor | None = None, teacher_weight: Tensor | None = None,
                     labels: Tensor | None = None, beta: float = 0.5, ignore_index: int = -100,
                     temperature: float = 1.0, bias: Tensor | None = None, teacher_bias: Tensor | None = None,
                     teacher_logits: Tensor | None = None) -> Tensor:
    """jsd of softmax((x weight^T + bias) / temperature) and the teacher's, a mean over the rows whose label is not
    ignore_index; the gradients that are required are made in forward.

    x [..., hidden], weight [vocab, hidden]; of the teacher the same, of another hidden size or vocabulary, or its
    logits [..., vocab]. The teacher is a constant. beta is its weight: 0 is KL(teacher || student), 1 the reverse.
    """
    one_a_row("fused_linear_jsd", x, labels=labels)
    if labels is None:
        target, ignore_index = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device), -100
    else:
        target = torch.where(labels == ignore_index, ignore_index, 0)  # which may be any numbers
    return _distillation("fused_linear_jsd", _JSD, x, weight, (teacher_x, teacher_weight, teacher_bias, teacher_logits),
                         target, bias, (0.0, 1.0, beta, temperature, ignore_index))[0]


def _with_labels(op, kind, x, weight, teacher, target, bias, numbers, return_soft_hard_loss):
    loss, soft, hard = _distillation(op, kind, x, weight, teacher, target, bias, numbers)
    if not return_soft_hard_loss:
        return loss
    weight_hard, weight_soft, *options = numbers
    if weight_hard == 0:  # which the kernel leaves out
        with torch.no_grad():
            hard = fused_linear_cross_entropy(x, weight, target, bias, options[-1])
            soft = loss.detach() / weight_soft if weight_soft != 0 else \
                _distillation(op, kind, x, weight, teacher, target, bias, (0.0, 1.0, *options))[0]
    return loss, soft, hard


@checked
def fused_linear_jsd_distillation(x: Tensor, weight: Tensor, target: Tensor, teacher_x: Tensor | None = None,
                                  teacher_weight: Tensor | None = None, weight_hard: float = 0.5,
                                  weight_soft: float = 0.5, beta: float = 0.5, temperature: float = 1.0,
                                  ignore_index: int = -100, bias: Tensor | None = None,
                                  teacher_bias: Tensor | None = None, teacher_logits: Tensor | None = None,
                                  return_soft_hard_loss: bool = False):
    """weight_hard * cross_entropy(x weight^T + bias, target) + weight_soft * fused_linear_jsd(...); arguments as there.

    With return_soft_hard_loss the result is (loss, soft, hard), of which the first has a gradient.
    """
    return _with_labels("fused_linear_jsd_distillation", _JSD, x, weight,
                        (teacher_x, teacher_weight, teacher_bias, teacher_logits), target, bias,
                        (weight_hard, weight_soft, beta, temperature, ignore_index), return_soft_hard_loss)


@checked
def fused_linear_cosine_distillation(x: Tensor, weight: Tensor, target: Tensor, teacher_x: Tensor | None = None,
                                     teacher_weight: Tensor | None = None, weight_hard: float = 0.5,
                                     weight_soft: float = 0.5, beta: float = 0.5, ignore_index: int = -100,
                                     bias: Tensor | None = None, teacher_bias: Tensor | None = None,
                                     teacher_logits: Tensor | None = None, return_soft_hard_loss: bool = False):
    """The same with beta * (1 - cosine of the student's and the teacher's logits) for the divergence."""
    return _with_labels("fused_linear_cosine_distillation", _COSINE, x, weight,
                        (teacher_x, teacher_weight, teacher_bias, teacher_logits), target, bias,
                        (weight_hard, weight_soft, beta, 1.0, ignore_index), return_soft_hard_loss)


@checked
def fused_linear_kl_div(x: Tensor, weight: Tensor, teacher: Tensor, labels: Tensor | None = None,
                        reduction: str = "batchmean", log_target: bool = False, eps: float = 0.0,
                        temperature: float = 1.0, ignore_index: int = -100, bias: Tensor | None = None) -> Tensor:
    """kl_div(log softmax((x weight^T + bias) / temperature), teacher) over the rows whose label is not ignore_index.

    x [..., hidden], weight [vocab, hidden], teacher [..., vocab]: probabilities, with log_target their logarithms; a
    constant. The gradients that are required are made in forward, with reduction "none" in backward.
    """
    op = "fused_linear_kl_div"
    how = one_of(_DIVERGENCE_REDUCTION, op, "reduction", reduction)
    x, weight = _autocast(x, weight)
    weight, teacher = _in_type_of(x, op, weight=weight, teacher=teacher)
    one_a_row(op, x, labels=labels)
    expect_shape(op, "teacher", teacher, (*x.shape[:-1], weight.shape[0]))
    need = _wanted(x, weight, bias) if reduction != "none" else [False] * 3
    return _ops.fused_linear_kl_div(x, weight, bias, teacher, labels, how, ignore_index, log_target, eps, temperature,
                                    *need)[0]
