#!/usr/bin/env python3
"""A training step in f32 by tigon's example program and by llm.c's train_gpt2 on a CPU, side by side.

    git clone https://github.com/karpathy/llm.c && make -C llm.c train_gpt2
    cmake --preset release && cmake --build build/release --target train_llama
    bench/peers/llm_c.py build/release/examples/train_llama/train_llama llm.c/train_gpt2 [--threads 16]

llm.c trains GPT-2 of 124 million parameters on 4 x 64 tokens; both numbers are fixed in its program. Its weights and
tokens are random here, in a folder that is removed again. tigon trains a Llama with 12 layers, hidden 768, 12 heads of
keys, intermediate 2048 and the same vocabulary: its products take as many operations a token (2 x 3 x 123.5 million;
norms, gates and rotations are others). Programs take turns; the table has the medians over the rounds. Memory is what
a step takes beyond weights, gradients and moments.
"""

import argparse
import array
import os
import random
import re
import statistics
import tempfile

from measured import STATE_BYTES, print_table, run, run_train_llama

LAYERS, HEADS, HIDDEN, VOCAB, PADDED_VOCAB, LONGEST = 12, 12, 768, 50257, 50304, 1024
BATCH, LENGTH = 4, 64


def parameters():
    layer = 2 * 2 * HIDDEN + 12 * HIDDEN * HIDDEN + 9 * HIDDEN  # two norms, four matrices, their biases
    return PADDED_VOCAB * HIDDEN + LONGEST * HIDDEN + LAYERS * layer + 2 * HIDDEN


def prepare(folder):
    """The files that train_gpt2 reads in its working directory."""
    draw = random.Random(1)
    header = array.array("i", [20240326, 3, LONGEST, VOCAB, LAYERS, HEADS, HIDDEN, PADDED_VOCAB] + [0] * 248)
    block = array.array("f", [draw.gauss(0, 0.02) for _ in range(1 << 20)])
    with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as f:
        header.tofile(f)
        left = parameters()
        while left > 0:
            block[:left].tofile(f)
            left -= len(block)
    data = os.path.join(folder, "dev/data/tinyshakespeare")
    os.makedirs(data)
    count = 64 * BATCH * LENGTH + 1
    for name in ["train", "val"]:
        with open(os.path.join(data, f"tiny_shakespeare_{name}.bin"), "wb") as f:
            array.array("i", [20240520, 1, count] + [0] * 253).tofile(f)
            array.array("H", [draw.randrange(VOCAB) for _ in range(count)]).tofile(f)


def of_llm_c(folder, o):
    """Tokens per second, from the median step after the first ones, and bytes beyond weights, gradients and moments."""
    found = []

    def is_last(line):
        step = re.search(r"step \d+: .*took ([0-9.]+) ms", line)
        found.extend([float(step[1])] if step else [])
        return len(found) == o.warmup + o.steps

    command = ["stdbuf", "-oL", os.path.abspath(o.train_gpt2)]  # a line when a step ends, not when the program does
    _, memory = run(command, is_last, cwd=folder, env=dict(os.environ, OMP_NUM_THREADS=str(o.threads)))
    if len(found) < o.warmup + o.steps:
        raise SystemExit(f"{o.train_gpt2} ended after {len(found)} steps")
    return 1e3 * BATCH * LENGTH / statistics.median(found[o.warmup:]), memory - STATE_BYTES * parameters()


def of_tigon(o):
    sizes = {"vocab": VOCAB, "layers": LAYERS, "hidden": HIDDEN, "intermediate": 2048, "heads": HEADS, "kv-heads": HEADS,
             "seq-len": LENGTH, "batch": BATCH, "steps": o.warmup + o.steps, "threads": o.threads, "dtype": "f32"}
    rate, memory, count = run_train_llama(o.program, sizes)
    return rate, memory - STATE_BYTES * count


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", help="train_llama")
    p.add_argument("train_gpt2", help="llm.c's program")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    p.add_argument("--steps", type=int, default=5)
    o = p.parse_args()
    found = {"llm.c": [], "tigon": []}
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        for _ in range(o.rounds):
            found["llm.c"].append(of_llm_c(folder, o))
            found["tigon"].append(of_tigon(o))
    print(f"f32, {BATCH} x {LENGTH} tokens a step, {o.threads} threads")
    print_table(found)


if __name__ == "__main__":
    main()
