"""Losses whose labels a kernel reads, by the CPU's library and by that for CUDA: values and gradients, sequences and calls in
which no token counts, labels that are wrong. test_cuda.py runs it on the model of a GPU, gpu.py on a GPU.

    python losses_on_both.py FILE     writes what the kernels of tensors on the CPU make
"""
import re
import sys

import torch

from tigon_torch import ops

VOCAB, HIDDEN, SEQUENCES, LEN = 11, 9, 4, 5
IGNORED = -100


def _inputs(device, dtype):
    g = torch.Generator().manual_seed(31)

    def made(*shape):
        return torch.randn(*shape, generator=g).bfloat16().to(device, dtype)

    x, weight, bias = made(SEQUENCES, LEN, HIDDEN), made(VOCAB, HIDDEN) / 4, made(VOCAB) / 4
    teacher = made(SEQUENCES, LEN, 7), made(VOCAB, 7) / 4
    logp = -torch.rand(SEQUENCES, LEN, generator=g).to(device) * 3
    labels = torch.randint(0, VOCAB, (SEQUENCES, LEN), generator=g)
    labels[0, 2:] = IGNORED
    return (x, weight, bias), teacher, logp, labels.to(device)


def _counted(labels):
    return labels != IGNORED


def losses(teacher, logp):
    """Name, function of a layer and its labels, the name of the labels in messages, or None where any number will do."""
    tx, tw = teacher
    soft = (tx @ tw.t()).softmax(-1)
    advantages = torch.tensor([1.5, -0.5, 0.25, -1.0], device=logp.device)
    desirable = torch.tensor([1, 0, 1, 1], dtype=torch.uint8, device=logp.device)
    kl = torch.full((), 0.25, device=logp.device)
    sums = logp.sum(-1)

    def policy(labels):
        ids = labels.masked_fill(labels == IGNORED, 0)
        return ids, advantages, dict(old_logp=logp, ref_logp=logp.flip(0), mask=_counted(labels), beta=0.04)

    def linear_grpo(x, w, b, labels):
        ids, a, more = policy(labels)
        return ops.fused_linear_grpo(x, w, ids, a, b, **more)

    def grpo(x, w, b, labels):
        ids, a, more = policy(labels)
        return ops.grpo_loss(torch.nn.functional.linear(x, w, b), ids, a, **more)

    return {
        "logprobs": (lambda x, w, b, t: ops.logprobs(x, w, t, b, 0.8, entropy=True), "target"),
        "fused_linear_cross_entropy": (lambda x, w, b, t: ops.fused_linear_cross_entropy(x, w, t, b), "target"),
        "fused_linear_kl_div": (lambda x, w, b, t: ops.fused_linear_kl_div(x, w, soft, t, bias=b), None),
        "fused_linear_kl_div_sum": (lambda x, w, b, t: ops.fused_linear_kl_div(x, w, soft, t, "none", bias=b), None),
        "fused_linear_jsd": (lambda x, w, b, t: ops.fused_linear_jsd(x, w, tx, tw, t, 0.3, bias=b), None),
        "fused_linear_jsd_of_all": (lambda x, w, b, t: ops.fused_linear_jsd(x, w, tx, tw, bias=b), None),
        "fused_linear_jsd_distillation": (
            lambda x, w, b, t: ops.fused_linear_jsd_distillation(x, w, t, tx, tw, bias=b, return_soft_hard_loss=True),
            "target"),
        "fused_linear_cosine_distillation": (
            lambda x, w, b, t: ops.fused_linear_cosine_distillation(x, w, t, tx, tw, 0.0, 0.5, bias=b), "target"),
        "fused_linear_dpo": (lambda x, w, b, t: ops.fused_linear_dpo(x, w, t, b, ref_logps=sums, beta=0.3), "target"),
        "fused_linear_dpo_of_layers": (
            lambda x, w, b, t: ops.fused_linear_dpo(x, w, t, b, tx, tw, compute_nll_loss=True), "target"),
        "fused_linear_orpo": (lambda x, w, b, t: ops.fused_linear_orpo(x, w, t, b), "target"),
        "fused_linear_simpo": (lambda x, w, b, t: ops.fused_linear_simpo(x, w, t, b), "target"),
        "fused_linear_cpo": (lambda x, w, b, t: ops.fused_linear_cpo(x, w, t, b), "target"),
        "fused_linear_kto": (
            lambda x, w, b, t: ops.fused_linear_kto(x, w, t, desirable, b, kl, ref_logps=sums), "target"),
        "grpo_loss": (grpo, "ids"),
        "fused_linear_grpo": (linear_grpo, "ids"),
        "selective_log_softmax": (
            lambda x, w, b, t: ops.selective_log_softmax(torch.nn.functional.linear(x, w, b), t.clamp(min=0)), "ids"),
        "vocab_parallel_cross_entropy": (
            lambda x, w, b, t: ops.vocab_parallel_cross_entropy(torch.nn.functional.linear(x, w, b), t), "target"),
        "vocab_parallel_fused_linear_cross_entropy": (
            lambda x, w, b, t: ops.vocab_parallel_fused_linear_cross_entropy(x, w, t, b), "target"),
        "vocab_parallel_scaled_cross_entropy": (
            lambda x, w, b, t: ops.vocab_parallel_scaled_cross_entropy(x, w, t, b), "target"),
    }


