"""Operators of backend cuda beside Liger-Kernel and torch.compile in one process: bf16, L2 flushed before every run, CUDA
graphs, medians; errors against f64; and the speed of a copy in the same minute.

    nvcc ... -c norms.cu; ...; nvcc -shared *.o -o libdoors.so; python3 peers.py libdoors.so [--profile] [operator ...]

Prints a line for each operator, pass and shape, and writes them to peers.csv in $OUT (or here). --profile: what every kernel of
tigon takes instead, without peers.
"""

import csv
import ctypes
import os
import statistics
import sys

import torch
import torch.nn.functional as F

BF16, F32, DEVICE = torch.bfloat16, torch.float32, "cuda"
EPS = 1e-6


class Doors:
    """The library: its functions take tensors, numbers and strings as they come."""

    def __init__(self, path, stream):
        self.library = ctypes.CDLL(os.path.abspath(path))
        self.stream = stream
        self.begin(512 << 20)

    def begin(self, scratch):
        self.scratch = torch.empty(scratch, dtype=torch.uint8, device=DEVICE)
        self.library.begin(
            ctypes.c_void_p(self.stream.cuda_stream),
            ctypes.c_void_p(self.scratch.data_ptr()),
            ctypes.c_size_t(self.scratch.numel()),
        )

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            if function(*[self.converted(a) for a in arguments]) != 0:
                raise RuntimeError(f"{name} failed")

        return call

    @staticmethod
    def converted(argument):
        if isinstance(argument, torch.Tensor):
            return ctypes.c_void_p(argument.data_ptr())
        if isinstance(argument, float):
            return ctypes.c_double(argument)
        return ctypes.c_size_t(argument)


class Bench:
    def __init__(self, library, profile=False):
        torch.manual_seed(0)
        self.profile = profile
        self.stream = torch.cuda.Stream()
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
        self.doors = Doors(library, self.stream)
        self.rows = []

    def more_scratch(self, scratch):
        if scratch > self.doors.scratch.numel():
            self.doors.scratch = None
            self.doors.begin(scratch)

    def once(self, f):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = f()
        torch.cuda.synchronize()
        return result

    def recorded(self, f, graph):
        """What runs it: a graph, unless that is not wanted."""
        for _ in range(3):
            self.once(f)
        if not graph:
            return f
        of = torch.cuda.CUDAGraph()
        with torch.cuda.graph(of, stream=self.stream):
            kept = f()
        return lambda: (of.replay(), kept)

    def turns_ms(self, functions, graph=True, repeats=25):
        """Medians of tigon's function and of peers, which run by turns, so that all of them meet the same clock: products bring
        a GPU to its limit of power. None for None, and for a peer that does not run here."""
        own, *peers = functions
        runs = [self.recorded(own, graph)]
        for peer in peers:
            try:
                runs.append(peer and self.recorded(peer, graph))
            except Exception as error:
                print("   peer:", repr(error)[:160], flush=True)
                runs.append(None)
        events = [[] for _ in runs]
        with torch.cuda.stream(self.stream):
            for _ in range(repeats):
                for run, of in zip(runs, events):
                    if run:
                        self.flush.zero_()
                        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                        begin.record(), run(), end.record()
                        of.append((begin, end))
        torch.cuda.synchronize()
        return [statistics.median(begin.elapsed_time(end) for begin, end in of) if of else None for of in events]

    def median_ms(self, f, graph=True, repeats=25):
        return self.turns_ms([f], graph, repeats)[0]

    def print_kernels(self, name, f):
        """Microseconds of every kernel of a call, L2 flushed before it."""
        from torch.profiler import ProfilerActivity, profile

        self.once(f)
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            with torch.cuda.stream(self.stream):
                self.flush.zero_()
                f()
            torch.cuda.synchronize()
        for kernel in recorded.events()[1:]:
            print(f"{name}  {kernel.device_time_total:9.1f} us  {kernel.name[:150]}", flush=True)

    def report(self, op, mode, shape, moved, ms, liger=None, compiled=None, bar=None, error=""):
        row = {
            "operator": op,
            "pass": mode,
            "shape": shape,
            "ms": f"{ms:.4f}",
            "GB/s": f"{moved / ms / 1e6:.0f}" if moved else "",
            "liger_ms": f"{liger:.4f}" if liger else "",
            "of_liger": f"{liger / ms:.2f}" if liger else "",
            "compile_ms": f"{compiled:.4f}" if compiled else "",
            "bar_ms": f"{bar:.4f}" if bar else "",
            "of_bar": f"{bar / ms:.2f}" if bar else "",
            "error": error,
        }
        self.rows.append(row)
        print("  ".join(f"{k} {v}" if k not in ("operator", "pass", "shape") else f"{v:14s}" for k, v in row.items() if v), flush=True)

    def passes(self, function, leaves):
        """Forward and backward of a function of PyTorch, to be run; None where a peer does not run here."""
        forward = lambda: function(*leaves)
        try:
            outputs = self.once(forward)
            outputs = [y for y in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)) if y is not None and y.requires_grad]
            upstream = [torch.randn_like(y) for y in outputs]
            backward = lambda: torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)
            self.once(backward)
            return forward, backward
        except Exception as error:
            print("   peer:", repr(error)[:160], flush=True)
            return None, None


