#!/usr/bin/env python3
"""Tables and pictures of the documents from the CSV files beside this script; a measurement is stored once.

    make.py          writes docs/pictures/*.svg, the tables between `<!-- numbers: NAME -->` and `<!-- end of numbers -->`, and
                     the single numbers between `<!-- number: NAME -->` and `<!-- end -->` within a sentence
    make.py --check  says what is out of date, and fails if anything is
    make.py --gpu PEERS.csv DEVICE DATE   takes what bench/gpu/peers.py wrote into gpu.csv; rows of the same operator, shape and
                     pass are replaced

training_step.csv is what bench/peers/*.py print, patched_model.csv what python -m tigon_torch.compare prints, gpu.csv what
bench/gpu/peers.py writes, torch_gpu.csv what python/tests/gpu.py train prints, each with device and date. onednn.csv has the
products of docs/lab/onednn.md, readings.csv the single numbers that are in no table, each with the page of docs/lab that says how it was measured.
"""

import csv
import pathlib
import re
import statistics
import sys
from html import escape

HERE = pathlib.Path(__file__).resolve().parent
DOCS = HERE.parent


def rows_of(name):
    with open(HERE / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def table(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def times(a, b):
    return f"{float(a) / float(b):.2f}"


def groups(rows, *keys):
    """Rows with the same values of keys, in their order."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[k] for k in keys), []).append(row)
    return found.items()


def training_step():
    made = []
    for (device, threads, model, date), rows in groups(rows_of("training_step"), "device", "threads", "model", "date"):
        where = f"{device}; {threads} threads; {model}; {rows[0]['software']}; {date}"
        for _, of_type in groups(rows, "dtype"):
            mine = next(r for r in of_type if r["provider"] == "tigon")
            for r in of_type:
                other = r is not mine
                spread = f"{r['low']} to {r['high']}" if r["low"] else ""
                more_memory = other and r["memory_mib"] and mine["memory_mib"]
                made.append([where, r["dtype"], r["provider"], r["tokens_per_s"], spread,
                             times(mine["tokens_per_s"], r["tokens_per_s"]) if other else "", r["memory_mib"],
                             times(mine["memory_mib"], r["memory_mib"]) if more_memory else ""])
                where = ""
    return table(["device, threads, model, peer, date", "type", "", "tokens a second", "lowest to highest",
                  "tigon's speed / its speed", "memory, MiB", "tigon's memory / its memory"], made)


def patched_model():
    made = []
    for (device, threads, software, date), rows in groups(rows_of("patched_model"), "device", "threads", "software", "date"):
        where = f"{device}; {threads} threads; {software}; {date}"
        for r in rows:
            made.append([where, r["case"], r["eager_tokens_per_s"], r["patched_tokens_per_s"],
                         times(r["patched_tokens_per_s"], r["eager_tokens_per_s"]), r["eager_mib"], r["patched_mib"],
                         times(r["patched_mib"], r["eager_mib"]), r["loss_difference"]])
            where = ""
    return table(["device, threads, software, date", "case", "eager, tokens/s", "patched", "ratio", "eager, MiB", "patched",
                  "ratio", "largest difference of the loss"], made)


def gpu():
    """Bold: a peer takes less time, by more than readings of one run differ."""
    def ratio(value):
        return f"**{value}**" if value and float(value) < 0.97 else value
    made = table(["operator, shape", "pass", "ms", "GB/s", "Liger / tigon", "torch.compile / tigon", "error"],
                 [[f"{r['operator']} {r['shape']}", r["pass"], r["ms"], r["gb_per_s"], ratio(r["liger_over_tigon"]),
                   ratio(r["compile_over_tigon"]), r["error"]] for r in rows_of("gpu")])
    first = rows_of("gpu")[0]
    dates = sorted({r["date"] for r in rows_of("gpu")})
    return f"{first['device']}, {first['dtype']}; {' and '.join(dates)}:\n\n{made}"


def gpu_attention():
    """What bench/gpu/peers_attention.py prints."""
    made = []
    for (device, dtype, date), rows in groups(rows_of("gpu_attention"), "device", "dtype", "date"):
        where = f"{device}; {dtype}; {date}"
        for r in rows:
            made.append([where, r["shape"], r["pass"], r["ms"], r["cudnn_over_tigon"], r["flash_over_tigon"], r["error"]])
            where = ""
    return table(["device, type, date", "shape", "pass", "ms", "cuDNN from PyTorch / tigon", "flash attention of PyTorch / tigon", "error"], made)


def torch_gpu():
    made = []
    for (model, device, software, date), rows in groups(rows_of("torch_gpu"), "model", "device", "software", "date"):
        where = f"{model}; {device}; {software}; {date}"
        liger = next(r["ms"] for r in rows if r["contender"] == "Liger-Kernel")
        for r in rows:
            made.append([where, r["contender"], r["ms"], f"{r['low']} to {r['high']}", times(liger, r["ms"]), r["tokens_per_s"],
                         r["mib"] or "not counted", r["loss"]])
            where = ""
    return table(["model, device, software, date", "", "ms", "lowest to highest", "Liger's time / its time", "tokens a second",
                  "peak, MiB", "loss of the last step"], made)


def onednn():
    """Products of one oneDNN call, of backend onednn and of the backends that it competes with."""
    def cell(r, name):
        return f"{r[f'{name}_ms']} ({r[f'{name}_gflops']})" if r[f"{name}_gflops"] else r[f"{name}_ms"]
    return table(["a and b", "product", "c", "highway", "onednn", "of highway's time", "avx512_bf16", "oneDNN, one call"],
                 [[r["dtype"], r["product"], r["c"], cell(r, "highway"), cell(r, "onednn_backend"),
                   times(r["onednn_backend_ms"], r["highway_ms"]) if r["onednn_backend_ms"] else "", cell(r, "avx512_bf16"),
                   cell(r, "onednn")] for r in rows_of("onednn")])


def other_peers():
    """Peers that are in no row of training_step: on a GPU, and of single products. A ratio of several is their median."""
    def spread(values):
        return [f"{statistics.median(values):.2f}", f"{min(values):.2f} to {max(values):.2f}"]
    made = []
    for (model, device, software, date), rows in groups(rows_of("torch_gpu"), "model", "device", "software", "date"):
        mine = next(r for r in rows if r["contender"] == "tigon")
        for r in rows:
            if not r["contender"].startswith("tigon"):
                made.append([r["contender"], f"a training step of {model}, bf16; {device}; {software}; {date}",
                             times(r["ms"], mine["ms"]), "", times(mine["mib"], r["mib"])])
    (device, dtype), rows = next(iter(groups(rows_of("gpu"), "device", "dtype")))
    dates = " and ".join(sorted({r["date"] for r in rows}))
    for peer, column in (("Liger-Kernel", "liger_over_tigon"), ("torch.compile", "compile_over_tigon")):
        ratios = [float(r[column]) for r in rows if r[column]]
        made.append([peer, f"{len(ratios)} passes of single operators, {dtype}; {device}; {dates}", *spread(ratios), ""])
    for (device, software, threads, dtype, date), rows in groups(rows_of("onednn"), "device", "software", "threads", "dtype", "date"):
        ratios = [float(r["onednn_ms"]) / float(r["avx512_bf16_ms"] or r["highway_ms"]) for r in rows]
        made.append([software, f"{len(ratios)} products of {dtype} matrices; {device}; {threads} thread; {date}", *spread(ratios), ""])
    return table(["peer", "what, type, device, date", "tigon's speed / its speed", "lowest to highest", "tigon's memory / its memory"], made)


def adamw():
    """Seconds of a step over the parameters of SmolLM2, medians of five."""
    made = []
    for (device, threads, date), rows in groups(rows_of("adamw"), "device", "threads", "date"):
        where = f"{device}; {threads} threads; {date}"
        for r in rows:
            made.append([where, r["case"], r["torch_s"], r["foreach_s"], r["fused_s"], r["tigon_s"]])
            where = ""
    return table(["device, threads, date", "", "`torch.optim.AdamW`", "foreach=True", "fused=True", "`tigon_torch.AdamW`"], made)


def ci_scripts():
    """Every script of .ci has a row, and none has that is not there."""
    named, there = {r["script"] for r in rows_of("ci_scripts")}, {p.name for p in (DOCS.parent / ".ci").iterdir()}
    if named != there:
        sys.exit(f"docs/numbers/ci_scripts.csv: no row for {sorted(there - named)}, no script for {sorted(named - there)}")
    made = []
    for r in rows_of("ci_scripts"):
        lines = (DOCS.parent / ".ci" / r["script"]).read_text().splitlines()[1:]
        comment = []
        for line in lines:
            line = line.removeprefix('"""')
            if not re.match(r"# \S|[A-Z]", line) and not comment:
                continue
            comment.append(line.removeprefix("# "))
            if re.search(r"\.(?=\s|$)", line):
                break
        what = re.split(r"\.(?=\s|$)", " ".join(comment))[0]
        what = re.sub(r"^What \.ci/run leaves[^:]*: (\w)", lambda m: m[1].upper(), what)
        made.append([f"`.ci/{r['script']}`", what, r["minutes"], r["when"]])
    return table(["script", "what it does", "minutes", "when"], made)


def single_numbers():
    """Numbers within sentences, by name."""
    made = {r["name"]: r["value"] for r in rows_of("readings")}
    for r in rows_of("readings"):
        if not (DOCS / r["page"]).exists():
            sys.exit(f"docs/numbers/readings.csv: {r['name']} was measured in docs/{r['page']}, which is not there")
    shares = []
    for _, rows in groups([r for r in rows_of("training_step") if r["memory_mib"]], "device", "threads", "model", "date", "dtype"):
        mine = next(r for r in rows if r["provider"] == "tigon")
        shares += [times(mine["memory_mib"], r["memory_mib"]) for r in rows if r["provider"].startswith("PyTorch")]
    made["memory_of_a_training_step"] = f"{min(shares)} to {max(shares)}"
    for name, device in (("bf16_step_with_amx", "AMX"), ("bf16_step_without_amx", "AVX-512")):
        speed = {(r["device"], r["model"], r["dtype"]): r["tokens_per_s"] for r in rows_of("training_step") if r["provider"] == "tigon"
                 and r["device"].endswith(device) and "x 1024" in r["model"]}
        one, = (of for of in speed if of[2] == "bf16")  # a device and a model that were measured in both types
        made[name] = times(speed[one], speed[one[:2] + ("f32",)])
    return made


# Told apart by people who do not tell red from green.
COLOUR = {"tigon": "#0072b2", "PyTorch eager": "#e69f00", "PyTorch autocast": "#e69f00", "PyTorch compiled": "#cc79a7",
          "Liger-Kernel": "#e69f00", "torch.compile": "#cc79a7"}


class Picture:
    def __init__(self, width, height, name):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                      'font-family="sans-serif" font-size="12" fill="#333">', f"<title>{escape(name)}</title>",
                      f'<rect width="{width}" height="{height}" fill="#fff"/>']

    def text(self, x, y, text, more=""):
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>')

    def bars(self, x, y, width, title, rows, line=None):
        """Horizontal bars of (label, provider, value, text), and a line at a value; returns the y below them."""
        self.text(x, y, title, 'font-size="13" font-weight="bold"')
        most = max(value for _, _, value, _ in rows)
        y += 12
        if line:
            at = x + 134 + line / most * (width - 200)
            self.parts.append(f'<line x1="{at:.1f}" y1="{y - 4}" x2="{at:.1f}" y2="{y + 19 * len(rows)}" stroke="{COLOUR["tigon"]}" stroke-width="2"/>')
        for label, provider, value, text in rows:
            self.text(x + 128, y + 12, label, 'text-anchor="end"')
            length = value / most * (width - 200)
            self.parts.append(f'<rect x="{x + 134:.0f}" y="{y:.0f}" width="{length:.1f}" height="15" fill="{COLOUR[provider]}"/>')
            self.text(x + 140 + length, y + 12, text)
            y += 19
        return y + 14

    def write(self):
        return "\n".join([*self.parts, "</svg>", ""])


def speed_and_memory():
    every = [r for r in rows_of("training_step") if r["threads"] == "16" and r["memory_mib"]]
    (device, model, date), rows = next(iter(groups(every, "device", "model", "date")))  # the title is of one measurement
    cases = [(f"{r['dtype']} {r['provider'].removeprefix('PyTorch ')}", r["provider"], r) for r in rows]
    picture = Picture(880, 600, "Speed and memory of tigon beside PyTorch and Liger-Kernel")
    picture.text(20, 22, f"CPU: a training step of a {model}", 'font-size="14"')
    picture.text(20, 40, f"{device}, 16 threads; {rows[0]['software']}; {date}")
    columns = ((10, "tokens a second: more is better", "tokens_per_s"), (450, "MiB beside weights and optimizer: less is better", "memory_mib"))
    for x, title, column in columns:
        y = picture.bars(x, 66, 420, title, [(label, p, float(r[column]), r[column]) for label, p, r in cases])
    of_model = rows_of("torch_gpu")
    (model, device, software, date), rows = next(iter(groups(of_model, "model", "device", "software", "date")))
    rows = [r for r in rows if r["mib"]]
    picture.text(20, y + 14, f"GPU: a training step of a {model}, bf16", 'font-size="14"')
    picture.text(20, y + 32, f"{device}; {software}; {date}")
    for x, title, column in ((10, "tokens a second: more is better", "tokens_per_s"), (450, "MiB at the peak: less is better", "mib")):
        below = picture.bars(x, y + 58, 420, title, [(r["contender"], r["contender"], float(r[column]), r[column]) for r in rows])
    y = below + 10
    shapes = {"rms_norm": "8192 x 4096", "layer_norm": "8192 x 4096", "softmax": "8192 x 4096", "swiglu": "8192 x 14336", "geglu": "8192 x 14336"}
    on_gpu = [r for r in rows_of("gpu") if shapes.get(r["operator"]) == r["shape"]]
    _, of_gpu = next(iter(groups(on_gpu, "device", "dtype", "date")))
    picture.text(20, y + 14, "GPU: time of an operator divided by tigon's; beyond the line tigon is faster", 'font-size="14"')
    picture.text(20, y + 32, f"{of_gpu[0]['device']}, {of_gpu[0]['dtype']}; {of_gpu[0]['date']}; "
                 "norms and softmax 8192 x 4096, gates 8192 x 14336")
    for x, provider, column in ((10, "Liger-Kernel", "liger_over_tigon"), (450, "torch.compile", "compile_over_tigon")):
        picture.bars(x, y + 58, 420, provider, [(f"{r['operator']} {r['pass']}", provider, float(r[column]), r[column])
                                                for r in of_gpu if r[column]], line=1)
    return picture.write()


FOLDERS = ["interop", "backends", "losses", "ops", "gemm", "rows", "simd", "backend", "comm", "core"]


def architecture():
    """Folders from the top, an arrow to each that their headers include. select.hpp, the way back, is left out."""
    include = DOCS.parent / "include" / "tigon"
    uses = {}
    for name in FOLDERS:
        text = "\n".join(f.read_text() for f in sorted((include / name).rglob("*.hpp")))
        found = set(re.findall(r"#include <tigon/(\w+)/(?!select\.hpp)", text)) - {name}
        uses[name] = [f for f in FOLDERS if f in found and FOLDERS.index(f) > FOLDERS.index(name)]
    def reached(name):
        return {f for used in uses[name] for f in {used} | reached(used)}

    # An arrow that follows from two others is left out.
    arrows = {name: [f for f in uses[name] if not any(f in reached(other) for other in uses[name])] for name in FOLDERS}
    what = {"interop": "views of other libraries' tensors", "backends": "tuning and kernels of single backends", "losses": "losses", "ops": "operators",
            "gemm": "matrix products", "rows": "loops over rows", "simd": "lanes and elementary functions", "backend": "what a backend is; the choice of one",
            "comm": "ranks", "core": "views, contexts, executors, workspaces, errors"}
    picture = Picture(640, 30 + 50 * len(FOLDERS), "Folders of include/tigon and what each includes")
    picture.parts.append('<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#444"/>'
                         "</marker></defs>")
    y = {name: 20 + 50 * i for i, name in enumerate(FOLDERS)}
    lane = 0
    for name in FOLDERS:
        picture.parts.append(f'<rect x="20" y="{y[name]}" width="130" height="28" rx="4" fill="#e8f1f8" stroke="#0072b2"/>')
        picture.text(85, y[name] + 19, name, 'text-anchor="middle" font-size="14"')
        picture.text(320, y[name] + 19, what[name])
        for used in arrows[name]:
            if y[used] - y[name] == 50:
                path = f"M85,{y[name] + 28} V{y[used] - 1}"
            else:
                lane += 1
                x = 150 + 24 * lane
                path = f"M150,{y[name] + 14} H{x} V{y[used] + 14} H151"
            picture.parts.append(f'<path d="{path}" fill="none" stroke="#444" marker-end="url(#a)"/>')
    return picture.write()


TABLES = {"ci_scripts": ci_scripts, "training_step": training_step, "patched_model": patched_model, "gpu": gpu,
          "torch_gpu": torch_gpu, "onednn": onednn, "other_peers": other_peers, "adamw": adamw, "gpu_attention": gpu_attention}
PICTURES = {"architecture.svg": architecture, "speed_and_memory.svg": speed_and_memory}


def import_gpu(path, device, date):
    rows = {(r["operator"], r["shape"], r["pass"]): r for r in rows_of("gpu")}
    with open(path, newline="") as file:
        for r in csv.DictReader(file):
            if r["pass"]:
                compiled = times(r["compile_ms"], r["ms"]) if r.get("compile_ms") else ""
                rows[r["operator"], r["shape"], r["pass"]] = {
                    "device": device, "date": date, "dtype": "bf16", "operator": r["operator"], "shape": r["shape"], "pass": r["pass"],
                    "ms": r["ms"], "gb_per_s": r["GB/s"], "liger_over_tigon": r["of_liger"], "compile_over_tigon": compiled, "error": r["error"]}
    with open(HERE / "gpu.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, next(iter(rows.values())), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def main():
    if sys.argv[1:2] == ["--gpu"]:
        import_gpu(*sys.argv[2:5])
    made = {DOCS / "pictures" / name: draw() for name, draw in PICTURES.items()}
    used, numbers, unknown = set(), single_numbers(), []
    for page in sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"]):
        def filled(found, known, value):
            name = found[2]
            used.add(name)
            if name not in known:
                unknown.append(f"{page.relative_to(DOCS.parent)} has the number {name}, which is not stored")
                return found[0]
            return f"{found[1]}{value(name)}{found[3]}"
        text = re.sub(r"(<!-- numbers: (\w+) -->\n).*?(<!-- end of numbers -->)",
                      lambda m: filled(m, TABLES, lambda name: f"{TABLES[name]()}\n"), page.read_text(), flags=re.S)
        made[page] = re.sub(r"(<!-- number: (\w+) -->)[^<]*(<!-- end -->)",
                            lambda m: filled(m, numbers, lambda name: numbers[name]), text)
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is out of date; run docs/numbers/make.py")
        unused = sorted({*TABLES, *numbers} - used)
        for name in unused:
            print(f"no page has the table or the number {name}")
        print(*unknown, sep="\n", end="\n" if unknown else "")
        return 1 if stale or unused or unknown else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path])
        print(f"{path.relative_to(DOCS.parent)} written")
    print(*unknown, sep="\n", end="\n" if unknown else "")
    return 1 if unknown else 0


sys.exit(main())
