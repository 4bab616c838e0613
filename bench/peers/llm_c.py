#!/usr/bin/env python3
"""A training step in f32 by tigon's example program and by llm.c's train_gpt2 on a CPU, side by side.

    git clone https://github.com/karpathy/llm.c && make -C llm.c train_gpt2
    cmake --preset release && cmake --build build/release --target train_llama
    bench/peers/llm_c.py build/release/examples/train_llama/train_llama llm.c/train_gpt2 [--threads 16]

llm.c trains GPT-2 of 124 million parameters on 4 x 64 tokens; both numbers are fixed in its program. Its weights and
tokens are random here, in a folder that is removed again. tigon trains a Llama with 12 layers, hidden 768, 12 heads of
keys, intermediate 2048 and the same vocabulary: its products take as many operations a token (2 x 3 x 123.5 million;
norms, gates and rotations are others). Programs take turns; the table has the medians over the rounds.
"""

import argparse
import array
import os
import random
import re
import statistics
import subprocess
import tempfile

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
    """Tokens per second: the median step after the first ones."""
    env = dict(os.environ, OMP_NUM_THREADS=str(o.threads))
    milliseconds = []
    command = ["stdbuf", "-oL", os.path.abspath(o.train_gpt2)]  # a line when a step ends, not when the program does
    with subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE) as child:
        for line in child.stdout:
            found = re.search(r"step \d+: .*took ([0-9.]+) ms", line)
            if found:
                milliseconds.append(float(found.group(1)))
            if len(milliseconds) == o.warmup + o.steps:
                child.kill()
                break
    if len(milliseconds) < o.warmup + o.steps:
        raise SystemExit(f"{o.train_gpt2} ended with {child.returncode} after {len(milliseconds)} steps")
    return 1e3 * BATCH * LENGTH / statistics.median(milliseconds[o.warmup:])


def of_tigon(o):
    sizes = {"vocab": VOCAB, "layers": LAYERS, "hidden": HIDDEN, "intermediate": 2048, "heads": HEADS, "kv-heads": HEADS,
             "seq-len": LENGTH, "batch": BATCH, "steps": o.warmup + o.steps, "threads": o.threads, "dtype": "f32"}
    command = [o.program, "--random"] + [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{out.stderr}")
    return float(re.search(r"([0-9.]+) tokens/s", out.stdout).group(1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", help="train_llama")
    p.add_argument("train_gpt2", help="llm.c's program")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    p.add_argument("--steps", type=int, default=5)
    o = p.parse_args()
    rates = {"llm.c": [], "tigon": []}
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        for _ in range(o.rounds):
            rates["llm.c"].append(of_llm_c(folder, o))
            rates["tigon"].append(of_tigon(o))
    rate = {name: statistics.median(of) for name, of in rates.items()}
    print(f"f32, {BATCH} x {LENGTH} tokens a step, {o.threads} threads")
    print(f"{'':8} {'tokens/s':>9} {'lowest':>8} {'highest':>8} {'tigon / it':>11}")
    for name, of in rates.items():
        print(f"{name:8} {rate[name]:9.0f} {min(of):8.0f} {max(of):8.0f} {rate['tigon'] / rate[name]:11.2f}")


if __name__ == "__main__":
    main()
