#!/usr/bin/env python3
"""One SVG an operator and sweep from the table of tigon_bench, the backends side by side: bars for shapes and models,
lines over the number of tokens, medians with their 20th to 80th percentile. Needs nothing beyond the standard library.

    plot.py results.csv --out pictures [--op rms_norm ...] [--sweep token_length] [--mode forward] [--metric memory]
"""

import argparse
import csv
import json
import math
import os
import sys
from html import escape

# Told apart by people who do not tell red from green, and dark enough on white.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#8a6d00"]
BAR, GAP, TOP, LABELS, PANEL, VALUES = 14, 14, 74, 250, 330, 64
PLOT_WIDTH, PLOT_HEIGHT, MARGIN, HEAD = 300, 200, 70, 40  # of one panel of lines
FONT = 'font-family="sans-serif"'
MODES = ["forward", "no_grad_forward", "backward", "full"]


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def sweep_of(x_name):
    """Rows belong to a picture of shapes, of models, or of token lengths, whatever else those call their axis."""
    return x_name if x_name in ("shape", "model_config") else "token_length"


def read(path, metric):
    rows = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["metric_name"] != metric:
                continue
            try:
                config = json.loads(row["extra_benchmark_config_str"] or "{}")
            except json.JSONDecodeError:
                config = {}
            rows.append({
                "op": row["kernel_name"],
                "backend": row["kernel_provider"],
                "sweep": sweep_of(row["x_name"]),
                "mode": row["kernel_operation_mode"],
                "config": config,
                "x": row["x_value"],
                "x_label": row["x_label"],
                "y": [number(row[c]) for c in ("y_value_20", "y_value_50", "y_value_80")],
                "unit": row["metric_unit"],
                "fraction": number(row.get("fraction_of_limit")),
                "limit": row.get("limit_kind") or "",
                "limit_ms": number(row.get("limit_ms")),
                "reason": row.get("reason") or "",
                "device": row["gpu_name"],
                "time": row["timestamp"],
            })
    return rows


def machine(device):
    """A device is CPU, instruction set and threads ("... 2T"); thread counts of one machine share a picture."""
    head, _, tail = device.rpartition(" ")
    return head if tail.endswith("T") and tail[:-1].isdigit() else device


def holds(config, wanted):
    """KEY=VALUE, or any text of the configuration."""
    key, equals, value = wanted.partition("=")
    return str(config.get(key)) == value if equals else wanted in json.dumps(config)


def kind_of(row):
    """What makes rows the same thing on other backends, but for the position on the axis."""
    config = row["config"]
    rest = tuple(f"{k} {v}" for k, v in sorted(config.items())
                 if k not in ("variant", "dtype", "threads", "cache", "pinned"))
    return (row["mode"], config.get("variant", ""), config.get("dtype", ""), config.get("threads", 1),
            config.get("cache", "warm"), rest)


def name_of(kind):
    mode, variant, dtype, threads, cache, rest = kind
    return " ".join([mode] + ([variant] if variant not in ("", "default") else []) + [dtype]
                    + ([f"{threads} threads"] if threads != 1 else []) + ([cache] if cache != "warm" else [])
                    + [r for r in rest]).strip()


