"""Programs that are measured: their output, and the most memory that they had."""

import os
import re
import statistics
import subprocess

STATE_BYTES = 16  # of a parameter in f32: weight, gradient, two moments


def run(command, until=None, **options):
    """The lines that it printed, and the most memory that it had, in bytes. It is ended after the line for which
    until(line) is true, which counts as success. options: those of subprocess.Popen."""
    words = [str(word) for word in command]
    child = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    lines, ended = [], False
    for line in child.stdout:
        lines.append(line)
        if until is not None and until(line):
            child.kill()
            ended = True
            break
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0 and not ended:
        raise SystemExit(f"{' '.join(words)} ended with {child.returncode}:\n{errors[-2000:]}")
    return lines, usage.ru_maxrss * 1024


def run_train_llama(program, options):
    """A training on random tokens: tokens per second, the most memory, and the number of parameters."""
    lines, memory = run([program, "--random", *(word for name, value in options.items() for word in (f"--{name}", value))])
    out = "".join(lines)
    return (float(re.search(r"([0-9.]+) tokens/s", out)[1]), memory,
            1e6 * float(re.search(r"([0-9.]+) million parameters", out)[1]))


def print_table(found):
    """found: pairs of tokens per second and bytes of memory, by program; tigon is one of them."""
    rates = {name: [rate for rate, _ in of] for name, of in found.items()}
    print(f"{'':10} {'tokens/s':>10} {'lowest':>8} {'highest':>8} {'tigon / it':>11} {'memory MiB':>11}")
    for name, of in found.items():
        ratio = statistics.median(rates["tigon"]) / statistics.median(rates[name])
        memory = statistics.median(memory for _, memory in of) / 2**20
        print(f"{name:10} {statistics.median(rates[name]):10.1f} {min(rates[name]):8.1f} {max(rates[name]):8.1f} {ratio:11.2f} {memory:11.0f}")
