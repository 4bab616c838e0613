"""Losses of policies, of distillation and of preferences, for peers.py: behind a linear layer all but grpo_loss."""

import ctypes
import math

import torch
import torch.nn.functional as F

from peers import F32, DEVICE, both_passes, error, f64_of, leaves_of, random

HIDDEN, VOCAB = 4096, 128256


def workspace(bench, name, *sizes):
    function = getattr(bench.doors.library, f"{name}_workspace")
    function.restype = ctypes.c_size_t
    need = function(*[ctypes.c_size_t(n) for n in sizes])
    bench.more_scratch(need + (64 << 20))
    return need


def checked_twice(bench, call, *results):
    bench.once(call)
    first = [r.clone() for r in results]
    bench.once(call)
    assert all(torch.equal(a, b) for a, b in zip(first, results)), "another result in the second run"


def both_of(function, *leaves):
    """Forward and backward of a loss, which Liger's backward only multiplies, to be run."""

    def run():
        with torch.enable_grad():
            return torch.autograd.grad(function(*leaves), leaves)

    return run


def report(bench, op, shape, hidden, vocab, products, call, liger, bar, errors):
    """shape: of the rows of the layer's input."""
    if bench.profile:
        return bench.print_kernels(" ".join((op, *map(str, shape))), call)
    ms, liger = bench.turns_ms([call, liger], graph=False, repeats=7)
    rows = math.prod(shape)
    bench.report(op, "both", " x ".join(map(str, (*shape, hidden, vocab))), None, ms, liger, None, bar,
                 f"{2 * products * rows * hidden * vocab / ms / 1e9:.0f} TFLOP/s {errors}")


def relative(loss, reference):
    apart = abs(loss.item() / reference.item() - 1)
    assert apart < 1e-4, f"the loss is wrong by {apart:.1e}"
    return f"{apart:.0e}"


def grpo_loss(bench):
    doors = bench.doors
    for batch, length, vocab, bars in ((3, 100, 5000, None), (4, 1024, VOCAB, (0.29, 0.52))):
        rows = batch * length
        # Liger's logits have a position more, which is not used.
        whole = random(batch, length + 1, vocab)
        z = whole[:, :-1].reshape(rows, vocab)
        ids = torch.randint(0, vocab, (batch, length), device=DEVICE)
        advantages = random(batch, dtype=F32)
        logp = torch.cat([z[i : i + 512].float().log_softmax(-1).gather(-1, ids.view(-1, 1)[i : i + 512]) for i in range(0, rows, 512)]).view(batch, length)
        old, ref = logp + 0.1 * random(batch, length, dtype=F32), logp + 0.1 * random(batch, length, dtype=F32)
        loss, saved, dz = random(1, dtype=F32), random(2 * rows, dtype=F32), torch.empty_like(z)
        forward = lambda: doors.grpo_loss_forward(z, ids, advantages, old, ref, loss, saved, batch, length, vocab)
        backward = lambda: doors.grpo_loss_backward(z, ids, advantages, old, ref, saved, dz, batch, length, vocab)
        checked_twice(bench, forward, loss), checked_twice(bench, backward, dz)
        errors = [""], [""]
        if rows * vocab <= 1 << 24:
            z64, = f64_of(z)
            own = z64.log_softmax(-1).gather(-1, ids.view(-1, 1)).view(batch, length)
            ratio, d, a = (own - old.double()).exp(), ref.double() - own, advantages.double()[:, None]
            each = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) + 0.04 * (d.exp() - 1 - d)
            each.mean().backward()
            errors = [relative(loss, each.mean())], [error(dz, z64.grad)]
        peer = None
        try:
            from liger_kernel.ops.grpo_loss import GrpoLossFunction

            peer = lambda z: GrpoLossFunction.apply(z, old, ref, ids, advantages, None, 1.0, 0.04, 0.2, 0.2, False, "dapo")[0]
        except ImportError as problem:
            print("   peer:", problem)
        size = rows * vocab * 2
        both_passes(bench, "grpo_loss", f"{batch} x {length} x {vocab}", (size, 2 * size), forward, backward, peer, None, leaves_of(whole), bars, errors)
        del whole, z, dz
        torch.cuda.empty_cache()


