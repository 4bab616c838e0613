"""Losses of hidden states on a GPU for gpu.py: errors against f64, and time and memory beside Liger's."""
import gc
import statistics

import torch
import torch.nn.functional as F

from tigon_torch import ops

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16


class Batch:
    """Sequences of hidden states of a model and of a reference or teacher, their heads, and what losses read beside them."""

    def __init__(self, sequences, length, hidden, vocab, dtype=bf16):
        generator = torch.Generator(device="cuda").manual_seed(7)

        def random(*shape, of=f32):
            return torch.randn(*shape, generator=generator, device="cuda", dtype=of)

        self.x, self.other_x = (random(sequences, length, hidden).to(dtype) for _ in range(2))
        self.w, self.other_w = ((random(vocab, hidden, of=bf16) * (2 / hidden ** 0.5)).to(dtype) for _ in range(2))
        self.ids = torch.randint(0, vocab, (sequences, length), generator=generator, device="cuda")
        self.labels = self.ids.clone()
        self.labels[:, ::7] = -100
        self.labels[-1, length // 2:] = -100
        self.mask = (self.labels != -100).float()
        self.advantages, self.kl = random(sequences), torch.full((1,), 0.1, device="cuda")
        self.desirable = torch.arange(sequences, device="cuda") % 2 == 0
        with torch.no_grad():
            self.old = ops.logprobs(self.x, self.w, self.ids) + 0.1 * random(sequences, length)
            self.ref = self.old + 0.1 * random(sequences, length)
            teacher = (self.other_x @ self.other_w.t()) if sequences * length * vocab < 2**30 else None
            self.soft = None if teacher is None else teacher.float().softmax(-1).to(dtype)

    def flat(self):
        return [t.flatten(0, 1) for t in (self.x, self.other_x, self.labels)]


def _logps(x, w, labels):
    """Of every token; 0 where it does not count."""
    logp = (x @ w.t()).log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return logp * (labels != -100)


def _both(b, x, w):
    return (x @ w.t()).log_softmax(-1), (b.other_x.to(x.dtype) @ b.other_w.to(x.dtype).t()).log_softmax(-1)


def _counted(b, rows):
    return (rows * b.mask).sum() / b.mask.sum()


def _jsd(b, x, w):
    q, p = _both(b, x, w)
    m = ((q.exp() + p.exp()) / 2).log()
    return _counted(b, (p.exp() * (p - m) + q.exp() * (q - m)).sum(-1) / 2)


def _nll(b, x, w):
    return -_logps(x, w, b.labels).sum() / b.mask.sum()


def _cosine(b, x, w):
    z, t = x @ w.t(), b.other_x.to(x.dtype) @ b.other_w.to(x.dtype).t()
    return _counted(b, 1 - F.cosine_similarity(z, t, dim=-1))


def _sums(b, x, w, average=False):
    total = _logps(x, w, b.labels).sum(-1)
    return total / b.mask.sum(-1) if average else total


def _dpo(b, x, w):
    apart = _sums(b, x, w) - _sums(b, b.other_x.to(x.dtype), b.other_w.to(x.dtype))
    chosen, rejected = apart.chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def _chosen_nll(b, x, w):
    half = len(x) // 2
    return -_logps(x[:half], w, b.labels[:half]).sum() / b.mask[:half].sum()


def _orpo(b, x, w):
    chosen, rejected = _sums(b, x, w, True).chunk(2)
    odds = chosen - rejected - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return _chosen_nll(b, x, w) - 0.1 * F.logsigmoid(odds).mean()


def _simpo(b, x, w):
    chosen, rejected = _sums(b, x, w, True).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected) - 0.5).mean()


def _cpo(b, x, w):
    chosen, rejected = _sums(b, x, w).chunk(2)
    return _chosen_nll(b, x, w) - F.logsigmoid(0.1 * (chosen - rejected)).mean()


def _kto(b, x, w):
    apart = _sums(b, x, w) - _sums(b, b.other_x.to(x.dtype), b.other_w.to(x.dtype))
    sign = torch.where(b.desirable, 1.0, -1.0)
    return torch.sigmoid(-0.1 * sign * (apart - b.kl.to(x.dtype))).mean()


