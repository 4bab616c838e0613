#!/usr/bin/env python3
"""A training step of a Llama by tigon's example program and by PyTorch, side by side: tokens per second and memory.

    pip install torch transformers
    cmake --preset release && cmake --build build/release --target train_llama
    bench/peers/llama_step.py build/release/examples/train_llama/train_llama [--dtype f32 bf16] [--threads 16] [--csv FILE]

Every peer has the same model (Hugging Face's LlamaForCausalLM, random weights), random tokens, forward, backward,
clipping to norm 1 and AdamW. Each measurement is a process of its own; the peers take turns, and the table has the
median over the rounds. PyTorch's processes keep freed memory (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_), without
which eager spends its time on fresh pages.

    eager, compile     weights and activations f32
    chunked loss       eager, with PyTorch's cross entropy behind a layer by chunks of rows, without all logits
    autocast           weights f32, products bf16                          (bf16)
    compile autocast   the same by torch.compile                           (bf16)
    autocast chunked loss  the same, with that loss in bf16                (bf16)
    bf16 weights       weights, gradients and moments bf16                 (bf16; less exact than the others)
    tigon              f32; or bf16 weights and activations, f32 masters, gradients and moments

Memory is what the process had at its peak beyond what it had before the model, and beyond weights, gradients and
moments: 16 bytes a parameter in f32, 18 for tigon's bf16 (masters), 8 for bf16 weights.
"""

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from measured import run_train_llama

PEERS = {"f32": ["eager", "compile", "chunked loss", "tigon"],
         "bf16": ["autocast", "compile autocast", "autocast chunked loss", "bf16 weights", "tigon"]}
STATE_BYTES = {"bf16 weights": 8}


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def parameters(o):
    head = o.hidden // o.heads
    layer = o.hidden * (o.hidden + 2 * o.kv_heads * head) + o.hidden * o.hidden + 3 * o.hidden * o.intermediate
    return 2 * o.vocab * o.hidden + o.layers * (layer + 2 * o.hidden) + o.hidden


def loss_by_chunks(model, ids):
    """The model's loss, without all logits. Under autocast of the types that its product would have."""
    import torch

    hidden, weight = model.model(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1), model.lm_head.weight
    if torch.is_autocast_enabled("cpu"):
        hidden, weight = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
    return torch.nn.functional.linear_cross_entropy(
        hidden, weight, ids[:, 1:].flatten(), options=torch.nn.LinearCrossEntropyOptions())


def pytorch_worker(peer, o):
    """Prints one JSON line."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(o.threads)
    before = resident()
    config = LlamaConfig(
        vocab_size=o.vocab, hidden_size=o.hidden, intermediate_size=o.intermediate, num_hidden_layers=o.layers,
        num_attention_heads=o.heads, num_key_value_heads=o.kv_heads, max_position_embeddings=o.seq_len,
        tie_word_embeddings=False, use_cache=False, attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    if peer == "bf16 weights":
        model = model.to(torch.bfloat16)
    model.train()
    assert sum(p.numel() for p in model.parameters()) == parameters(o)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if peer.startswith("compile") else model
    seconds = []
    for _ in range(o.warmup + o.steps):
        ids = torch.randint(o.vocab, (o.batch, o.seq_len + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in peer):
            ids = ids[:, :-1].contiguous()
            # Labels are shifted by the model.
            loss = loss_by_chunks(model, ids) if "chunked" in peer else run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rate": o.batch * o.seq_len / statistics.median(seconds[o.warmup:]),
                      "memory": peak - before - STATE_BYTES.get(peer, 16) * parameters(o)}))


def of_pytorch(peer, o, arguments):
    env = dict(os.environ, MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_MMAP_THRESHOLD_=str(1 << 40),
               OMP_NUM_THREADS=str(o.threads))
    done = subprocess.run([sys.executable, __file__, *arguments, "--worker", peer], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{peer} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def of_tigon(dtype, o):
    sizes = {"vocab": o.vocab, "layers": o.layers, "hidden": o.hidden, "intermediate": o.intermediate, "heads": o.heads,
             "kv-heads": o.kv_heads, "seq-len": o.seq_len, "batch": o.batch, "steps": o.warmup + o.steps,
             "threads": o.threads, "dtype": dtype}
    rate, memory, _ = run_train_llama(o.program, sizes)
    return {"rate": rate, "memory": memory - (18 if dtype == "bf16" else 16) * parameters(o)}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", help="train_llama")
    p.add_argument("--dtype", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    p.add_argument("--peers", nargs="+", help="only these")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    p.add_argument("--steps", type=int, default=5)
    for name, value in {"layers": 12, "hidden": 768, "intermediate": 2048, "heads": 12, "kv-heads": 4, "vocab": 32000,
                        "batch": 2, "seq-len": 1024}.items():
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--csv", help="every measurement")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    return p.parse_args()


def processor():
    with open("/proc/cpuinfo") as f:
        fields = dict(map(str.strip, line.split(":", 1)) for line in f if ":" in line)
    return f"{fields.get('model name', 'a processor')}, family {fields.get('cpu family')}, model {fields.get('model')}"


def main():
    o = options()
    if o.worker:
        return pytorch_worker(o.worker, o)
    import torch
    import transformers
    print(f"{processor()}; {o.threads} threads; PyTorch {torch.__version__}, transformers {transformers.__version__}")
    print(f"Llama of {parameters(o) / 1e6:.1f} million parameters, {o.batch} x {o.seq_len} tokens a step")
    rows = []
    for dtype in o.dtype:
        peers = [p for p in PEERS[dtype] if not o.peers or p in o.peers]
        found = {p: [] for p in peers}
        for _ in range(o.rounds):
            for p in peers:
                found[p].append(of_tigon(dtype, o) if p == "tigon" else of_pytorch(p, o, sys.argv[1:]))
                rows.append([dtype, p, found[p][-1]["rate"], found[p][-1]["memory"]])
        rate = {p: statistics.median(m["rate"] for m in found[p]) for p in peers}
        print(f"\n{dtype:18} {'tokens/s':>9} {'lowest':>8} {'highest':>8} {'tigon / it':>11} {'memory MiB':>11}")
        for p in peers:
            all_rates = [m["rate"] for m in found[p]]
            beside = f"{rate['tigon'] / rate[p]:11.2f}" if "tigon" in rate else " " * 11
            memory = statistics.median(m["memory"] for m in found[p]) / 2**20
            print(f"{p:18} {rate[p]:9.0f} {min(all_rates):8.0f} {max(all_rates):8.0f} {beside} {memory:11.0f}")
    if o.csv:
        with open(o.csv, "w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["dtype", "peer", "tokens_per_second", "memory_bytes"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
