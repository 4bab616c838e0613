#!/usr/bin/env python3
"""Markdown rows of docs/lab/performance.md from the CSV of tigon_bench.

python3 bench/table.py results/table.csv             a row a case, with milliseconds and the limit's
python3 bench/table.py --engines results/table.csv   a row an operator: fraction of the limit, forward / backward (or
                                                     full), a column an engine and type
"""
import argparse
import csv
import json


def number(text):
    try:
        return float(text)
    except ValueError:
        return float("nan")


def cases(path):
    """What a row of speed says, in short names."""
    with open(path, newline="") as file:
        for r in csv.DictReader(file):
            if r["metric_name"] != "speed":
                continue
            config = json.loads(r["extra_benchmark_config_str"])
            yield {
                "op": r["kernel_name"],
                "mode": r["kernel_operation_mode"],
                "variant": config.get("variant", "default"),
                "dtype": config.get("dtype", ""),
                "shape": r.get("shape") or r["x_value"],
                "backend": r["kernel_provider"],
                "threads": config.get("threads", 1),
                "ms": number(r["y_value_50"]),
                "low": number(r["y_value_20"]),
                "high": number(r["y_value_80"]),
                "limit": number(r["limit_ms"]),
                "fraction": number(r["fraction_of_limit"]),
            }


def print_cases(path):
    print("| operator | mode | type | shape | backend | threads | ms (20 % to 80 %) | limit, ms | fraction |")
    print("|---|---|---|---|---|---|---|---|---|")
    for c in cases(path):
        mode = c["mode"] + ("" if c["variant"] == "default" else ", " + c["variant"])
        print(
            f"| {c['op']} | {mode} | {c['dtype']} | {c['shape']} | {c['backend']} | {c['threads']} "
            f"| {c['ms']:.2f} ({c['low']:.2f} to {c['high']:.2f}) | {c['limit']:.2f} | {c['fraction']:.2f} |"
        )


def print_engines(path):
    columns, table = [], {}
    for c in cases(path):
        column = (c["dtype"], c["backend"])
        if column not in columns:
            columns.append(column)
        row = table.setdefault((c["op"], c["variant"], c["shape"], c["threads"]), {})
        row.setdefault(column, {})[c["mode"]] = c["fraction"]
    columns.sort(key=lambda column: column[0] != "f32")
    print("| operator, variant | shape | " + " | ".join(f"{dtype} {backend}" for dtype, backend in columns) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for (op, variant, shape, threads), row in table.items():
        name = op + ("" if variant == "default" else ", " + variant) + ("" if threads == 1 else f", {threads} threads")
        cells = []
        for column in columns:
            of = row.get(column, {})
            cells.append(" / ".join(f"{of[mode]:.2f}" for mode in ("forward", "backward", "full") if mode in of))
        print(f"| {name} | {shape} | " + " | ".join(cell or "-" for cell in cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", action="store_true", help="one row an operator, one column an engine and type")
    parser.add_argument("csv")
    args = parser.parse_args()
    (print_engines if args.engines else print_cases)(args.csv)
