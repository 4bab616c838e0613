"""Liger's loss classes."""
import torch

from .. import losses, ops
from . import functional as F


class LigerCrossEntropyLoss(losses.CrossEntropyLoss):
    def __init__(self, weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
                 softcap=None, return_z_loss=False, return_token_accuracy=False, return_predicted_tokens=False,
                 impl=None, mode=None):
        super().__init__(ignore_index, label_smoothing, lse_square_scale, softcap, reduction, weight, return_z_loss,
                         return_token_accuracy, return_predicted_tokens)

    def forward(self, _input, target):
        return super().forward(_input, target)


class LigerVocabParallelCrossEntropy(torch.nn.Module):
    def __init__(self, ignore_index=-100, label_smoothing=0.0, reduction="none", label_smoothing_formula="pytorch",
                 label_smoothing_mode="global"):
        super().__init__()
        F._as_it_is("LigerVocabParallelCrossEntropy", reduction=(reduction, "none"))
        self.options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing,
                        "formula": label_smoothing_formula, "mode": label_smoothing_mode}

    def forward(self, vocab_parallel_logits, target, tp_group=None):
        return ops.vocab_parallel_cross_entropy(vocab_parallel_logits, target, tp_group, **self.options)


class LigerFusedLinearCrossEntropyLoss(losses.FusedLinearCrossEntropyLoss):
    """Called with the weight first."""

    def __init__(self, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
                 softcap=None, return_z_loss=False, accum_dtype=None, use_token_scaling=False,
                 return_token_accuracy=False, return_predicted_tokens=False):
        super().__init__(ignore_index, label_smoothing, lse_square_scale, softcap, reduction, ce_weight, return_z_loss,
                         return_token_accuracy, return_predicted_tokens, token_scaling=use_token_scaling)
        self.accum_dtype = accum_dtype

    def forward(self, lin_weight, _input, target, bias=None):
        F._sums_of("LigerFusedLinearCrossEntropyLoss", _input, self.accum_dtype)
        return super().forward(_input, lin_weight, target, bias)


class LigerFusedLinearJSD(losses.FusedLinearJSD):
    def __init__(self, jsd_beta=0.5, ignore_index=-100, temperature=1.0, accum_dtype=None):
        super().__init__(jsd_beta, ignore_index, temperature)
        self.accum_dtype = accum_dtype

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, shift_labels=None):
        F._sums_of("LigerFusedLinearJSD", student_input, self.accum_dtype)
        return super().forward(student_input, student_weight, teacher_input, teacher_weight, shift_labels)


class LigerFusedLinearKLDivLoss(losses.FusedLinearKLDivLoss):
    def __init__(self, reduction="batchmean", ignore_index=-100, temperature=1.0, eps=1e-10, accum_dtype=None):
        super().__init__(reduction, ignore_index, temperature, eps)
        self.accum_dtype = accum_dtype

    def forward(self, student_input, student_weight, target, shift_labels=None):
        F._sums_of("LigerFusedLinearKLDivLoss", student_input, self.accum_dtype)
        return super().forward(student_input, student_weight, target, shift_labels)


class LigerJSD(losses.JSD):
    def forward(self, log_q, log_p, shift_labels=None):
        return super().forward(log_q, log_p, shift_labels)


class LigerKLDIVLoss(torch.nn.KLDivLoss):
    def __init__(self, eps=1e-10, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred, y_true):
        return ops.kl_div(y_pred, y_true, self.log_target, self.eps, self.reduction)


class LigerTVDLoss(losses.TVDLoss):
    def forward(self, p, q, shift_labels=None):
        return super().forward(p, q, shift_labels)


class LigerFusedCETVDLoss(torch.nn.Module):
    """(cross entropy, total variation distance) of every token. Of three operators, of which the softmax of student and
    teacher are in memory; in f32 where logits have 16 bits, since the signs of rounded differences would be others."""

    def __init__(self, ignore_index=-100):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, student_logits, teacher_logits, target):
        student, teacher = (z.float() if z.element_size() == 2 else z for z in (student_logits, teacher_logits))
        ce = ops.cross_entropy(student, target, self.ignore_index, reduction="none")
        with torch.no_grad():
            teacher = ops.softmax(teacher)
        distance = ops.tvd(ops.softmax(student), teacher, target, "none", self.ignore_index)
        return ce, distance.sum(-1)


class _Distillation:
    def forward(self, student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias=None,
                teacher_bias=None):
        return super().forward(student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias,
                               teacher_bias)


class LigerFusedLinearJSDLoss(_Distillation, losses.FusedLinearJSDLoss):
    def __init__(self, weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0,
                 compiled=True, chunk_size=1024, return_soft_hard_loss=False):
        super().__init__(weight_hard_loss, weight_soft_loss, beta, ignore_index, temperature, return_soft_hard_loss)


class LigerFusedLinearCosineSimilarityLoss(_Distillation, losses.FusedLinearCosineSimilarityLoss):
    def __init__(self, weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0,
                 compiled=True, chunk_size=1024, return_soft_hard_loss=False):
        super().__init__(weight_hard_loss, weight_soft_loss, beta, ignore_index, return_soft_hard_loss)