def fused_linear_jsd(bench):
    doors = bench.doors
    for rows, hidden, vocab, bar in ((1000, 512, 8000, None), (256, 512, 32000, None), (4096, HIDDEN, VOCAB, 30.0)):
        x, w, tx, tw = random(rows, hidden), random(vocab, hidden) * 0.05, random(rows, hidden), random(vocab, hidden) * 0.05
        dx, dw, loss = torch.empty_like(x), torch.empty_like(w), random(1, dtype=F32)
        print(f"   {workspace(bench, 'fused_linear_jsd', rows, hidden, vocab) / 2**20:.0f} MiB", flush=True)
        call = lambda: doors.fused_linear_jsd_forward(x, w, tx, tw, loss, dx, dw, rows, hidden, vocab)
        checked_twice(bench, call, loss, dx, dw)
        errors = ""
        if rows * vocab <= 1 << 23:
            x64, w64 = f64_of(x, w)
            q, p = (x64 @ w64.T).log_softmax(-1), (tx.double() @ tw.double().T).log_softmax(-1)
            m = ((q.exp() + p.exp()) / 2).log()
            reference = 0.5 * (p.exp() * (p - m) + q.exp() * (q - m)).sum() / rows
            reference.backward()
            errors = f"{relative(loss, reference)} {error(dx, x64.grad)} {error(dw, w64.grad)}"
            del x64, w64, q, p, m
        from liger_kernel.transformers.functional import liger_fused_linear_jsd

        peer = both_of(lambda a, b: liger_fused_linear_jsd(a, b, tx, tw), *leaves_of(x, w))
        report(bench, "fused_linear_jsd", (rows,), hidden, vocab, 4, call, peer, bar, errors)
        torch.cuda.empty_cache()


def fused_linear_kl_div(bench):
    doors = bench.doors
    for rows, hidden, vocab, bar in ((1000, 512, 8000, None), (256, 512, 32000, None), (4096, HIDDEN, VOCAB, 21.0)):
        x, w = random(rows, hidden), random(vocab, hidden) * 0.05
        teacher = random(rows, vocab).softmax(-1)
        dx, dw, loss = torch.empty_like(x), torch.empty_like(w), random(1, dtype=F32)
        print(f"   {workspace(bench, 'fused_linear_kl_div', rows, hidden, vocab) / 2**20:.0f} MiB", flush=True)
        call = lambda: doors.fused_linear_kl_div_forward(x, w, teacher, loss, dx, dw, rows, hidden, vocab)
        checked_twice(bench, call, loss, dx, dw)
        errors = ""
        if rows * vocab <= 1 << 23:
            x64, w64 = f64_of(x, w)
            reference = F.kl_div((x64 @ w64.T).log_softmax(-1), teacher.double(), reduction="batchmean")
            reference.backward()
            errors = f"{relative(loss, reference)} {error(dx, x64.grad)} {error(dw, w64.grad)}"
            del x64, w64
        from liger_kernel.transformers.functional import liger_fused_linear_kl_div

        peer = both_of(lambda a, b: liger_fused_linear_kl_div(a, b, teacher), *leaves_of(x, w))
        report(bench, "fused_linear_kl_div", (rows,), hidden, vocab, 3, call, peer, bar, errors)
        del teacher
        torch.cuda.empty_cache()


