"""Trains a model with and without tigon's operators and compares speed, memory and losses.

    python -m tigon_torch.compare [--model FOLDER] [--batch 2] [--seq 256] [--steps 4] [--rounds 3] [--dtype float32]
                                  [--optimizer tigon] [--fused] [--compile] [--keep] [--share] [--exact] [--out PREFIX]

Each variant trains (forward, backward, AdamW) on the same random tokens in a fresh process, by turns, several rounds;
printed are medians. Without --model a small random Llama.

memory    the most that was resident during the steps, beyond what is resident between them: weights, gradients,
          the optimizer's two moments and the libraries. Linux only.
loss      the largest relative difference of a step's loss from eager's.
--optimizer  of the patched model: tigon_torch.AdamW, or torch for torch.optim.AdamW, which eager has.
--fused   torch.optim.AdamW is made with fused=True.
--share   switches the operators on one after the other, in one process and by turns, and shows what each one adds.
--exact   compares the gradients of --rounds batches with those of the same weights in f64.
--out     writes PREFIX.csv, a line for each run, and PREFIX.svg.
"""
from __future__ import annotations

import argparse
import csv
import ctypes
import functools
import gc
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

VARIANTS = {"eager": (False, False), "tigon": (True, False), "compiled": (False, True), "tigon, compiled": (True, True)}
# In the order in which --share adds them. Names of one line belong together.
ORDER = [["rms_norm", "fused_add_rms_norm"], ["rope"], ["swiglu", "geglu"], ["moe"], ["attention"],
         ["cross_entropy", "fused_linear_cross_entropy"], ["linear"]]


# ---- memory

