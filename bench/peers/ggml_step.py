#!/usr/bin/env python3
"""A training step in f32 by tigon's example program and by ggml on a CPU, side by side.

    git clone https://github.com/ggml-org/ggml
    cmake -S ggml -B ggml/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_LLAMAFILE=ON \\
          -DGGML_BUILD_EXAMPLES=OFF -DGGML_BUILD_TESTS=OFF && cmake --build ggml/build
    cmake --preset release && cmake --build build/release --target train_llama
    bench/peers/ggml_step.py build/release/examples/train_llama/train_llama ggml [--threads 16]

Both train the same Llama on random tokens: forward, backward and AdamW. ggml's step is ggml_step.cpp, compiled here; it
does not clip gradients. Programs take turns; the table has the medians over the rounds. Memory is what a step takes
beyond weights, gradients and moments.
"""

import argparse
import os
import re
import subprocess
import tempfile

from measured import STATE_BYTES, print_table, run, run_train_llama

SIZES = {"vocab": 32000, "layers": 12, "hidden": 768, "intermediate": 2048, "heads": 12, "kv-heads": 4, "seq-len": 256}


def compiled(ggml, folder):
    program = os.path.join(folder, "ggml_step")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ggml_step.cpp")
    libraries = ["-lggml", "-lggml-cpu", "-lggml-base", "-fopenmp", "-ldl", "-pthread"]
    subprocess.run(["g++", "-std=c++20", "-O2", "-I", os.path.join(ggml, "include"), source, "-o", program,
                    "-L", os.path.join(ggml, "build/src"), *libraries], check=True)
    return program


def of_ggml(command):
    lines, memory = run(command)
    return float(re.search(r"([0-9.]+) tokens/s", "".join(lines))[1]), memory


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("train_llama")
    p.add_argument("ggml", help="folder of a checkout of ggml, built in its folder build")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=4, help="of a round; the first one does not count")
    for name, value in SIZES.items():
        p.add_argument(f"--{name}", type=int, default=value)
    return p.parse_args()


def main():
    o = options()
    sizes = {name: getattr(o, name.replace("-", "_")) for name in SIZES}
    found = {"ggml": [], "tigon": []}
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(o.ggml, folder)
        for _ in range(o.rounds):
            ggml_rate, ggml_memory = of_ggml([program, *sizes.values(), o.steps, o.threads])
            rate, memory, count = run_train_llama(
                o.train_llama, {"batch": 1, "steps": o.steps, "threads": o.threads, **sizes})
            found["tigon"].append((rate, memory - STATE_BYTES * count))
            found["ggml"].append((ggml_rate, ggml_memory - STATE_BYTES * count))
    print(f"{o.seq_len} tokens a step, {o.threads} threads")
    print_table(found)


if __name__ == "__main__":
    main()
