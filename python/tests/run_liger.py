"""Liger-Kernel's own tests with tigon (tigon_torch.liger), on this machine's CPU. .ci/liger calls it.

    python run_liger.py FOLDER [--long] [pytest's arguments]

FOLDER gets Liger's sources, of its sdist on PyPI; the tests that run are those of test/transformers, test/chunked_loss
and, with --long, test/convergence and the shapes that take minutes. Liger is not installed, but imported from there. Ends
with 0 where every failure is one of EXPECTED, which says why; what PyTorch computes as a reference is then less exact than
tigon, or the test looks at Liger's Triton code.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tarfile

VERSION = "0.8.5"

# Of the ids of tests: why it may fail.
ROUNDING = "the reference rounds to bf16 between its operators, and is further from f64 than tigon (docs/liger.md)"
EXPECTED = [
    (r"test_modulated_rms_norm.py::test_correctness\[.*dtype1", ROUNDING),
    (r"test_layer_norm.py::test_liger_layer_norm\[dtype1", ROUNDING),
    (r"test_poly_norm.py::test_correctness\[dtype1", ROUNDING),
    (r"test_geglu.py::test_correctness\[dtype1", "the reference misses this bound against f64 as often as tigon does"),
    (r"test_fused_linear_kl_div.py::test_amp\[autocast_dtype0", ROUNDING),
    (r"test_group_norm.py::test_liger_group_norm\[dtype0-.*-16-48-12-8192", "sums of 131072 numbers by PyTorch in f32 are "
                                                                        "further from f64 than tigon's"),
    (r"test_monkey_patch.py::.*(qwen3_vl|qwen2_vl|qwen2_5_vl|glm4v_moe)", "output classes of Liger that this version of "
                                                                        "transformers does not let it make"),
    (r"test_fused_moe.py::test_routing_metadata|test_cross_entropy.py::test_float32_internal|"
     r"test_sparsemax.py::.*kernel", "calls a Triton kernel"),
    (r"hard_loss_computed_only_when_used|skips_frozen_params", "looks for calls inside Liger's own code"),
    (r"sequence_level_rejects_unsupported|test_ref_per_token_logps_preferred|test_shape_validation",
     "another sentence, or a warning that tigon does not give"),
    (r"test_fused_linear_kl_div.py::test_invalid_reduction|test_mhc_coeffs_disallow_fp32|test_misaligned_intermediate_size",
     "refused by Liger alone: tigon has it"),
    (r"test_grpo_loss.py::test_functional_correctness", "calls by the order of an older release: flags where temperatures are"),
    (r"bf16/test_mini_models_multimodal.py::test_mini_model_vision\[mini_pixtral", "a sum of outputs that cancel: " + ROUNDING),
    (r"dtensor", "needs eight GPUs (marked by Liger)"),
]
# Left out without --long: shapes of seconds on a GPU, and of minutes and gigabytes here.
LARGE = "8192-32-8 or 32000 or 131072 or 128256 or 151936 or 1024-4096 or 1024-8192 or dtensor"
INIT = """import tigon_torch.liger
import liger_kernel.utils
liger_kernel.utils.infer_comm_backend = lambda: "gloo"
from . import utils
utils.supports_bfloat16 = lambda: True
"""


def sources(folder: pathlib.Path) -> pathlib.Path:
    """Liger's sdist, unpacked; its tests then begin with tigon, and compute in bf16 on CPUs as well."""
    root = folder / f"liger_kernel-{VERSION}"
    if not root.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps",
                        "--no-build-isolation", "-d", str(folder), f"liger-kernel=={VERSION}"], check=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder / "site"),
                        f"liger-kernel=={VERSION}"], check=True)
        with tarfile.open(folder / f"liger_kernel-{VERSION}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    (root / "test" / "__init__.py").write_text(INIT)
    return root


class Known:
    """A plugin: failures that are expected are none, and are counted by their reasons."""

    def __init__(self):
        self.outcomes = collections.Counter()
        self.reasons = collections.Counter()

    def pytest_collection_modifyitems(self, items):
        import pytest

        for item in items:
            for pattern, reason in EXPECTED:
                if re.search(pattern, item.nodeid):
                    item.add_marker(pytest.mark.xfail(reason=reason, strict=False), append=False)  # before one of its own
                    break

    def pytest_runtest_logreport(self, report):
        expected = getattr(report, "wasxfail", None)
        if report.when == "call" and report.passed:
            self.outcomes["passed"] += 1
        elif report.skipped:
            why = expected or (report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr))
            self.outcomes["failed as expected" if expected else "skipped"] += 1
            self.reasons["failed as expected" if expected else "skipped", why.removeprefix("Skipped: ")] += 1
        elif report.failed:
            self.outcomes["failed"] += 1

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        write("liger: " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items())))
        for (outcome, why), n in sorted(self.reasons.items()):
            write(f"liger: {n} {outcome}: {why}")


def main(folder: str, *arguments: str) -> int:
    long = "--long" in arguments
    arguments = [a for a in arguments if a != "--long"]
    here = pathlib.Path(folder).resolve()
    here.mkdir(parents=True, exist_ok=True)
    root = sources(here)
    package = pathlib.Path(__file__).resolve().parent.parent
    paths = [str(here / "site"), str(root), *([str(package)] if (package / "tigon_torch").exists() else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of processes that tests start
    sys.path[:0] = paths
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.chdir(root)
    import pytest

    chosen = any(a.startswith("test/") for a in arguments)
    paths = [] if chosen else ["test/transformers", "test/chunked_loss"] + ["test/convergence"] * long
    usual = ["-q", "-p", "no:cacheprovider", "--tb=short", "--continue-on-collection-errors"]
    return pytest.main([*usual, *([] if long else ["-k", f"not ({LARGE})"]), *paths, *arguments], plugins=[Known()])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