def _status(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    try:
        for line in open("/proc/self/status"):
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return math.nan


def resident_now() -> float:
    """MiB resident, after what is free has been given back."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass
    return _status("VmRSS")


def start_peak() -> None:
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak() -> float:
    return _status("VmHWM")


# ---- one run

def small_config():
    import transformers

    return transformers.LlamaConfig(vocab_size=8192, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                                    num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)


def load(options, dtype=None):
    import torch
    import transformers

    torch.manual_seed(0)
    dtype = dtype or getattr(torch, options.dtype)
    if options.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
    else:
        model = transformers.AutoModelForCausalLM.from_config(small_config()).to(dtype)
    model.config.use_cache = False
    return model.train()


def tokens(options, vocab: int, step: int, seq: int | None = None):
    import torch

    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, vocab, (options.batch, options.seq if seq is None else seq), generator=generator)
    return {"input_ids": ids, "labels": ids}


def adamw(options, model, ours: bool, **changes):
    import torch

    if ours and options.optimizer == "tigon":
        import tigon_torch

        return tigon_torch.AdamW(model.parameters(), **changes)
    return torch.optim.AdamW(model.parameters(), fused=options.fused or None, **changes)


def train_step(model, optimizer, inputs) -> float:
    loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def switches_of(options) -> dict:
    return {"linear": {"auto": "auto", "on": True, "off": False}[options.linear], "recompute": not options.keep}


def worker(options, variant: str) -> dict:
    """Trains one variant; what it measured."""
    import torch

    patched, compiled = VARIANTS[variant]
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load(options)
    vocab = model.config.vocab_size
    report = None
    if patched:
        import tigon_torch

        report = tigon_torch.apply(model, **switches_of(options))
    optimizer = adamw(options, model, patched, lr=1e-5)
    run = torch.compile(model) if compiled else model
    # The first step makes the optimizer's state, threads and code. A short one is enough unless it is compiled, for
    # this length. Its learning rate is zero, so that it leaves the weights as they are.
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 0.0, 0.0
    train_step(run, optimizer, tokens(options, vocab, -1, None if compiled else min(options.seq, 32)))
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    state = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad) / 2**20
    between = resident_now() + state  # the gradients have been freed just now
    start_peak()
    seconds, losses = [], []
    for step in range(options.steps):
        inputs = tokens(options, vocab, step)
        begin = time.perf_counter()
        losses.append(train_step(run, optimizer, inputs))
        seconds.append(time.perf_counter() - begin)
    return {"variant": variant, "seconds": seconds, "losses": losses, "memory": max(0.0, peak() - between),
            "parameters": sum(p.numel() for p in model.parameters()), "report": str(report) if report else ""}


def in_fresh_process(options, variant: str) -> dict:
    command = [sys.executable, "-m", "tigon_torch.compare", "--worker", variant, *options.passed]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"compare: {variant} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


# ---- all rounds

def summarise(runs: list[dict], options) -> list[dict]:
    rows = []
    for variant in dict.fromkeys(run["variant"] for run in runs):
        of = [run for run in runs if run["variant"] == variant]
        eager = [run for run in runs if run["variant"] == "eager"]
        step = statistics.median(statistics.median(run["seconds"]) for run in of)
        losses = [pair for run, base in zip(of, eager) for pair in zip(run["losses"], base["losses"])]
        differences = [abs(actual - expected) / abs(expected) for actual, expected in losses]
        rows.append({"variant": variant, "step": step, "tokens": options.batch * options.seq / step,
                     "memory": statistics.median(run["memory"] for run in of), "loss": max(differences)})
    return rows


def print_rows(rows: list[dict]) -> None:
    base = rows[0]
    print(f"{'':16} {'s/step':>8} {'tokens/s':>9} {'of eager':>9} {'memory MiB':>11} {'of eager':>9} {'loss':>9}")
    for row in rows:
        memory = row["memory"] / base["memory"] if base["memory"] else math.nan
        print(f"{row['variant']:16} {row['step']:8.3f} {row['tokens']:9.1f} {row['tokens'] / base['tokens']:9.2f} "
              f"{row['memory']:11.0f} {memory:9.2f} {row['loss']:9.1e}")


def write_csv(path: pathlib.Path, runs: list[dict], options) -> None:
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["model", "dtype", "batch", "seq", "round", "variant", "seconds_per_step", "tokens_per_second",
                      "memory_mib", "last_loss"])
        rounds: dict[str, int] = {}
        for run in runs:
            number = rounds[run["variant"]] = rounds.get(run["variant"], 0) + 1
            step = statistics.median(run["seconds"])
            out.writerow([options.model or "random llama", options.dtype, options.batch, options.seq, number,
                          run["variant"], f"{step:.5f}", f"{options.batch * options.seq / step:.2f}",
                          f"{run['memory']:.1f}", repr(run["losses"][-1])])


def bars(title: str, names: list[str], values: list[float], top: int, form: str) -> list[str]:
    """One panel of horizontal bars, 26 pixels a bar."""
    most = max([v for v in values if v == v] or [1]) or 1
    lines = [f'<text x="10" y="{top + 16}" font-weight="bold">{title}</text>']
    for i, (name, value) in enumerate(zip(names, values)):
        y = top + 26 + 26 * i
        width = 0 if value != value else max(0.0, 380 * value / most)
        lines += [f'<text x="10" y="{y + 15}">{name}</text>',
                  f'<rect x="190" y="{y}" width="{width:.1f}" height="20" fill="{"#b0b0b0" if i == 0 else "#2f6db5"}"/>',
                  f'<text x="{195 + width:.1f}" y="{y + 15}">{form.format(value)}</text>']
    return lines


def write_svg(path: pathlib.Path, head: str, panels: list[tuple[str, list[str], list[float], str]]) -> None:
    lines, top = [f'<text x="10" y="20">{head}</text>'], 30
    for title, names, values, form in panels:
        lines += bars(title, names, values, top, form)
        top += 26 * len(names) + 40
    body = "\n".join(lines)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{top}" font-family="sans-serif" '
                    f'font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')


def title_of(options) -> str:
    name = pathlib.Path(options.model).name if options.model else "a small random Llama"
    return f"{name}, {options.dtype}, {options.batch} x {options.seq} tokens, forward, backward and AdamW"


def compare(options) -> None:
    variants = ["eager", "tigon"] + (["compiled", "tigon, compiled"] if options.compile else [])
    runs = []
    for number in range(options.rounds):
        for variant in variants if number % 2 == 0 else variants[::-1]:
            runs.append(in_fresh_process(options, variant))
            run = runs[-1]
            if number == 0 and run["report"]:
                print(run["report"])
            print(f"round {number + 1}, {variant}: {statistics.median(run['seconds']):.3f} s a step, "
                  f"{run['memory']:.0f} MiB, loss {run['losses'][-1]:.6f}", flush=True)
    runs.sort(key=lambda run: variants.index(run["variant"]))
    rows = summarise(runs, options)
    print("\n" + title_of(options))
    print_rows(rows)
    if options.out:
        write_csv(pathlib.Path(options.out + ".csv"), runs, options)
        names = [row["variant"] for row in rows]
        write_svg(pathlib.Path(options.out + ".svg"), title_of(options), [
            ("tokens per second", names, [row["tokens"] for row in rows], "{:.1f}"),
            ("MiB beyond weights, gradients and optimizer", names, [row["memory"] for row in rows], "{:.0f}")])


def share(options) -> None:
    """Operators one after the other: what each one takes off a step, and off its memory."""
    import torch

    import tigon_torch

    if options.threads:
        torch.set_num_threads(options.threads)
    model = load(options)
    vocab = model.config.vocab_size
    optimizers = [adamw(options, model, ours, lr=0.0, weight_decay=0.0) for ours in (False, True)]
    optimizers[1].state = optimizers[0].state
    full = tigon_torch.apply(model, **switches_of(options)).replaced
    groups = [group for group in ORDER if any(name in full for name in group)]
    off = {name: False for name in tigon_torch.SWITCHES}
    stages = [("eager", off, 0)]
    for group in groups:
        on = {name: switches_of(options)["linear"] if name == "linear" else True for name in group}
        stages.append(("+ " + ", ".join(name for name in group if name in full), {**stages[-1][1], **on}, 0))
    if options.optimizer == "tigon":
        stages.append(("+ AdamW", stages[-1][1], 1))
    seconds: list[list[float]] = [[] for _ in stages]
    memory: list[list[float]] = [[] for _ in stages]
    for number in range(options.rounds + 1):
        for i, (_, switches, optimizer) in enumerate(stages):
            tigon_torch.apply(model, **switches, recompute=not options.keep)
            between = resident_now()
            start_peak()
            begin = time.perf_counter()
            train_step(model, optimizers[optimizer], tokens(options, vocab, number))
            if number > 0:  # the first round warms up
                seconds[i].append(time.perf_counter() - begin)
                memory[i].append(peak() - between)
    step, used = [statistics.median(s) for s in seconds], [statistics.median(m) for m in memory]
    print(title_of(options) + "; operators added one after the other")
    print(f"{'':58} {'s/step':>8} {'saved':>8} {'share':>7} {'MiB':>7} {'saved':>7}   (MiB: gradients included)")
    gain = step[0] - step[-1]
    for i, (name, *_) in enumerate(stages):
        saved = step[i - 1] - step[i] if i else 0.0
        print(f"{name:58} {step[i]:8.3f} {saved:8.3f} {saved / gain if gain else 0:7.0%} {used[i]:7.0f} "
              f"{used[i - 1] - used[i] if i else 0:7.0f}")
    if options.out:
        names = [name for name, *_ in stages]
        with open(options.out + ".share.csv", "w", newline="") as file:
            csv.writer(file).writerows([["operators", "seconds_per_step", "memory_mib"], *zip(names, step, used)])
        short = [name[:26] for name in names]
        write_svg(pathlib.Path(options.out + ".share.svg"), title_of(options), [
            ("seconds per step", short, step, "{:.3f}"), ("MiB", short, used, "{:.0f}")])


def exactly(model):
    """The model in f64 throughout, as a reference; it is changed, and trains only.

    model.double() is not that: transformers casts to f32 in norms, in the softmax of attention and of routers and in the
    loss, so that such a model has f32's errors, and those of eager among them. Tables of rotations stay f32, since
    they are made in f32 for every model and are what both implementations are given.
    """
    import torch

    class no_f32(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
                if function is torch.Tensor.float:
                    return args[0]
                args = [torch.float64 if arg is torch.float32 else arg for arg in args]
                kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
            if getattr(function, "__name__", "") in alike:
                types = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
                args = [arg.double() if torch.float64 in types and torch.is_tensor(arg) else arg for arg in args]
            return function(*args, **kwargs)

    alike = "matmul", "__matmul__", "grid_sample"  # whose operands have to be of one type

    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.float()
    forward = model.forward

    @functools.wraps(forward)
    def run(*args, **kwargs):
        with no_f32():
            return forward(*args, **kwargs)

    model.forward = run
    return model


def exact(options) -> None:
    """Errors of loss and gradients against f64, of eager and of tigon: medians over the batches.

    Not root mean squares: in one batch of thirty a rounding in the first layers reaches every gradient, and that batch
    alone would decide.
    """
    import torch

    import tigon_torch

    def gradients(model, number):
        loss = model(**tokens(options, model.config.vocab_size, number)).loss
        loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad(set_to_none=True)
        return loss.item(), grads

    if options.threads:
        torch.set_num_threads(options.threads)
    model, reference = load(options), exactly(load(options))
    labels = ("eager", "tigon")
    batches: dict[str, list[list[float]]] = {}  # of the loss, which has no name, and of each parameter
    for number in range(options.rounds):
        of = [gradients(model, number)]
        tigon_torch.apply(model, **switches_of(options))
        of.append(gradients(model, number))
        tigon_torch.revert(model)
        loss, grads = gradients(reference, number)
        errors = {"": [abs(value - loss) / abs(loss) for value, _ in of]}
        for name, g in grads.items():
            scale = g.norm().clamp_min(1e-300)
            errors[name] = [((actual[name].double() - g).norm() / scale).item() for _, actual in of]
        for name, both in errors.items():
            batches.setdefault(name, []).append(both)
    errors = {name: [statistics.median(of) for of in zip(*rows)] for name, rows in batches.items()}
    loss = errors.pop("")
    worse = sorted((e / t if t else 0.0, name) for name, (e, t) in errors.items() if t > e)
    print(f"{title_of(options)}; errors against f64, {options.rounds} batches")
    print(f"{'':8} {'loss':>9} {'gradients: median':>18} {'largest':>9}")
    for i, label in enumerate(labels):
        of = [e[i] for e in errors.values()]
        print(f"{label:8} {loss[i]:9.1e} {statistics.median(of):18.1e} {max(of):9.1e}")
    print(f"less exact than eager in {len(worse)} of {len(errors)} parameters")
    for _, name in worse[:5]:
        print(f"  {name}: eager {errors[name][0]:.1e}, tigon {errors[name][1]:.1e}")


def main(arguments: list[str] | None = None) -> None:
    passed = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m tigon_torch.compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder of transformers")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=0, help="PyTorch's threads; 0: its own choice")
    parser.add_argument("--linear", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--optimizer", default="tigon", choices=["tigon", "torch"])
    parser.add_argument("--fused", action="store_true", help="torch.optim.AdamW(fused=True)")
    parser.add_argument("--keep", action="store_true", help="apply(recompute=False)")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--out", help="prefix of the files to write")
    parser.add_argument("--worker", choices=list(VARIANTS), help=argparse.SUPPRESS)
    options = parser.parse_args(passed)
    options.passed = passed
    for name in ("batch", "seq", "steps", "rounds"):
        if getattr(options, name) < 1 + (name == "seq"):
            parser.error(f"--{name} is {getattr(options, name)}; expected at least {1 + (name == 'seq')}")
    if options.worker:
        print(json.dumps(worker(options, options.worker)))
    elif options.share:
        share(options)
    elif options.exact:
        exact(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