def error(result, reference):
    result, reference = result.double(), reference.double()
    relative = ((result - reference).norm() / reference.norm()).item()
    assert relative < 6e-3, f"wrong by {relative:.1e}"
    return f"{relative:.1e}"


def random(*shape, dtype=BF16):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def leaves_of(*tensors):
    return [t.clone().requires_grad_() for t in tensors]


def f64_of(*tensors):
    return [t.double().requires_grad_() for t in tensors]


def both_passes(bench, op, shape, bytes_of, forward, backward, liger, compiled, leaves, bars, errors):
    if bench.profile:
        bench.print_kernels(f"{op} {shape} forward", forward), bench.print_kernels(f"{op} {shape} backward", backward)
        return
    compiled = compiled and torch.compile(compiled, dynamic=False, fullgraph=True)
    peers = [bench.passes(function, leaves) if function else (None, None) for function in (liger, compiled)]
    for k, (mode, own) in enumerate((("forward", forward), ("backward", backward))):
        times = bench.turns_ms([own, *(of[k] for of in peers)])
        bench.report(op, mode, shape, bytes_of[k], *times, bars and bars[k], " ".join(errors[k]))


def copy(bench):
    for mib in (64, 448):
        a = torch.randint(0, 255, (mib << 20,), dtype=torch.uint8, device=DEVICE)
        b = torch.empty_like(a)
        bench.report("copy", "", f"{mib} MiB", 2 * a.numel(), bench.median_ms(lambda: b.copy_(a)))


def rms_norm(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    bars = {(8192, 4096): (0.036, 0.065), (8192, 2048): (0.021, 0.042), (32768, 1024): (0.037, 0.065), (327680, 128): (0.043, 0.075)}
    for rows, cols in (*bars, (8192, 8192), (8192, 5120), (8192, 16384)):
        x, dy, w = random(rows, cols), random(rows, cols), random(cols)
        y, dx, dw, rstd = torch.empty_like(x), torch.empty_like(x), torch.empty_like(w), random(rows, dtype=F32)
        forward = lambda: doors.rms_norm_forward(x, w, y, rstd, rows, cols)
        backward = lambda: doors.rms_norm_backward(dy, x, w, rstd, dx, dw, rows, cols)
        bench.once(forward), bench.once(backward)
        x64, w64 = f64_of(x, w)
        reference = x64 * torch.rsqrt(x64.pow(2).mean(-1, keepdim=True) + EPS) * w64
        reference.backward(dy.double())
        errors = [error(y, reference)], [error(dx, x64.grad), error(dw, w64.grad)]
        del x64, reference
        first = dw.clone()
        bench.once(backward)
        assert torch.equal(first, dw), "another result in the second run"
        compiled = lambda x, w: w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)).to(BF16)
        size = rows * cols * 2
        both_passes(bench, "rms_norm", f"{rows} x {cols}", (2 * size, 3 * size), forward, backward,
                    lambda x, w: liger.liger_rms_norm(x, w, EPS), compiled, leaves_of(x, w), bars.get((rows, cols)), errors)


