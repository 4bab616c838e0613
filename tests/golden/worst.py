#!/usr/bin/env python3
"""Markdown rows of docs/lab/accuracy.md from what accuracy_report wrote: python3 tests/golden/worst.py highway=FILE ..."""
import csv
import math
import sys


def main(arguments):
    print("| operator | type | backend | largest rel_l2 | case, tensor | Liger there | largest ratio to Liger | case, tensor |")
    print("|---|---|---|---|---|---|---|---|")
    found = {}
    for argument in arguments:
        backend, path = argument.split("=", 1)
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault((row["op"], row["dtype"], backend), []).append(row)
    for (op, dtype, backend), rows in sorted(found.items()):
        numbers = [(float(r["rel_l2"] or "nan"), float(r["liger_rel_l2"] or "nan"), float(r["ratio"] or "nan"), r) for r in rows]
        error = max((n for n in numbers if math.isfinite(n[0])), key=lambda n: n[0], default=None)
        ratio = max((n for n in numbers if math.isfinite(n[2])), key=lambda n: n[2], default=None)
        name = lambda n: "-" if n is None else f"{n[3]['case']} `{n[3]['tensor']}`"
        print(
            f"| {op} | {dtype} | {backend} | "
            + ("- | - | - | " if error is None else f"{error[0]:.2g} | {name(error)} | {error[1]:.2g} | ")
            + ("- | - |" if ratio is None else f"{ratio[2]:.2g} | {name(ratio)} |")
        )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("worst.py: arguments are wanted, NAME=FILE for each report")
    main(sys.argv[1:])
