#!/usr/bin/env python3
"""One SVG an operator from the table of tigon_bench: fraction of the limit, and milliseconds with their 20th to 80th
percentile, by backend. Needs nothing beyond the standard library.

    plot.py results.csv --out docs/pictures [--op rms_norm ...] [--device TEXT]
"""

import argparse
import csv
import json
import math
import os
import sys
from html import escape

# Told apart by people who do not tell red from green, and dark enough on white.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f"]
BAR, GAP, TOP, LABELS, PANEL, VALUES = 14, 14, 74, 250, 330, 64
FONT = 'font-family="sans-serif"'


def number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan


def read(path):
    rows = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["metric_name"] != "speed":
                continue
            try:
                config = json.loads(row["extra_benchmark_config_str"] or "{}")
            except json.JSONDecodeError:
                config = {}
            rows.append({
                "op": row["kernel_name"],
                "backend": row["kernel_provider"],
                "group": (row["kernel_operation_mode"], config.get("variant", ""), config.get("dtype", ""),
                          row["x_value"], config.get("threads", 1), config.get("cache", "warm")),
                "ms": [number(row[c]) for c in ("y_value_20", "y_value_50", "y_value_80")],
                "fraction": number(row["fraction_of_limit"]),
                "limit": row["limit_kind"],
                "limit_ms": number(row["limit_ms"]),
                "device": row["gpu_name"],
                "time": row["timestamp"],
            })
    return rows


def machine(device):
    """A device is CPU, instruction set and threads ("... 2T"); thread counts of one machine share a picture."""
    head, _, tail = device.rpartition(" ")
    return head if tail.endswith("T") and tail[:-1].isdigit() else device


def ticks(low, high):
    """1, 2, 5 times the powers of ten within the range of a logarithmic axis."""
    return [m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def text(x, y, content, size=11, anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" text-anchor="{anchor}" {extra}>{escape(content)}</text>'


def line(x0, y0, x1, y1, colour, width=1.0, extra=""):
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" stroke-width="{width}" {extra}/>'


def picture(op, rows, colours):
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    # The same thing side by side: dtype and shape first, then direction.
    order = sorted(groups, key=lambda g: (g[2] != "f32", g[2], g[3], g[0] == "backward", g))
    height = TOP + sum(GAP + BAR * len(groups[g]) for g in order) + 30
    left, right = LABELS, LABELS + PANEL + VALUES
    width = right + PANEL + VALUES

    measured = [r for r in rows if not math.isnan(r["ms"][1])]
    top_fraction = max([1.0] + [r["fraction"] for r in measured if not math.isnan(r["fraction"])]) * 1.02
    known = [v for r in measured for v in r["ms"] + [r["limit_ms"]] if v > 0]
    low, high = (min(known) * 0.7, max(known) * 1.2) if known else (1.0, 10.0)

    def x_fraction(value):
        return left + PANEL * value / top_fraction

    def x_ms(value):
        return right + PANEL * (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
           '<rect width="100%" height="100%" fill="white"/>',
           text(12, 22, op, 16, extra='font-weight="bold"'),
           text(12, 40, f'{machine(rows[0]["device"])}, {max(r["time"] for r in rows)}', 10, extra='fill="#555"')]
    x = left
    for backend in [b for b in colours if any(r["backend"] == b for r in rows)]:
        out.append(f'<rect x="{x}" y="13" width="10" height="10" fill="{colours[backend]}"/>')
        out.append(text(x + 14, 22, backend))
        x += 26 + 7 * len(backend)
    out.append(text(left, 58, "fraction of the limit measured in the same run"))
    out.append(text(right, 58, "ms, median and 20th to 80th percentile; | is the limit"))

    bottom = height - 24
    for k in range(0, 1 + int(top_fraction * 4)):
        value = k / 4
        colour = "#444" if value == 1 else "#ddd"
        out.append(line(x_fraction(value), TOP - 6, x_fraction(value), bottom, colour))
        out.append(text(x_fraction(value), bottom + 14, f"{value:g}", 10, "middle"))
    shown = ticks(low, high)
    for value in shown[::max(1, len(shown) // 7)]:
        out.append(line(x_ms(value), TOP - 6, x_ms(value), bottom, "#ddd"))
        out.append(text(x_ms(value), bottom + 14, f"{value:g}", 10, "middle"))

    y = TOP
    for group in order:
        direction, variant, dtype, shape, threads, cache = group
        name = " ".join([direction] + ([variant] if variant not in ("", "default") else []) + [dtype]
                        + ([f"{threads} threads"] if threads != 1 else []) + ([cache] if cache != "warm" else []))
        if len(groups[group]) == 1:
            name += " " + shape
        else:
            out.append(text(left - 8, y + 24, shape, 9, "end", 'fill="#555"'))
        out.append(text(left - 8, y + 11, name, 11, "end"))
        members = sorted(groups[group], key=lambda r: list(colours).index(r["backend"]))
        for row in members:
            p20, p50, p80 = row["ms"]
            middle = y + BAR / 2
            if math.isnan(p50):
                out.append(text(left + 4, y + 11, f'{row["backend"]}: not measured', 10, extra='fill="#999"'))
            else:
                fill = colours[row["backend"]]
                if not math.isnan(row["fraction"]):
                    out.append(f'<rect x="{left}" y="{y + 1}" width="{max(1.0, x_fraction(row["fraction"]) - left):.1f}" '
                               f'height="{BAR - 2}" fill="{fill}"><title>{escape(row["limit"])}</title></rect>')
                    out.append(text(x_fraction(row["fraction"]) + 4, y + 11, f'{row["fraction"]:.2f}', 10))
                    out.append(line(x_ms(row["limit_ms"]), y + 1, x_ms(row["limit_ms"]), y + BAR - 1, "#444", 1.5))
                out.append(line(x_ms(p20), middle, x_ms(p80), middle, fill, 3))
                out.append(f'<circle cx="{x_ms(p50):.1f}" cy="{middle:.1f}" r="4" fill="{fill}"/>')
                out.append(text(right + PANEL + 6, y + 11, f"{p50:.4g}", 10))
            y += BAR
        y += GAP
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("csv")
    parser.add_argument("--out", default=".", help="folder for the pictures")
    parser.add_argument("--op", nargs="*", help="only these operators")
    parser.add_argument("--device", help="only devices whose name contains this; default: the most recently measured")
    args = parser.parse_args()

    try:
        rows = read(args.csv)
    except (OSError, KeyError) as problem:
        print(f"plot.py: {args.csv} cannot be read as a table of tigon_bench: {problem}", file=sys.stderr)
        return 2
    if args.op:
        rows = [r for r in rows if r["op"] in args.op]
    if args.device:
        rows = [r for r in rows if args.device in r["device"]]
    elif rows:
        newest = machine(max(rows, key=lambda r: r["time"])["device"])
        rows = [r for r in rows if machine(r["device"]) == newest]
    if not rows:
        print(f"plot.py: no matching rows in {args.csv}", file=sys.stderr)
        return 2

    os.makedirs(args.out, exist_ok=True)
    backends = list(dict.fromkeys(r["backend"] for r in rows))
    colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(sorted(backends))}
    for op in dict.fromkeys(r["op"] for r in rows):
        path = os.path.join(args.out, op + ".svg")
        with open(path, "w") as file:
            file.write(picture(op, [r for r in rows if r["op"] == op], colours))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
