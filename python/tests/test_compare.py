"""python -m tigon_torch.compare, in small."""
import csv
import subprocess
import sys
import xml.etree.ElementTree

import pytest

pytest.importorskip("transformers")

SMALL = ["--batch", "1", "--seq", "32", "--steps", "2", "--rounds", "1", "--threads", "1", "--linear", "off"]


def run(*arguments):
    done = subprocess.run([sys.executable, "-m", "tigon_torch.compare", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_table_and_files(tmp_path):
    out = tmp_path / "run"
    text = run(*SMALL, "--out", str(out))
    assert "replaced attention (4)" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("eager ", "tigon "))}
    assert float(rows["eager"][-1]) == 0
    assert 0 < float(rows["tigon"][2]) and float(rows["tigon"][-1]) < 1e-5
    with open(f"{out}.csv") as file:
        lines = list(csv.DictReader(file))
    assert [line["variant"] for line in lines] == ["eager", "tigon"]
    assert abs(float(lines[0]["last_loss"]) / float(lines[1]["last_loss"]) - 1) < 1e-5
    assert xml.etree.ElementTree.parse(f"{out}.svg").getroot().tag.endswith("svg")


def test_share(tmp_path):
    text = run(*SMALL, "--share", "--out", str(tmp_path / "run"))
    stages = [line.split("  ")[0] for line in text.splitlines() if line.startswith(("eager", "+ "))]
    assert stages == ["eager", "+ rms_norm, fused_add_rms_norm", "+ rope", "+ swiglu", "+ attention",
                      "+ cross_entropy, fused_linear_cross_entropy", "+ AdamW"]
    assert (tmp_path / "run.share.csv").exists() and (tmp_path / "run.share.svg").exists()


def test_exact():
    lines = run(*SMALL, "--exact").splitlines()
    eager, tigon = (next(line.split() for line in lines if line.startswith(name)) for name in ("eager", "tigon"))
    assert float(tigon[2]) <= 2 * float(eager[2]) < 1e-4


def test_bad_options():
    done = subprocess.run([sys.executable, "-m", "tigon_torch.compare", "--seq", "1"], capture_output=True, text=True)
    assert done.returncode == 2 and "--seq is 1; expected at least 2" in done.stderr


@pytest.mark.parametrize("write", [10, 100])
def test_memory_is_seen(write):
    """The peak of a process that touches so many MiB."""
    code = f"""
from tigon_torch import compare
between = compare.resident_now()
compare.start_peak()
data = bytearray({write} * 2**20)
print(compare.peak() - between)
"""
    seen = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
    if seen == seen:  # Linux
        assert abs(seen - write) < 4