def _grpo(b, x, w):
    logp = (x @ w.t()).log_softmax(-1).gather(-1, b.ids[..., None])[..., 0]
    ratio, d, a = (logp - b.old).exp(), b.ref - logp, b.advantages[:, None]
    return _counted(b, -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) + 0.04 * (d.exp() - 1 - d))


def _liger(name, **options):
    import liger_kernel.chunked_loss as chunked

    return getattr(chunked, f"LigerFusedLinear{name}Loss")(**options)


def _liger_distillation(name):
    def run(b):
        loss = _liger(name)
        x, other_x, labels = b.flat()
        return lambda x, w: loss(x.flatten(0, 1), w, other_x, b.other_w, labels, None, None)

    return run


def _liger_kl_div(b):
    from liger_kernel.transformers.functional import liger_fused_linear_kl_div

    return lambda x, w: liger_fused_linear_kl_div(x.flatten(0, 1), w, b.soft.flatten(0, 1))


def _liger_jsd(b):
    from liger_kernel.transformers.functional import liger_fused_linear_jsd

    _, other_x, labels = b.flat()
    return lambda x, w: liger_fused_linear_jsd(x.flatten(0, 1), w, other_x, b.other_w, labels)


def _liger_pairs(name, reference=False):
    def run(b):
        loss = _liger(name, **({"use_ref_model": True} if reference else {}))
        more = {"ref_input": b.other_x, "ref_weight": b.other_w} if reference else {}
        return lambda x, w: loss(w, x, b.labels, **more)[0]

    return run


def _liger_kto(b):
    loss = _liger("KTO", use_ref_model=True)
    return lambda x, w: loss(x, w, b.labels, preference_labels=b.desirable, ref_input=b.other_x, ref_weight=b.other_w,
                             kl=b.kl)[0]


def _liger_grpo(b):
    loss = _liger("GRPO", beta=0.04)
    return lambda x, w: loss(x, w, b.ids, b.mask, b.advantages, ref_per_token_logps=b.ref, old_per_token_logps=b.old)[0]


# Ours, the formula, and Liger's; results of tokens are summed up with weights.
LOSSES = {
    "logprobs": (lambda b, x, w: (ops.logprobs(x, w, b.labels) * b.ref).sum(),
                 lambda b, x, w: (_logps(x, w, b.labels) * b.ref).sum(), None),
    "kl_div": (lambda b, x, w: ops.fused_linear_kl_div(x, w, b.soft),
               lambda b, x, w: F.kl_div((x @ w.t()).log_softmax(-1).flatten(0, 1), b.soft.to(x.dtype).flatten(0, 1),
                                        reduction="batchmean"), _liger_kl_div),
    "jsd": (lambda b, x, w: ops.fused_linear_jsd(x, w, b.other_x, b.other_w, b.labels), _jsd, _liger_jsd),
    "jsd_distillation": (
        lambda b, x, w: ops.fused_linear_jsd_distillation(x, w, b.labels, b.other_x, b.other_w),
        lambda b, x, w: (_nll(b, x, w) + _jsd(b, x, w)) / 2, _liger_distillation("JSD")),
    "cosine_distillation": (
        lambda b, x, w: ops.fused_linear_cosine_distillation(x, w, b.labels, b.other_x, b.other_w),
        lambda b, x, w: _nll(b, x, w) / 2 + _cosine(b, x, w) / 4, _liger_distillation("CosineSimilarity")),
    "dpo": (lambda b, x, w: ops.fused_linear_dpo(x, w, b.labels, None, b.other_x, b.other_w), _dpo,
            _liger_pairs("DPO", True)),
    "orpo": (lambda b, x, w: ops.fused_linear_orpo(x, w, b.labels), _orpo, _liger_pairs("ORPO")),
    "simpo": (lambda b, x, w: ops.fused_linear_simpo(x, w, b.labels), _simpo, _liger_pairs("SimPO")),
    "cpo": (lambda b, x, w: ops.fused_linear_cpo(x, w, b.labels), _cpo, _liger_pairs("CPO")),
    "kto": (lambda b, x, w: ops.fused_linear_kto(x, w, b.labels, b.desirable, None, b.kl, b.other_x, b.other_w), _kto,
            _liger_kto),
    "grpo": (lambda b, x, w: ops.fused_linear_grpo(x, w, b.ids, b.advantages, old_logp=b.old, ref_logp=b.ref, mask=b.mask,
                                                   beta=0.04), _grpo, _liger_grpo),
    "vocab_parallel_cross_entropy": (
        lambda b, x, w: ops.vocab_parallel_fused_linear_cross_entropy(x, w, b.labels), _nll, None),
}