def ticks(low, high):
    """1, 2, 5 times the powers of ten within the range of a logarithmic axis."""
    return [m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def text(x, y, content, size=11, anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" text-anchor="{anchor}" {extra}>{escape(content)}</text>'


def line(x0, y0, x1, y1, colour, width=1.0, extra=""):
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" stroke-width="{width}" {extra}/>'


def head(title, rows, colours, width, height, legend_x):
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
           '<rect width="100%" height="100%" fill="white"/>',
           text(12, 22, title, 16, extra='font-weight="bold"'),
           text(12, 40, f'{machine(rows[0]["device"])}, {max(r["time"] for r in rows)}', 10, extra='fill="#555"')]
    x = legend_x
    for backend in [b for b in colours if any(r["backend"] == b for r in rows)]:
        out.append(f'<rect x="{x}" y="13" width="10" height="10" fill="{colours[backend]}"/>')
        out.append(text(x + 14, 22, backend))
        x += 26 + 7 * len(backend)
    return out


def bars(title, rows, colours):
    groups = {}
    for row in rows:
        groups.setdefault((kind_of(row), row["x"]), []).append(row)
    # The same thing side by side: dtype and shape first, in the order of the table, then direction.
    position = {x: k for k, x in enumerate(dict.fromkeys(r["x"] for r in rows))}
    order = sorted(groups, key=lambda g: (g[0][2] != "f32", g[0][2], position[g[1]], g[0][0] == "backward", str(g)))
    height = TOP + sum(GAP + BAR * len(groups[g]) for g in order) + 30
    fractions = any(not math.isnan(r["fraction"]) for r in rows)
    left = LABELS
    right = left + PANEL + VALUES if fractions else left
    width = right + PANEL + VALUES

    measured = [r for r in rows if not math.isnan(r["y"][1])]
    top_fraction = max([1.0] + [r["fraction"] for r in measured if not math.isnan(r["fraction"])]) * 1.02
    known = [v for r in measured for v in r["y"] + [r["limit_ms"]] if v > 0]
    low, high = (min(known) * 0.7, max(known) * 1.2) if known else (1.0, 10.0)

    def x_fraction(value):
        return left + PANEL * value / top_fraction

    def x_value(value):
        return right + PANEL * (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))

    out = head(title, rows, colours, width, height, LABELS)
    bottom = height - 24
    if fractions:
        out.append(text(left, 58, "fraction of the limit measured in the same run"))
        for k in range(0, 1 + int(top_fraction * 4)):
            value = k / 4
            colour = "#444" if value == 1 else "#ddd"
            out.append(line(x_fraction(value), TOP - 6, x_fraction(value), bottom, colour))
            out.append(text(x_fraction(value), bottom + 14, f"{value:g}", 10, "middle"))
    out.append(text(right, 58, f'{rows[0]["unit"]}, median and 20th to 80th percentile' +
                    ("; | is the limit" if fractions else "")))
    shown = ticks(low, high)
    for value in shown[::max(1, len(shown) // 7)]:
        out.append(line(x_value(value), TOP - 6, x_value(value), bottom, "#ddd"))
        out.append(text(x_value(value), bottom + 14, f"{value:g}", 10, "middle"))

    y = TOP
    for group in order:
        kind, x = group
        name = name_of(kind)
        if len(groups[group]) == 1:
            name += " " + x
        else:
            out.append(text(left - 8, y + 24, x, 9, "end", 'fill="#555"'))
        out.append(text(left - 8, y + 11, name, 11, "end"))
        for row in sorted(groups[group], key=lambda r: list(colours).index(r["backend"])):
            p20, p50, p80 = row["y"]
            middle = y + BAR / 2
            if math.isnan(p50):
                why = f': {row["reason"]}' if row["reason"] else ""
                out.append(text(left + 4, y + 11, f'{row["backend"]}: not measured{why}', 10, extra='fill="#777"'))
            else:
                fill = colours[row["backend"]]
                if not math.isnan(row["fraction"]):
                    out.append(f'<rect x="{left}" y="{y + 1}" width="{max(1.0, x_fraction(row["fraction"]) - left):.1f}" '
                               f'height="{BAR - 2}" fill="{fill}"><title>{escape(row["limit"])}</title></rect>')
                    out.append(text(x_fraction(row["fraction"]) + 4, y + 11, f'{row["fraction"]:.2f}', 10))
                    out.append(line(x_value(row["limit_ms"]), y + 1, x_value(row["limit_ms"]), y + BAR - 1, "#444", 1.5))
                out.append(line(x_value(p20), middle, x_value(p80), middle, fill, 3))
                out.append(f'<circle cx="{x_value(p50):.1f}" cy="{middle:.1f}" r="4" fill="{fill}"/>')
                out.append(text(right + PANEL + 6, y + 11, f"{p50:.4g}", 10))
            y += BAR
        y += GAP
    out.append("</svg>")
    return "\n".join(out) + "\n"


def panel(left, top, name, rows, colours):
    """Lines of one kind, both axes logarithmic; what was not measured is a cross below, with its reason."""
    measured = [r for r in rows if not math.isnan(r["y"][1])]
    xs = sorted({number(r["x"]) for r in rows})
    known = [v for r in measured for v in r["y"] + [r["limit_ms"]] if v > 0]
    low, high = (min(known) * 0.7, max(known) * 1.4) if known else (1.0, 10.0)
    first, last = math.log2(xs[0]) - 0.4, math.log2(xs[-1]) + 0.4
    bottom = top + PLOT_HEIGHT

    def at_x(value, shift=0.0):
        return left + PLOT_WIDTH * (math.log2(value) - first) / (last - first) + shift

    def at_y(value):
        return bottom - PLOT_HEIGHT * (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))

    out = [text(left, top - 8, name, 11, extra='font-weight="bold"'),
           f'<rect x="{left}" y="{top}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}" fill="none" stroke="#999"/>']
    for value in xs:
        out.append(line(at_x(value), top, at_x(value), bottom, "#eee"))
        out.append(text(at_x(value), bottom + 26, f"{value:g}", 10, "middle"))
    shown = ticks(low, high)
    for value in shown[::max(1, len(shown) // 6)]:
        out.append(line(left, at_y(value), left + PLOT_WIDTH, at_y(value), "#eee"))
        out.append(text(left - 6, at_y(value) + 4, f"{value:g}", 10, "end"))
    out.append(text(left + PLOT_WIDTH / 2, bottom + 42, rows[0]["x_label"] or "tokens", 11, "middle"))

    limits = {}
    for row in measured:
        if not math.isnan(row["limit_ms"]):
            limits.setdefault(number(row["x"]), []).append(row["limit_ms"])
    points = [f"{at_x(x):.1f},{at_y(sorted(limits[x])[len(limits[x]) // 2]):.1f}" for x in sorted(limits)]
    if points:
        out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="#444" stroke-dasharray="4 3">'
                   '<title>limit measured in the same run</title></polyline>')

    backends = [b for b in colours if any(r["backend"] == b for r in rows)]
    for k, backend in enumerate(backends):
        # Side by side: the spreads of two backends do not cover one another.
        shift = 4.0 * (k - (len(backends) - 1) / 2)
        own = sorted((r for r in rows if r["backend"] == backend), key=lambda r: number(r["x"]))
        there = [(at_x(number(r["x"]), shift), r) for r in own if not math.isnan(r["y"][1])]
        colour = colours[backend]
        if there:
            corners = " ".join(f'{x:.1f},{at_y(r["y"][1]):.1f}' for x, r in there)
            out.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for x, r in there:
            p20, p50, p80 = (at_y(v) for v in r["y"])
            out += [line(x, p20, x, p80, colour, 2), line(x - 3, p20, x + 3, p20, colour), line(x - 3, p80, x + 3, p80, colour)]
            out.append(f'<circle cx="{x:.1f}" cy="{p50:.1f}" r="3" fill="{colour}"><title>{escape(backend)} {escape(r["x"])}: '
                       f'{r["y"][1]:.4g} {r["unit"]}, {r["y"][0]:.4g} to {r["y"][2]:.4g}</title></circle>')
        for r in own:
            if math.isnan(r["y"][1]):
                why = escape(f'{backend} {r["x"]}: not measured: {r["reason"]}')
                out.append(text(at_x(number(r["x"]), shift), bottom + 12, "x", 11, "middle", f'fill="{colour}"').replace(
                    "</text>", f"<title>{why}</title></text>"))
    return out


def lines(title, rows, colours):
    """A column a direction, a row for everything else that was told apart."""
    columns = [m for m in MODES if any(r["mode"] == m for r in rows)]
    columns += [m for m in dict.fromkeys(r["mode"] for r in rows) if m not in columns]
    kinds = list(dict.fromkeys(kind_of(r)[1:] for r in rows))
    step_x, step_y = PLOT_WIDTH + MARGIN + 20, PLOT_HEIGHT + HEAD + 60
    width, height = 20 + step_x * len(columns), TOP + 10 + step_y * len(kinds)
    out = head(title, rows, colours, max(width, 700), height, 280)
    out.append(text(12, 60, f'{rows[0]["unit"]}: median, bars from the 20th to the 80th percentile; dashed: the limit '
                    'measured in the same run; x: not measured'))
    for i, kind in enumerate(kinds):
        for j, mode in enumerate(columns):
            own = [r for r in rows if kind_of(r) == (mode,) + kind]
            if own:
                out += panel(MARGIN + step_x * j, TOP + HEAD + step_y * i, name_of((mode,) + kind), own, colours)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("csv")
    parser.add_argument("--out", default=".", help="folder for the pictures")
    parser.add_argument("--op", nargs="*", help="only these operators")
    parser.add_argument("--mode", nargs="*", help="only these directions")
    parser.add_argument("--sweep", choices=["shape", "token_length", "model_config"], help="only rows of this sweep")
    parser.add_argument("--metric", choices=["speed", "memory"], default="speed")
    parser.add_argument("--config", action="append", default=[], metavar="KEY=VALUE",
                        help="only rows with this in their configuration: dtype=bf16; or any text of it")
    parser.add_argument("--device", help="only devices whose name contains this; default: the most recently measured")
    args = parser.parse_args()

    try:
        rows = read(args.csv, args.metric)
    except (OSError, KeyError) as problem:
        print(f"plot.py: {args.csv} cannot be read as a table of tigon_bench: {problem}", file=sys.stderr)
        return 2
    rows = [r for r in rows if (not args.op or r["op"] in args.op) and (not args.mode or r["mode"] in args.mode)
            and args.sweep in (None, r["sweep"]) and all(holds(r["config"], c) for c in args.config)]
    if args.device:
        rows = [r for r in rows if args.device in r["device"]]
    elif rows:
        newest = machine(max(rows, key=lambda r: r["time"])["device"])
        rows = [r for r in rows if machine(r["device"]) == newest]
    if not rows:
        print(f"plot.py: no matching rows in {args.csv}", file=sys.stderr)
        return 2

    os.makedirs(args.out, exist_ok=True)
    colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(sorted({r["backend"] for r in rows}))}
    for op, sweep in dict.fromkeys((r["op"], r["sweep"]) for r in rows):
        own = [r for r in rows if (r["op"], r["sweep"]) == (op, sweep)]
        name = "_".join([op] + ([args.metric] if args.metric != "speed" else []) + ([sweep] if sweep != "shape" else []))
        title = " ".join([op] + ([args.metric] if args.metric != "speed" else []))
        path = os.path.join(args.out, name + ".svg")
        with open(path, "w") as file:
            file.write((lines if sweep == "token_length" else bars)(title, own, colours))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