def _apart(actual, wanted) -> float:
    """The largest difference, relative to the root mean square of what is wanted. NaN is equal to NaN."""
    a, w = actual.double(), wanted.double()
    same = (a == w) | (a.isnan() & w.isnan())
    apart = torch.where(same, 0, (a - w).abs()).nan_to_num(nan=float("inf"))
    return (apart.max() / w.nan_to_num(0, 0, 0).square().mean().sqrt().clamp_min(1e-3)).item()


def _run(function, layer, labels):
    """Results, and the gradients of three times their sum; those of a second backward, which may round at other places, are
    the same."""
    layer = [t.detach().requires_grad_() for t in layer]
    found = function(*layer, labels)
    found = found if isinstance(found, tuple) else (found,)
    total = 3 * sum(y.sum() for y in found if y.requires_grad)
    gradients = torch.autograd.grad(total, layer, retain_graph=True)
    again = [_apart(a, g) for a, g in zip(torch.autograd.grad(total, layer), gradients)]
    assert max(again) <= (1e-5 if layer[0].dtype == torch.float32 else 5e-2), again
    return [t.detach().cpu() for t in (*found, *gradients)]


def results(device, dtype=torch.float32):
    """Of every loss and of every set of labels: results and gradients."""
    layer, teacher, logp, labels = _inputs(device, dtype)
    without = torch.full_like(labels, IGNORED)
    one_empty = labels.clone()
    one_empty[1] = IGNORED
    found = {}
    for name, (function, _) in losses(teacher, logp).items():
        for which, of in (("some", labels), ("an empty sequence", one_empty), ("none", without)):
            found[name, which] = _run(function, layer, of)
    return found


def far(results, expected) -> dict:
    """The largest difference of each."""
    return {key: max(map(_apart, results[key], wanted)) for key, wanted in expected.items()}


def wrong_labels(device, dtype=torch.float32) -> list:
    """Losses that say nothing of a label out of range, or that say something else. A call of a GPU returns; what it found is
    said by a later one, or by this one."""
    layer, teacher, logp, labels = _inputs(device, dtype)
    wrong = labels.clone()
    wrong[2, 1] = VOCAB
    bad = []
    for name, (function, argument) in losses(teacher, logp).items():
        right = _run(function, layer, labels)
        said = "nothing"
        try:
            function(*(t.detach() for t in layer), wrong)
            if device != "cpu":
                torch.cuda.synchronize()
            ops.softmax(logp)
        except (ValueError, RuntimeError) as error:
            said = str(error)
        sentence = f" {argument}\\[.*\\] is {VOCAB}; expected at least 0 and below {VOCAB}"
        if not re.search("^nothing$" if argument is None else sentence, said):
            bad.append(f"{name}: {said}")
        after = _run(function, layer, labels)  # the report is gone
        if not all(map(torch.equal, right, after)):
            bad.append(f"{name}: other results behind a wrong label")
    return bad


if __name__ == "__main__":
    import conftest  # noqa: F401   the model of a GPU, where the environment names one

    torch.save((results("cpu"), wrong_labels("cpu")), sys.argv[1])