def _step(function, b, dtype=None):
    """The loss and its gradients."""
    x, w = (t.detach().to(dtype or t.dtype).requires_grad_() for t in (b.x, b.w))
    loss = function(x, w)
    return [loss.detach(), *torch.autograd.grad(loss, (x, w))]


def _relative(actual, reference):
    return ((actual.double() - reference).norm() / reference.norm()).item()


def errors(name, dtype) -> tuple[list, list]:
    """Of loss and gradients, relative to f64: ours, and eager's in this type."""
    ours, formula, _ = LOSSES[name]
    b = Batch(4, 64, 256, 4000, dtype)
    exact = _step(lambda x, w: formula(b, x, w), b, f64)
    return tuple([_relative(a, e) for a, e in zip(_step(f, b), exact)]
                 for f in (lambda x, w: ours(b, x, w), lambda x, w: formula(b, x, w)))


def check(failures) -> None:
    """Errors of every loss: those of gradients at most eager's and a rounding, those of a loss as of sums in f32."""
    for name in LOSSES:
        for dtype in (f32, bf16):
            with failures.of(f"{name} in {dtype}"):
                torch.backends.cuda.matmul.allow_tf32 = False
                (loss, *gradients), (eager, *of_eager) = errors(name, dtype)
                print(f"   {name} in {dtype}: loss {loss:.1e} (eager {eager:.1e}), gradients "
                      f"{' '.join(f'{g:.1e}' for g in gradients)} ({' '.join(f'{g:.1e}' for g in of_eager)})", flush=True)
                rounding = 4e-3 if dtype == bf16 else 2e-5
                assert loss <= 1.3 * eager + (1e-3 if dtype == bf16 else 1e-5), (loss, eager)
                assert all(o <= 1.3 * e + rounding for o, e in zip(gradients, of_eager)), (gradients, of_eager)


def _milliseconds(step, repeats):
    """Of forward and backward: the median, and the peak of memory beyond what was there."""
    for _ in range(2):
        step()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times), (torch.cuda.max_memory_allocated() - before) / 2**20


def time(arguments) -> int:
    """Forward and backward in bf16. Liger's are alternated with ours by name."""
    bad = 0
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(f"{arguments.batch} x {arguments.seq} x {arguments.hidden} x {arguments.vocab}, bf16, forward and backward")
    for name in arguments.losses.split(",") if arguments.losses else LOSSES:
        ours, _, liger = LOSSES[name]
        gc.collect()
        torch.cuda.empty_cache()
        b = Batch(arguments.batch, arguments.seq, arguments.hidden, arguments.vocab)
        said = []
        for who, make in (("tigon", lambda b: lambda x, w: ours(b, x, w)), ("Liger", liger)):
            if make is None:
                continue
            try:
                function = make(b)
                ms, mib = _milliseconds(lambda: _step(function, b), arguments.steps)
                loss = _step(function, b)[0].item()
                said.append((ms, f"{who} {ms:8.2f} ms {mib:7.0f} MiB loss {loss:.5f}"))
            except Exception as error:  # one that does not run here is left out
                bad |= who == "tigon"
                print(f"{name}: {who}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        ratio = f"  Liger's time / its time {said[1][0] / said[0][0]:.2f}" if len(said) == 2 else ""
        print(f"{name:28s} {'   '.join(text for _, text in said)}{ratio}", flush=True)
        del b
    return int(bad)
