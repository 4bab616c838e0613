"""Losses that are declared in Python, and the options of cross entropy."""
import torch
import torch.nn.functional as F

from case import Case
from tigon_torch import ops

_generator = torch.Generator().manual_seed(8)
TARGET = torch.randint(0, 11, (3, 5), generator=_generator)
TARGET[1, 2] = TARGET[2, 0] = -100
CLASS_WEIGHT = torch.rand(11, generator=_generator, dtype=torch.float64) + 0.5
TEACHER = torch.randn(3, 5, 9, generator=_generator, dtype=torch.float64)
TEACHER_WEIGHT = torch.randn(11, 9, generator=_generator, dtype=torch.float64) / 3
# In numbers that bf16 and f16 hold, so that a case of those types has the same teacher.
TEACHER, TEACHER_WEIGHT = TEACHER.bfloat16().half().double(), TEACHER_WEIGHT.bfloat16().half().double()
PROBS = torch.randn(3, 5, 11, generator=_generator).softmax(-1).bfloat16().double()
LOG_PROBS = PROBS.log().bfloat16().double()  # no distribution, which none of the formulas counts on
KEPT = TARGET != -100


def weights(x):
    return CLASS_WEIGHT.to(x.dtype if x.dtype == torch.float64 else torch.float32)


def weighted_formula(z, reduction="mean", smoothing=0.0):
    z = z.flatten(0, -2)
    loss = F.cross_entropy(z, TARGET.flatten(), CLASS_WEIGHT.to(z.dtype), reduction=reduction,
                           label_smoothing=smoothing)
    return loss.view(TARGET.shape) if reduction == "none" else loss


def token_scaled_formula(z, reduction="mean"):
    rows = F.cross_entropy(z.flatten(0, 1), TARGET.flatten(), reduction="none")
    rows = rows * torch.where(TARGET.flatten() == -100, 0, (-rows.detach()).exp())
    return rows.view(TARGET.shape) if reduction == "none" else rows.sum() / KEPT.sum()


def scaled_formula(z, temperature=0.8):
    logp = (z / temperature).log_softmax(-1)
    nll = -logp.gather(-1, TARGET.clamp(min=0)[..., None])[..., 0]
    return nll * KEPT, -(logp.exp() * logp).sum(-1) * KEPT


def kl_formula(z, reduction="batchmean", temperature=0.8):
    terms = F.kl_div((z / temperature).log_softmax(-1), PROBS.to(z.dtype), reduction="none") * KEPT[..., None]
    return terms if reduction == "none" else terms.sum() / (KEPT.sum() * (1 if reduction == "batchmean" else 11))


def teacher_of(x):
    return (TEACHER @ TEACHER_WEIGHT.t()).to(x.dtype)


def jsd_formula(z, beta, temperature=1.0):
    s, t = (z / temperature).log_softmax(-1), (teacher_of(z) / temperature).log_softmax(-1)
    m = torch.log(beta * t.exp() + (1 - beta) * s.exp())
    rows = beta * (t.exp() * (t - m)).sum(-1) + (1 - beta) * (s.exp() * (s - m)).sum(-1)
    return (rows * KEPT).sum() / KEPT.sum()


def hard_formula(z):
    return F.cross_entropy(z.flatten(0, 1), TARGET.flatten())


def cosine_formula(z, beta):
    rows = beta * (1 - F.cosine_similarity(z, teacher_of(z), dim=-1))
    return (rows * KEPT).sum() / KEPT.sum()


def tvd_formula(s, t, reduction="batchmean"):
    terms = (s.softmax(-1) - t.softmax(-1)).abs() / 2 * KEPT[..., None]
    return terms if reduction == "none" else terms.sum() / KEPT.sum()


def with_divergence_formula(z, divergence, temperature, smoothing=0.0, reduction="mean"):
    """0.7 of cross entropy and 0.4 of divergence(softmax(z / temperature))."""
    ce = F.cross_entropy(z.flatten(0, 1), TARGET.flatten(), weights(z) if smoothing else None, reduction="none",
                         label_smoothing=smoothing).view(TARGET.shape)
    rows = divergence((z / temperature).log_softmax(-1)) * KEPT
    if reduction == "none":
        return 0.7 * ce + 0.4 * rows
    of_ce = weights(z)[TARGET.clamp(min=0)][KEPT].sum() if smoothing else KEPT.sum()
    return 0.7 * ce.sum() / of_ce + 0.4 * rows.sum() / KEPT.sum()