def layer_norm(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    for rows, cols, bars in ((8192, 4096, (0.039, 0.075)), (8192, 1024, None), (8192, 8192, None)):
        x, dy, w, b = random(rows, cols) + 3, random(rows, cols), random(cols), random(cols)
        y, dx, dw, db = torch.empty_like(x), torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
        mean, rstd = random(rows, dtype=F32), random(rows, dtype=F32)
        forward = lambda: doors.layer_norm_forward(x, w, b, y, mean, rstd, rows, cols)
        backward = lambda: doors.layer_norm_backward(dy, x, w, mean, rstd, dx, dw, db, rows, cols)
        bench.once(forward), bench.once(backward)
        x64, w64, b64 = f64_of(x, w, b)
        reference = F.layer_norm(x64, (cols,), w64, b64, EPS)
        reference.backward(dy.double())
        errors = [error(y, reference)], [error(dx, x64.grad), error(dw, w64.grad), error(db, b64.grad)]
        size = rows * cols * 2
        both_passes(bench, "layer_norm", f"{rows} x {cols}", (2 * size, 3 * size), forward, backward,
                    lambda x, w, b: liger.liger_layer_norm(x, w, b, EPS), lambda x, w, b: F.layer_norm(x, (cols,), w, b, EPS),
                    leaves_of(x, w, b), bars, errors)


def softmax(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    for rows, cols, bars in ((8192, 4096, (0.036, 0.050)), (2048, 32768, (0.072, 0.099)), (65536, 512, None), (4096, 50257, None)):
        x, dy = random(rows, cols), random(rows, cols)
        y, dx = torch.empty_like(x), torch.empty_like(x)
        forward = lambda: doors.softmax_forward(x, y, rows, cols)
        backward = lambda: doors.softmax_backward(dy, y, dx, rows, cols)
        bench.once(forward), bench.once(backward)
        y64, dy64 = y.double(), dy.double()
        errors = [error(y, x.double().softmax(-1))], [error(dx, y64 * (dy64 - (dy64 * y64).sum(-1, keepdim=True)))]
        del y64, dy64
        size = rows * cols * 2
        both_passes(bench, "softmax", f"{rows} x {cols}", (2 * size, 3 * size), forward, backward, liger.liger_softmax,
                    lambda x: torch.softmax(x, -1), leaves_of(x), bars, errors)


def gates(bench):
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    rows, cols = 8192, 14336
    a, b, dy = (random(rows, cols) for _ in range(3))
    y, da, db = (torch.empty_like(a) for _ in range(3))
    size = rows * cols * 2
    for op, function, peer, bars in (
        ("swiglu", lambda a, b: F.silu(a) * b, liger.liger_swiglu, (0.167, 0.277)),
        ("geglu", lambda a, b: F.gelu(a, approximate="tanh") * b, liger.liger_geglu, (0.167, 0.276)),
    ):
        forward = lambda: getattr(doors, f"{op}_forward")(a, b, y, rows, cols)
        backward = lambda: getattr(doors, f"{op}_backward")(dy, a, b, da, db, rows, cols)
        bench.once(forward), bench.once(backward)
        a64, b64 = f64_of(a[:512], b[:512])
        reference = function(a64, b64)
        reference.backward(dy[:512].double())
        errors = [error(y[:512], reference)], [error(da[:512], a64.grad), error(db[:512], b64.grad)]
        both_passes(bench, op, f"{rows} x {cols}", (3 * size, 5 * size), forward, backward, peer, function, leaves_of(a, b), bars, errors)
    forward = lambda: doors.relu_squared_forward(a, y, rows, cols)
    backward = lambda: doors.relu_squared_backward(dy, a, da, rows, cols)
    bench.once(forward), bench.once(backward)
    errors = [error(y, a.double().relu() ** 2)], [error(da, 2 * a.double().relu() * dy.double())]
    both_passes(bench, "relu_squared", f"{rows} x {cols}", (2 * size, 3 * size), forward, backward, liger.liger_relu_squared, None,
                leaves_of(a), (0.115, 0.166), errors)


def liger_tiled(layer, weights, shards):
    """Liger's tiled MLP of one layer(x, *weights)."""
    from liger_kernel.ops.tiled_mlp import LigerTiledMLPFunction

    return lambda x: LigerTiledMLPFunction.apply(lambda _, part: layer(part, *weights), None, x, shards)


def mlp(bench):
    """Backward overwrites what forward saved: after the first its results are of no use, and its time is the same."""
    import liger_kernel.transformers.functional as liger

    doors = bench.doors
    for name in ("mlp_workspace", "tiled_mlp_workspace"):
        getattr(doors.library, name).restype = ctypes.c_size_t
    for tokens, hidden, n, shards in ((8192, 4096, 14336, 0), (8192, 2048, 8192, 0), (8192, 4096, 14336, 4)):
        x, dy = random(tokens, hidden), random(tokens, hidden)
        wg, wu, wd = random(n, hidden) * 0.02, random(n, hidden) * 0.02, random(hidden, n) * 0.02
        y, dx, dwg, dwu, dwd = (torch.empty_like(t) for t in (x, x, wg, wu, wd))
        extents = [tokens, hidden, n] + ([shards] if shards else [])
        op = "tiled_mlp" if shards else "mlp"
        workspace = getattr(doors.library, f"{op}_workspace")(*map(ctypes.c_size_t, extents))
        bench.more_scratch(workspace + (1 << 20))
        if shards:
            forward = lambda: doors.tiled_mlp_forward(x, wg, wu, wd, y, *extents)
            backward = lambda: doors.tiled_mlp_backward(dy, x, wg, wu, wd, dx, dwg, dwu, dwd, *extents)
        else:
            saved = random(tokens, 3 * n)
            forward = lambda: doors.mlp_forward(x, wg, wu, wd, y, saved, *extents)
            backward = lambda: doors.mlp_backward(dy, x, wg, wu, wd, saved, dx, dwg, dwu, dwd, *extents)
        bench.once(forward), bench.once(backward)
        some = [t.float().requires_grad_() for t in (x, wg, wu, wd)]
        reference = (F.silu(some[0] @ some[1].T) * (some[0] @ some[2].T)) @ some[3].T
        reference.backward(dy.float())
        errors = [error(y, reference)], [error(a, b.grad) for a, b in zip((dx, dwg, dwu, dwd), some)]
        del some, reference
        torch.cuda.empty_cache()
        plain = lambda x, wg, wu, wd: F.linear(F.silu(F.linear(x, wg)) * F.linear(x, wu), wd)
        peer = lambda x, wg, wu, wd: F.linear(liger.liger_swiglu(F.linear(x, wg), F.linear(x, wu)), wd)
        leaves = leaves_of(x, wg, wu, wd)
        if shards:  # Liger's adds to .grad of the weights, which are none of its inputs, and keeps x alone
            x_leaf, *weights = leaves
            peer, plain, leaves = liger_tiled(peer, weights, shards), None, [x_leaf]
        print(f"   {workspace / 2**20:.0f} MiB, {6e-12 * tokens * hidden * n:.2f} TFLOP forward", flush=True)
        both_passes(bench, op, f"{tokens} x {hidden} x {n}" + (f", {shards} shards" if shards else ""), (0, 0), forward, backward,
                    peer, plain, leaves, None, errors)
        del x, dy, wg, wu, wd, y, dx, dwg, dwu, dwd, forward, backward, peer, leaves
        torch.cuda.empty_cache()


def cross_entropy(bench):
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    doors = bench.doors
    for rows, vocab, bar in ((8192, 128256, 1.2), (8192, 32000, None), (4096, 262144, None), (8192, 151936, None), (16384, 8192, None)):
        z, target = random(rows, vocab), torch.randint(0, vocab, (rows,), device=DEVICE)
        target[::7] = -100
        dz, loss = torch.empty_like(z), random(1, dtype=F32)
        forward = lambda: doors.cross_entropy_forward(z, target, loss, dz, rows, vocab)
        bench.once(forward)
        some = slice(rows - 100, rows)
        z64 = z[some].double().requires_grad_()
        kept = (target != -100).sum()
        (F.cross_entropy(z64, target[some], reduction="sum") / kept).backward()
        total = sum(F.cross_entropy(z[i : i + 512].double(), target[i : i + 512], reduction="sum") for i in range(0, rows, 512)) / kept
        errors = [f"{abs(loss.item() / total.item() - 1):.0e}", error(dz[some], z64.grad)]
        first, first_loss = dz.clone(), loss.clone()
        bench.once(forward)
        assert torch.equal(first, dz) and torch.equal(first_loss, loss), "another result in the second run"
        in_place = z.clone()
        bench.once(lambda: doors.cross_entropy_forward(in_place, target, loss, in_place, rows, vocab))
        assert torch.equal(in_place, dz), "in place it is another result"
        del first, z64, in_place
        peer = z.clone().requires_grad_()
        with torch.no_grad():
            liger = lambda: LigerCrossEntropyFunction.apply(peer, target, None, -100, 0.0, 0.0, "mean", None, False)
            times = bench.turns_ms([forward, liger], graph=False, repeats=15)
        del peer
        bench.report("cross_entropy", "both", f"{rows} x {vocab}", 4 * rows * vocab, *times, None, bar, " ".join(errors))
        del z, dz


def fused_linear_cross_entropy(bench):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    doors = bench.doors
    doors.library.fused_linear_cross_entropy_workspace.restype = ctypes.c_size_t
    for rows, hidden, vocab, bar in ((1000, 512, 8000, None), (8192, 4096, 128256, 40.0), (8192, 2048, 128256, 20.0), (8192, 1024, 32000, None)):
        x, w = random(rows, hidden), random(vocab, hidden) * 0.05
        target = torch.randint(0, vocab, (rows,), device=DEVICE)
        target[::7] = -100
        dx, dw, loss = torch.empty_like(x), torch.empty_like(w), random(1, dtype=F32)
        need = doors.library.fused_linear_cross_entropy_workspace(ctypes.c_size_t(rows), ctypes.c_size_t(hidden), ctypes.c_size_t(vocab))
        print(f"   {need / 2**20:.0f} MiB", flush=True)
        bench.more_scratch(need + 4 * 1024 * vocab + 2 * 1024 * hidden)
        for chunk in (0, 2048):
            forward = lambda: doors.fused_linear_cross_entropy_forward(x, w, target, loss, dx, dw, rows, hidden, vocab, chunk)
            bench.once(forward)
            errors = ""
            if rows * vocab <= 1000 * 8000:
                x64, w64 = f64_of(x, w)
                reference = F.cross_entropy(x64 @ w64.T, target)
                reference.backward()
                errors = f"{abs(loss.item() / reference.item() - 1):.0e} {error(dx, x64.grad)} {error(dw, w64.grad)}"
            liger = None
            if chunk == 0:
                a, b = leaves_of(x, w)
                liger = lambda: LigerFusedLinearCrossEntropyFunction.apply(a, b, target)
            ms, liger = bench.turns_ms([forward, liger], graph=False, repeats=7)
            bench.report("fused_linear_cross_entropy", "both", f"{rows} x {hidden} x {vocab}, {chunk or 'default'}", None, ms, liger, None, bar,
                         f"{6 * rows * hidden * vocab / ms / 1e9:.0f} TFLOP/s {errors}")
        del x, w, dx, dw
        torch.cuda.empty_cache()


OPERATORS = [copy, rms_norm, layer_norm, softmax, gates, mlp, cross_entropy, fused_linear_cross_entropy]


def main():
    import peers_attention  # which take what is above from here
    import peers_losses
    import peers_rows

    library, profile = sys.argv[1], "--profile" in sys.argv
    wanted = [name for name in sys.argv[2:] if name != "--profile"]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    bench, failed = Bench(library, profile), []
    for operator in OPERATORS + peers_rows.OPERATORS + peers_attention.OPERATORS + peers_losses.OPERATORS:
        if not wanted or operator.__name__ in wanted:
            try:
                operator(bench)
            except Exception as problem:  # the others are measured
                failed.append(operator.__name__)
                print(f"FAILED {operator.__name__}: {problem!r}"[:400], flush=True)
            torch.cuda.empty_cache()
    if bench.rows:
        with open(os.path.join(os.environ.get("OUT", "."), "peers.csv"), "w", newline="") as f:
            writer = csv.DictWriter(f, bench.rows[0])
            writer.writeheader()
            writer.writerows(bench.rows)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
