#!/usr/bin/env python3
"""What compilers and tunings make of the loops of products and attention: fractions of the FMA peak by several builds of
tigon_bench, each on a pinned core of its own, one thread, all alternately.

    for tune in generic haswell znver2 znver3; do
      cmake -S . -B build/$tune --preset bench -DTIGON_BENCH_OPS="gemm;attention" -DTIGON_BENCH_QUICK=ON \\
        -DTIGON_ARCH=x86-64-v3 -DCMAKE_CXX_FLAGS=-mtune=$tune && cmake --build build/$tune --target tigon_bench
    done
    bench/tunings.py --cores 1,3 build/*/bench/tigon_bench

Of every case the best of --rounds counts. tigon_bench reads the peak before and behind it. As many builds run at once as
there are cores.
"""
import argparse
import concurrent.futures
import csv
import os
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "peers"))
from products import measured_by, of_tigon, shapes  # noqa: E402

HEADS = {64: 8, 128: 4}  # of a width


def cases():
    """A name, and what measures it with a program and a budget."""
    for dtype in ("f32", "bf16"):
        for variant, *mnk in shapes():
            if dtype == "f32" or variant == "nt":
                yield f"{dtype} {variant} {'x'.join(map(str, mnk))}", \
                    lambda program, budget, v=variant, s=mnk, d=dtype: of_tigon(program, v, *s, budget, d)
    for width, heads in HEADS.items():
        for tokens in (1024, 2048, 4096):
            for mode in ("forward", "backward"):
                yield f"attention {mode} {width} {tokens}", lambda program, budget, m=mode, s=f"1x{tokens}x{heads}x{heads}x{width}": \
                    measured_by(program, "--op", "attention", "--mode", m, "--variant", "default", "--dtype", "f32", "--shape", s,
                                "--budget", str(budget), "--threads", "1")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("programs", nargs="+", help="tigon_bench of each build")
    p.add_argument("--cores", default="1")
    p.add_argument("--budget", type=float, default=0.1, help="seconds of a measurement")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--csv", help="file for every case")
    o = p.parse_args()
    cores = [int(c) for c in o.cores.split(",")]
    best = {program: {} for program in o.programs}

    def of_core(which):
        os.sched_setaffinity(0, {cores[which]})  # of this thread, and of what it starts
        for name, measure in cases():
            for program in o.programs[which :: len(cores)]:
                fraction = measure(program, o.budget)[1]
                best[program][name] = max(fraction, best[program].get(name, 0))

    for _ in range(o.rounds):
        with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
            list(pool.map(of_core, range(len(cores))))
        if o.csv:
            with open(o.csv, "w", newline="") as file:
                head = ["case", *o.programs]
                csv.writer(file).writerows([head, *([name, *(best[p][name] for p in o.programs)] for name, _ in cases())])
    kinds = {"f32": "f32 ", "bf16": "bf16 ", "attention": "attention "}
    print("fractions of the FMA peak: mean (least)", *kinds, sep=" | ")
    for program, of in best.items():
        found = [[f for name, f in of.items() if name.startswith(prefix)] for prefix in kinds.values()]
        print(program, *(f"{statistics.mean(fs):.2f} ({min(fs):.2f})" for fs in found), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