def tvd_from_teacher(logq):
    return (logq.exp() - PROBS.to(logq.dtype)).abs().sum(-1) / 2


def jsd_from_teacher(logq, beta=0.3):
    t = LOG_PROBS.to(logq.dtype)
    m = torch.log(beta * t.exp() + (1 - beta) * logq.exp())
    return beta * (t.exp() * (t - m)).sum(-1) + (1 - beta) * (logq.exp() * (logq - m)).sum(-1)


def with_teacher(f, **options):
    def loss(x, w):
        for name, o in options.items():  # once for a device, since none is copied while a CUDA graph is captured
            if isinstance(o, torch.Tensor):
                options[name] = o.to(x.device)
        return f(x, w, teacher_x=TEACHER.to(x.dtype), teacher_weight=TEACHER_WEIGHT.to(x.dtype), **options)
    return loss


def layer(formula, *options):
    return lambda x, w, *b: formula(F.linear(x, w, *b), *options)


LAYER = (3, 5, 9), (11, 9)
LOSS_CASES = {
    "cross_entropy_weighted": Case(lambda z: ops.cross_entropy(z, TARGET, class_weight=weights(z)), weighted_formula,
                                   (3, 5, 11), gradients=12),
    "cross_entropy_weighted_rows": Case(
        lambda z: ops.cross_entropy(z, TARGET, label_smoothing=0.1, reduction="none", class_weight=weights(z)),
        lambda z: weighted_formula(z, "none", 0.1), (3, 5, 11), gradients=12),
    "fused_linear_cross_entropy_weighted": Case(
        lambda x, w: ops.fused_linear_cross_entropy(x, w, TARGET, label_smoothing=0.1, class_weight=weights(x)),
        layer(weighted_formula, "mean", 0.1), *LAYER, factor=8, gradients=16),
    "fused_linear_cross_entropy_token_scaling": Case(
        lambda x, w: ops.fused_linear_cross_entropy(x, w, TARGET, token_scaling=True),
        layer(token_scaled_formula), *LAYER, factor=16, gradients=64),
    "fused_linear_scaled_cross_entropy": Case(
        lambda x, w, b: ops.fused_linear_scaled_cross_entropy(x, w, TARGET, b, 0.8, return_entropy=True),
        layer(scaled_formula), *LAYER, (11,), factor=16, gradients=64),
    "logprobs": Case(lambda x, w: ops.logprobs(x, w, TARGET, temperature=0.8),
                     lambda x, w: -layer(scaled_formula)(x, w)[0], *LAYER, factor=16, gradients=64),
    "fused_linear_kl_div": Case(
        lambda x, w: 3 * ops.fused_linear_kl_div(x, w, PROBS.to(x.dtype), TARGET, temperature=0.8),
        lambda x, w: 3 * layer(kl_formula)(x, w), *LAYER, factor=16, gradients=64),
    "fused_linear_kl_div_elements": Case(
        lambda x, w, b: ops.fused_linear_kl_div(x, w, PROBS.to(x.dtype), TARGET, "none", temperature=0.8, bias=b),
        layer(kl_formula, "none"), *LAYER, (11,), factor=16, gradients=64),
    "fused_linear_jsd": Case(with_teacher(ops.fused_linear_jsd, labels=TARGET, beta=0.3, temperature=2.0),
                             layer(jsd_formula, 0.3, 2.0), *LAYER, factor=16, gradients=64),
    "fused_linear_jsd_logits": Case(
        lambda x, w, b: 2 * ops.fused_linear_jsd(x, w, labels=TARGET, bias=b, teacher_logits=PROBS.to(x.dtype)),
        lambda x, w, b: 2 * jsd_of_logits(F.linear(x, w, b)), *LAYER, (11,), factor=16, gradients=64),
    "fused_linear_jsd_distillation": Case(
        with_teacher(ops.fused_linear_jsd_distillation, target=TARGET, weight_hard=0.7, beta=0.2, temperature=2.0),
        lambda x, w: 0.7 * hard_formula(x @ w.t()) + 0.5 * jsd_formula(x @ w.t(), 0.2, 2.0), *LAYER, factor=16,
        gradients=64),
    "fused_linear_cosine_distillation": Case(
        with_teacher(ops.fused_linear_cosine_distillation, target=TARGET, weight_hard=0.7, beta=0.3),
        lambda x, w: 0.7 * hard_formula(x @ w.t()) + 0.5 * cosine_formula(x @ w.t(), 0.3), *LAYER, factor=16,
        gradients=64),
    "vocab_parallel_cross_entropy": Case(
        lambda z: ops.vocab_parallel_cross_entropy(z, TARGET, label_smoothing=0.1),
        lambda z: F.cross_entropy(z.flatten(0, 1), TARGET.flatten(), label_smoothing=0.1,
                                  reduction="none").view(TARGET.shape), (3, 5, 11), gradients=12),
    "vocab_parallel_fused_linear_cross_entropy": Case(
        lambda x, w, b: ops.vocab_parallel_fused_linear_cross_entropy(x, w, TARGET, b), layer(hard_formula), *LAYER, (11,),
        factor=8, gradients=16),
    "vocab_parallel_scaled_cross_entropy": Case(
        lambda x, w: ops.vocab_parallel_scaled_cross_entropy(x, w, TARGET, temperature=0.8, return_entropy=True),
        layer(scaled_formula), *LAYER, factor=16, gradients=64),
    "selective_log_softmax": Case(
        lambda z: ops.selective_log_softmax(z, TARGET.clamp(min=0), 0.8),
        lambda z: (z / 0.8).log_softmax(-1).gather(-1, TARGET.clamp(min=0)[..., None])[..., 0], (3, 5, 11), factor=16,
        gradients=32),
    "selective_log_softmax_of_a_model": Case(
        lambda z: ops.selective_log_softmax(z, TARGET.clamp(min=0)),
        lambda z: z[:, :-1].log_softmax(-1).gather(-1, TARGET.clamp(min=0)[..., None])[..., 0], (3, 6, 11), factor=16,
        gradients=32),
    "cross_entropy_tvd": Case(
        lambda z: ops.cross_entropy_tvd(z, TARGET, PROBS.to(z.dtype), 0.7, 0.4, 0.8),
        lambda z: with_divergence_formula(z, tvd_from_teacher, 0.8), (3, 5, 11), factor=16, gradients=64),
    "cross_entropy_jsd": Case(
        lambda z: ops.cross_entropy_jsd(z, TARGET, LOG_PROBS.to(z.dtype), 0.3, 0.7, 0.4, 2.0, label_smoothing=0.1,
                                        class_weight=weights(z)),
        lambda z: with_divergence_formula(z, jsd_from_teacher, 2.0, 0.1), (3, 5, 11), factor=16, gradients=64),
    "cross_entropy_jsd_rows": Case(
        lambda z: ops.cross_entropy_jsd(z, TARGET, LOG_PROBS.to(z.dtype), 0.3, 0.7, 0.4, reduction="none"),
        lambda z: with_divergence_formula(z, jsd_from_teacher, 1.0, reduction="none"), (3, 5, 11), factor=16,
        gradients=64),
    "tvd": Case(lambda s, t: ops.tvd(s.softmax(-1), t.softmax(-1), TARGET), tvd_formula, (3, 5, 11), (3, 5, 11),
                factor=64, gradients=256),
    "tvd_elements": Case(lambda s, t: ops.tvd(s.softmax(-1), t.softmax(-1), TARGET, "none"),
                         lambda s, t: tvd_formula(s, t, "none"), (3, 5, 11), (3, 5, 11), factor=64, gradients=256),
}


def jsd_of_logits(z):
    s, t = z.log_softmax(-1), PROBS.to(z.dtype).log_softmax(-1)
    m = torch.log(0.5 * t.exp() + 0.5 * s.exp())
    rows = 0.5 * (t.exp() * (t - m)).sum(-1) + 0.5 * (s.exp() * (s - m)).sum(-1)
    return (rows * KEPT).sum() / KEPT.sum()
