#!/usr/bin/env python3
"""Markdown rows of docs/performance.md from the CSV of tigon_bench: python3 bench/table.py results/table.csv"""
import csv
import json
import sys


def number(text):
    try:
        return float(text)
    except ValueError:
        return float("nan")


def main(path):
    with open(path, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["metric_name"] == "speed"]
    print("| operator | mode | type | shape | backend | threads | ms (20 % to 80 %) | limit, ms | fraction |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        config = json.loads(r["extra_benchmark_config_str"])
        variant = config.get("variant", "default")
        mode = r["kernel_operation_mode"] + ("" if variant == "default" else ", " + variant)
        print(
            "| {op} | {mode} | {dtype} | {shape} | {backend} | {threads} | {ms:.2f} ({low:.2f} to {high:.2f}) | {limit:.2f} | {fraction:.2f} |".format(
                op=r["kernel_name"],
                mode=mode,
                dtype=config.get("dtype", ""),
                shape=r.get("shape") or r["x_value"],
                backend=r["kernel_provider"],
                threads=config.get("threads", 1),
                ms=number(r["y_value_50"]),
                low=number(r["y_value_20"]),
                high=number(r["y_value_80"]),
                limit=number(r["limit_ms"]),
                fraction=number(r["fraction_of_limit"]),
            )
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("table.py: one argument is wanted, the CSV of tigon_bench")
    main(sys.argv[1])
