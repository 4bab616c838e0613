"""Divergences of distributions over a vocabulary."""
import typing

from torch import Tensor

from ..arguments import checked, expect_shape, one_a_row, one_of
from ..declared import Made, operator, sums
from ..registration import autograd, fake
from .common import _REDUCTION, _empty_or, _half, _ops, _or_none, _promoted, _sums, _wanted, _without_columns


@checked
def jsd(student_log_probs: Tensor, teacher_log_probs: Tensor, beta: float = 0.5, labels: Tensor | None = None,
        ignore_index: int = -100) -> Tensor:
    """Generalised Jensen-Shannon divergence of log-probabilities [..., vocab], a mean over the rows whose label is not
    ignore_index. beta is the weight of the teacher: 0 is KL(teacher || student), 1 the reverse."""
    student_log_probs, teacher_log_probs = _promoted(student_log_probs, teacher_log_probs)
    if _half(student_log_probs):
        student_log_probs, teacher_log_probs = student_log_probs.float(), teacher_log_probs.float()
    return _ops.jsd(student_log_probs, teacher_log_probs, labels, beta, ignore_index, *_wanted(student_log_probs))[0]


@fake("jsd")
def _(student, teacher, labels, beta, ignore_index, need):
    return student.new_empty((), dtype=_sums(student)), _empty_or(student, student.shape, need)


