#!/usr/bin/env python3
"""A step of fine-tuning a Hugging Face folder in f32, all weights, by tigon's program and by transformers, side by side.

    pip install torch transformers
    cmake --preset release && cmake --build build/release --target finetune
    bench/peers/finetune_step.py build/release/tools/finetune/finetune FOLDER [--seq-len 512] [--threads 2]

Both learn the same random ids, a document of --seq-len tokens a step: forward, backward, clipping to norm 1 and AdamW.
Each measurement is a process of its own; the peers take turns, and the table has the medians over the rounds. PyTorch's
processes keep freed memory (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_). Memory is what was resident at most; 16
bytes a parameter of it are weights, gradients and moments. The loss is that of the first step.
"""

import argparse
import csv
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def transformers_worker(o):
    """Prints one JSON line."""
    import torch
    import transformers

    torch.set_num_threads(o.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(o.folder, dtype=torch.float32).train()
    with open(o.ids) as f:
        documents = [torch.tensor([[int(word) for word in line.split()]]) for line in f]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    losses, seconds = [], []
    for step in range(o.warmup + o.steps):
        ids = documents[step % len(documents)]
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss  # shifted by the model
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    print(json.dumps({"rate": o.seq_len / statistics.median(seconds[o.warmup:]), "loss": losses[0],
                      "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "parameters": sum(p.numel() for p in model.parameters())}))


def of_transformers(o, ids):
    env = dict(os.environ, MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_MMAP_THRESHOLD_=str(1 << 40),
               OMP_NUM_THREADS=str(o.threads))
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--worker", "--ids", ids], env=env,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"transformers ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def of_tigon(o, ids, curve):
    command = [o.program, o.folder, "--data", ids, "--seq-len", str(o.seq_len), "--steps", str(o.warmup + o.steps),
               "--schedule", "constant", "--lr", "1e-5", "--threads", str(o.threads), "--csv", curve]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    with open(curve) as f:
        loss = float(next(csv.DictReader(f))["loss"])
    return {"rate": float(re.search(r"([0-9.]+) tokens/s", out).group(1)), "loss": loss,
            "memory": usage.ru_maxrss * 1024}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", help="finetune")
    p.add_argument("folder", help="a model as transformers saves it")
    p.add_argument("--seq-len", type=int, default=512)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--ids", help=argparse.SUPPRESS)
    return p.parse_args()


def main():
    o = options()
    if o.worker:
        return transformers_worker(o)
    with open(os.path.join(o.folder, "config.json")) as f:
        vocab = json.load(f)["vocab_size"]
    found = {"transformers": [], "tigon": []}
    with tempfile.TemporaryDirectory() as scratch:
        ids, curve = os.path.join(scratch, "data.ids"), os.path.join(scratch, "curve.csv")
        draw = random.Random(1)
        document = " ".join(str(draw.randrange(vocab)) for _ in range(o.seq_len))
        with open(ids, "w") as f:
            f.write((document + "\n") * (o.warmup + o.steps))  # the order of the documents does not matter
        for _ in range(o.rounds):
            found["transformers"].append(of_transformers(o, ids))
            found["tigon"].append(of_tigon(o, ids, curve))
    state = 16 * found["transformers"][0]["parameters"]
    rate = {name: statistics.median(m["rate"] for m in of) for name, of in found.items()}
    print(f"f32, 1 x {o.seq_len} tokens a step, {o.threads} threads, state {state / 2**20:.0f} MiB")
    print(f"{'':13} {'tokens/s':>9} {'lowest':>8} {'highest':>8} {'tigon / it':>11} {'memory MiB':>11} {'first loss':>11}")
    for name, of in found.items():
        all_rates = [m["rate"] for m in of]
        memory = statistics.median(m["memory"] for m in of) / 2**20
        print(f"{name:13} {rate[name]:9.1f} {min(all_rates):8.1f} {max(all_rates):8.1f} {rate['tigon'] / rate[name]:11.2f} "
              f"{memory:11.0f} {of[0]['loss']:11.6f}")


if __name__ == "__main__":
    main()