def sequences(bench, op):
    """dpo, orpo and kto of 8 sequences of 512 tokens, and of 4 of 2048, a pair of which is longer than a chunk of logits."""
    doors = bench.doors
    bars = {"dpo": 28.0, "orpo": 22.0, "kto": 28.0}
    for count, length, hidden, vocab in ((4, 100, 512, 8000), (2, 2048, 512, VOCAB), (8, 512, HIDDEN, VOCAB), (4, 2048, HIDDEN, VOCAB)):
        rows = count * length
        x, w, rx, rw = random(rows, hidden), random(vocab, hidden) * 0.05, random(rows, hidden), random(vocab, hidden) * 0.05
        target = torch.randint(0, vocab, (count, length), device=DEVICE)
        target[:, ::7] = -100
        dx, dw, loss = torch.empty_like(x), torch.empty_like(w), random(1, dtype=F32)
        desirable = (torch.arange(count, device=DEVICE) % 2 == 0).to(torch.uint8)
        kl = torch.zeros(1, dtype=F32, device=DEVICE)
        sizes = (count, length, hidden, vocab)
        need = workspace(bench, f"fused_linear_{'kto' if op == 'kto' else 'dpo'}", *sizes, 0 if op == "orpo" else hidden)
        print(f"   {need / 2**20:.0f} MiB", flush=True)
        calls = {"dpo": lambda: doors.fused_linear_dpo_forward(x, w, rx, rw, target, loss, dx, dw, *sizes),
                 "orpo": lambda: doors.fused_linear_orpo_forward(x, w, target, loss, dx, dw, *sizes),
                 "kto": lambda: doors.fused_linear_kto_forward(x, w, rx, rw, target, desirable, kl, loss, dx, dw, *sizes)}
        call = calls[op]
        checked_twice(bench, call, loss, dx, dw)
        errors = ""
        if hidden == 512:
            x64, w64 = f64_of(x, w)
            kept = target.view(-1) != -100

            def of_sequences(a, b):
                own = (a @ b.T).log_softmax(-1).gather(-1, target.view(-1, 1).clamp(min=0)).view(-1) * kept
                return own.view(count, length).sum(-1)

            s, half = of_sequences(x64, w64), count // 2
            r = s - of_sequences(rx.double(), rw.double())
            if op == "dpo":
                reference = -F.logsigmoid(0.1 * (r[:half] - r[half:])).mean()
            elif op == "kto":
                reference = (1 - (0.1 * (2.0 * desirable - 1) * r).sigmoid()).mean()
            else:
                n = kept.view(count, length).sum(-1)
                m = s / n
                odds = (m[:half] - m[half:]) - (torch.log1p(-m[:half].exp()) - torch.log1p(-m[half:].exp()))
                reference = -s[:half].sum() / n[:half].sum() - 0.1 * F.logsigmoid(odds).mean()
            reference.backward()
            errors = f"{relative(loss, reference)} {error(dx, x64.grad)} {error(dw, w64.grad)}"
            del x64, w64, s, r
        peer = None
        if hidden == HIDDEN:
            import liger_kernel.chunked_loss as liger

            shape = (count, length, hidden)
            if op == "dpo":
                f = liger.LigerFusedLinearDPOLoss(use_ref_model=True)
                peer = lambda a, b: f(b, a.view(shape), target, ref_input=rx.view(shape), ref_weight=rw)[0]
            elif op == "orpo":
                f = liger.LigerFusedLinearORPOLoss()
                peer = lambda a, b: f(b, a.view(shape), target)[0]
            else:
                f = liger.LigerFusedLinearKTOLoss(use_ref_model=True)
                peer = lambda a, b: f(a.view(shape), b, target, preference_labels=desirable.bool(), ref_input=rx.view(shape),
                                      ref_weight=rw, kl=kl)[0]
            peer = both_of(peer, *leaves_of(x, w))
        report(bench, f"fused_linear_{op}", (count, length), hidden, vocab, 3 if op == "orpo" else 4, call, peer,
               bars[op] if length == 512 else None, errors)
        torch.cuda.empty_cache()


def fused_linear_dpo(bench):
    sequences(bench, "dpo")


def fused_linear_orpo(bench):
    sequences(bench, "orpo")


def fused_linear_kto(bench):
    sequences(bench, "kto")


OPERATORS = [grpo_loss, fused_linear_jsd, fused_linear_kl_div, fused_linear_dpo, fused_linear_orpo, fused_linear_kto]