def _jsd_context(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.options = inputs[3:5]
    ctx.made = Made(output[1:] if inputs[5] else None)
    ctx.save_for_backward(*inputs[:3])


def _jsd_backward(ctx, upstream, _):
    if upstream is None:
        return (None,) * 6
    student, teacher, labels = ctx.saved_tensors
    beta, ignore_index = ctx.options
    ds = dt = None
    if ctx.needs_input_grad[0]:
        made = ctx.made.take(upstream)
        ds = made[0] if made is not None else \
            _ops.jsd(student, teacher, labels, beta, ignore_index, True)[1] * upstream.to(student.dtype)
    if ctx.needs_input_grad[1]:
        dt = _ops.jsd(teacher, student, labels, 1 - beta, ignore_index, True)[1] * upstream.to(teacher.dtype)
    return ds, dt, None, None, None, None


autograd("jsd", _jsd_backward, _jsd_context)

_DIVERGENCE_REDUCTION = {"batchmean": 0, "mean": 1, "sum": 2, "none": 3}


@checked
def kl_div(student_log_probs: Tensor, teacher: Tensor, log_target: bool = False, eps: float = 0.0,
           reduction: str = "batchmean") -> Tensor:
    """Kullback-Leibler divergence of the teacher's probabilities (their logarithms with log_target) from the student's
    log-probabilities, as torch.nn.functional.kl_div; batchmean divides by the rows."""
    how = one_of(_DIVERGENCE_REDUCTION, "kl_div", "reduction", reduction)
    student_log_probs, teacher = _promoted(student_log_probs, teacher)
    if _without_columns(student_log_probs):
        terms = (student_log_probs * teacher).to(_sums(student_log_probs))
        return terms if reduction == "none" else terms.sum()
    if _half(student_log_probs):
        student_log_probs, teacher = student_log_probs.float(), teacher.float()
    return _ops.kl_div(student_log_probs, teacher, log_target, eps, how)


@fake("kl_div")
def _(student, teacher, log_target, eps, reduction):
    return student.new_empty(student.shape if reduction == 3 else (), dtype=_sums(student))


@fake("kl_div_backward")
def _(upstream, student, teacher, log_target, eps, reduction, need_student, need_teacher):
    return _empty_or(student, student.shape, need_student), _empty_or(student, teacher.shape, need_teacher)


def _kl_div_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.options = inputs[2:]


def _kl_div_backward(ctx, upstream):
    need = ctx.needs_input_grad[:2]
    gradients = _ops.kl_div_backward(upstream, *ctx.saved_tensors, *ctx.options, *need)
    return tuple(map(_or_none, gradients, need)) + (None,) * 3


autograd("kl_div", _kl_div_backward, _kl_div_context)


operator("tvd(Tensor student, Tensor teacher, Tensor? labels, int reduction, int ignore_index) -> loss",
         lambda student, teacher, labels, reduction, ignore_index: sums(
             student, *(student.shape if reduction == 3 else ())),
         keeps="student teacher labels", gradients="student teacher")


@checked
def tvd(student_probs: Tensor, teacher_probs: Tensor, labels: Tensor | None = None, reduction: str = "batchmean",
        ignore_index: int = -100) -> Tensor:
    """Total variation distance |student - teacher| / 2 of probabilities [..., vocab], summed up over the vocabulary.

    batchmean divides by the rows whose label is not ignore_index, mean by the vocabulary too. labels [...] only say
    which rows count.
    """
    how = one_of(_DIVERGENCE_REDUCTION, "tvd", "reduction", reduction)
    expect_shape("tvd", "teacher_probs", teacher_probs, student_probs.shape, ", as student_probs")
    one_a_row("tvd", student_probs, labels=labels)
    return _ops.tvd(*_promoted(student_probs, teacher_probs), labels, how, ignore_index)


class CrossEntropyDivergenceOutput(typing.NamedTuple):
    """The loss alone has a gradient; ce and divergence are without their weights."""
    loss: Tensor
    ce: Tensor
    divergence: Tensor


def _with_divergence(logits, target, teacher, class_weight, ignore_index, reduction, *options):
    def number():
        return sums(logits, *(target.shape if reduction == _REDUCTION["none"] else ()))
    return (number(), *((number(), number()) if options[-1] else (None, None)))


for _name in ("cross_entropy_tvd", "cross_entropy_jsd"):
    operator(f"{_name}(Tensor logits, Tensor target, Tensor teacher, Tensor? class_weight, int ignore_index, int reduction,"
             " float label_smoothing, float z_loss, float weight_ce, float weight_divergence, float temperature, float beta,"
             " bool parts) -> loss ce divergence",
             _with_divergence, keeps="logits target teacher class_weight", gradients="logits")


def _cross_entropy_and(op, name, logits, target, teacher, class_weight, ignore_index, reduction, *options, parts):
    how = one_of(_REDUCTION, op, "reduction", reduction)
    expect_shape(op, name, teacher, logits.shape, ", as logits")
    one_a_row(op, logits, target=target)
    logits, teacher = _promoted(logits, teacher)
    results = getattr(_ops, op)(logits, target, teacher, class_weight, ignore_index, how, *options, parts)
    return CrossEntropyDivergenceOutput(*results) if parts else results[0]


@checked
def cross_entropy_tvd(logits: Tensor, target: Tensor, teacher_probs: Tensor, weight_ce: float = 1.0,
                      weight_tvd: float = 1.0, temperature: float = 1.0, ignore_index: int = -100,
                      label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str = "mean",
                      class_weight: Tensor | None = None, return_parts: bool = False):
    """weight_ce cross_entropy(logits, target) + weight_tvd times the total variation distance of
    softmax(logits / temperature) from a teacher's probabilities [..., vocab], in one pass over both, in f32 (f64 for f64).

    Rows whose target is ignore_index count in neither. The teacher gets no gradient. With return_parts the result is a
    CrossEntropyDivergenceOutput.
    """
    return _cross_entropy_and("cross_entropy_tvd", "teacher_probs", logits, target, teacher_probs, class_weight,
                              ignore_index, reduction, label_smoothing, z_loss, weight_ce, weight_tvd, temperature, 0.5,
                              parts=return_parts)


@checked
def cross_entropy_jsd(logits: Tensor, target: Tensor, teacher_log_probs: Tensor, beta: float = 0.5,
                      weight_ce: float = 1.0, weight_jsd: float = 1.0, temperature: float = 1.0,
                      ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                      reduction: str = "mean", class_weight: Tensor | None = None, return_parts: bool = False):
    """The same with the generalised Jensen-Shannon divergence from a teacher's log-probabilities; beta as jsd has it."""
    return _cross_entropy_and("cross_entropy_jsd", "teacher_log_probs", logits, target, teacher_log_probs, class_weight,
                              ignore_index, reduction, label_smoothing, z_loss, weight_ce, weight_jsd, temperature, beta,
                              parts=return_parts)
