#!/usr/bin/env python3
"""Products by tigon and by PyTorch alternately: f32, one thread, at 1024^3 and at the shapes of a Llama with 1024 tokens.

    pip install torch
    cmake --preset bench -DTIGON_BENCH_OPS=gemm -DTIGON_BENCH_QUICK=ON && cmake --build --preset bench
    taskset -c 1 bench/peers/products.py build/bench/bench/tigon_bench

nt is x w^T, nn dy w, tn dy^T x. The better of two medians of each; tigon's fraction of the FMA peak is the one that
tigon_bench prints, which reads the peak before and behind each case. PyTorch held to AVX2, for a program that was compiled
for it: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2.
"""
import argparse
import csv
import pathlib
import statistics
import subprocess
import tempfile
import time

HIDDEN = {256: (704, 512), 576: (1536, 960), 768: (2048, 1280)}  # intermediate; query, key and value together
TOKENS = 1024


def shapes():
    """Variant, and m x n x k of its c."""
    yield from ((variant, 1024, 1024, 1024) for variant in ("nt", "nn", "tn"))
    for hidden, (intermediate, qkv) in HIDDEN.items():
        for out, into in ((qkv, hidden), (hidden, hidden), (2 * intermediate, hidden), (hidden, intermediate)):
            yield "nt", TOKENS, out, into
            yield "nn", TOKENS, into, out
            yield "tn", out, into, TOKENS


def of_pytorch(variant, m, n, k, budget):
    """Milliseconds, the median."""
    import torch

    a = torch.randn(k, m).t() if variant == "tn" else torch.randn(m, k)
    b = torch.randn(n, k).t() if variant == "nt" else torch.randn(k, n)
    c, times = a @ b, []
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measured_by(program, *options):
    """tigon_bench's milliseconds of one case, and its fraction of the peak."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "case.csv"
        subprocess.run([program, "--backend", "highway", "--csv", path, *options], stdout=subprocess.DEVNULL, check=True)
        row = next(r for r in csv.DictReader(open(path)) if r["metric_name"] == "speed")
    return float(row["y_value_50"]), float(row["fraction_of_limit"])


def of_tigon(program, variant, m, n, k, budget, dtype="f32"):
    return measured_by(program, "--op", "gemm", "--variant", variant, "--dtype", dtype, "--shape", f"{m}x{n}x{k}",
                       "--budget", str(budget))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", help="tigon_bench")
    p.add_argument("--budget", type=float, default=0.1, help="seconds of a measurement")
    p.add_argument("--rounds", type=int, default=2)
    o = p.parse_args()
    import torch

    torch.set_num_threads(1)
    measured = {}
    print(f"{'':3} {'m x n x k':16} {'PyTorch ms':>10} {'tigon ms':>10} {'ratio':>6} {'of peak':>8}")
    for variant, m, n, k in shapes():
        theirs, ours = [], []
        for _ in range(o.rounds):
            theirs.append(of_pytorch(variant, m, n, k, o.budget))
            ours.append(of_tigon(o.program, variant, m, n, k, o.budget))
        ms, of_peak = min(t for t, _ in ours), max(f for _, f in ours)
        measured.setdefault(variant, []).append((min(theirs) / ms, of_peak))
        print(f"{variant:3} {f'{m} x {n} x {k}':16} {min(theirs):10.3f} {ms:10.3f} {min(theirs) / ms:6.2f} {of_peak:8.2f}",
              flush=True)
    for variant, rows in measured.items():
        ratios, fractions = zip(*rows)
        print(f"{variant}: PyTorch's time is {statistics.mean(ratios):.3f} of tigon's on the mean ({min(ratios):.2f} to "
              f"{max(ratios):.2f}); {statistics.mean(fractions):.2f} of the peak ({min(fractions):.2f} to {max(fractions):.2f})")


if __name__ == "__main__":
    main()
