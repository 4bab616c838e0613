"""Each kind of fault that .ci/documents looks for is found in a small tree that has it, and none in the tree without it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = {
    "README.md": "# A tree\n\n[page](docs/page.md), [finetune](docs/finetune.md), [operators](docs/operators.md), [log](docs/lab/log.md)\n",
    "docs/page.md": "# Page\n\nA page.\n\n## Part\n\n`include/tigon/ops/one.hpp`, [part](#part), `-DTIGON_ARCH=native`, `.ci/run`\n\n"
                    "```sh\ncmake --preset test && ninja -C build/test\n```\n",
    "docs/finetune.md": "# finetune\n\n`--steps`: 1203.5 and 408.1 and 77.25 steps\n",
    "docs/operators.md": "# Operators\n\n`tigon/ops/one.hpp`\n",
    "docs/lab/log.md": "# Log (2026-11-29)\n\n`a/file/that/was/there.hpp`, by turns\n",
    "include/tigon/ops/one.hpp": "#define TIGON_ONE\n",
    "tools/finetune/options.hpp": 'add("--steps", steps);\n',
    ".ci/run": "#!/bin/sh\n",
    "CMakeLists.txt": 'set(TIGON_ARCH native)\n',
    "CMakePresets.json": '{"name": "test"}\n',
}
DEVICES = 'if("devices" IN_LIST TIGON_TESTS)\n  add_subdirectory(cuda)\nendif()\n'


def faults(changes):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**TREE, **changes}.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, ROOT / ".ci/documents", folder], capture_output=True, text=True).stdout


def with_line(page, line):
    return {page: TREE[page] + "\n" + line + "\n"}


def with_python(code):
    return {**with_line("docs/page.md", f"```python\n{code}\n```"), "python/tigon_torch/__init__.py": "def apply(model):\n    pass\n"}


class Documents(unittest.TestCase):
    def test_without_a_fault(self):
        for changes in [{}, with_line("docs/page.md", "A step takes <!-- number: step_ms -->12.5<!-- end --> ms.")]:
            self.assertIn("pages name what is there", faults(changes))

    def test_each_kind(self):
        for changes, sentence in [
            (with_line("docs/page.md", "[gone](gone.md)"), "links to gone.md, which is not there"),
            (with_line("docs/page.md", "[part](finetune.md#gone)"), "has no such heading"),
            ({"docs/alone.md": "# Alone\n"}, "docs/alone.md: no page that the README leads to links to it"),
            (with_line("docs/page.md", "`include/tigon/ops/two.hpp`"), "names include/tigon/ops/two.hpp, which is not there"),
            (with_line("docs/page.md", "```cpp\n#include <tigon/ops/two.hpp>\n```"), "names tigon/ops/two.hpp"),
            (with_line("docs/page.md", "`build/release/tools/finetune/tune`"), "which no build makes"),
            (with_line("docs/page.md", "```sh\ncmake --preset fast\n```"), "names the preset fast"),
            (with_line("docs/page.md", "`-DTIGON_TURBO=ON`"), "names TIGON_TURBO, which nothing reads"),
            (with_line("docs/page.md", "`.ci/walk`"), "names .ci/walk, which is not there"),
            (with_line("docs/page.md", "`apply_to_parrot()`"), "no type of model is called so"),
            (with_line("docs/page.md", "all 71 tests pass"), "counts 71 tests"),
            (with_line("docs/page.md", "of 65 operators"), "says 65 operators"),
            (with_line("docs/page.md", "`finetune --leap`"), "names the option --leap"),
            ({"tools/finetune/options.hpp": 'add("--steps", s);\nadd("--seed", s);\n'}, "docs/finetune.md: does not have the option --seed"),
            ({"include/tigon/ops/two.hpp": ""}, "docs/operators.md: has tigon/ops/two.hpp 0 times"),
            ({"python/pyproject.toml": 'requires-python = ">=3.10"\n'}, "README.md: does not require Python 3.10, as the build does"),
            ({"README.md": TREE["README.md"] + "\n" * 150}, "lines; at most 150"),
            ({"include/tigon/core/error.hpp": "enum class error_code {\n  shape,  ///< sizes\n};\n"}, "docs/errors.md: has no row for the code shape"),
            ({"include/tigon/core/error.hpp": "enum class error_code {\n  shape,  ///< sizes\n};\n", "tests/a_test.cpp": "error_code::shapes\n"},
             "has the code shape, which no test provokes"),
            ({**with_line("docs/page.md", "Some operators run on GPUs."), "docs/cuda.md": "# CUDA\n\n`one`\n"}, "docs/page.md:13: says that some operators run on GPUs"),
            ({"docs/cuda.md": "# CUDA\n\n`one`\n"}, "CMakeLists.txt: does not say that kernels run on CPUs and NVIDIA GPUs"),
            ({**with_line("docs/page.md", "`.ci/walk` is part of `.ci/run`."), ".ci/walk": ""}, "says that .ci/walk is part of .ci/run; it is not"),
            ({**with_line("docs/page.md", "`.ci/walk` is not part of `.ci/run`."), ".ci/walk": "", ".ci/run": ".ci/walk\n"}, ".ci/walk is not part of .ci/run; it is"),
            ({"docs/numbers/ci_scripts.csv": "script,minutes,when\nwalk,1,part of .ci/run\n", ".ci/walk": ""}, "ci_scripts.csv: says that .ci/walk is part of"),
            ({"docs/reliability.md": "| R1 | `tests/cuda/a_test.cpp` |\n", "tests/CMakeLists.txt": DEVICES}, "names tests/cuda/a_test.cpp without its script, .ci/engines"),
            (with_line("docs/page.md", "Steps take 1203.5 and 408.1 and 77.25 s."), "has the numbers 1203.5, 408.1, 77.25"),
            (with_line("docs/page.md", "Both ran by turns."), "says 'by turns'"),
            (with_line("docs/page.md", "Blocks and and rows alternate."), "says 'and and'"),
            (with_line("docs/page.md", "On 2026-11-28 all passed."), "has a date; notes of a day are in docs/lab"),
            (with_line("docs/page.md", "`leap_forward` leaps."), "names leap_forward, which is in no source"),
            (with_line("docs/page.md", "```sh\nrun  # by turns\n```"), "says 'by turns'"),
            ({"tools/finetune/main.cpp": 'fail("no step was asked for");\n'}, "tools/finetune/main.cpp:1: says 'asked for'"),
            ({"include/tigon/ops/one.hpp": "/// Adds rows by turns.\n"}, "include/tigon/ops/one.hpp:1: says 'by turns'"),
            ({"include/tigon/core/two.hpp": "  /// Adds rows by turns.\n"}, "include/tigon/core/two.hpp:1: says 'by turns'"),
            ({**with_python("tigon_torch.apply(model)"), **with_line("docs/finetune.md", '```sh\npip install "tigon_torch[liger]"\n```')},
             "installs tigon_torch from an index, and none has it"),
            ({"c/tigon_c.h": "/* Adds\n * by turns. */\n"}, "c/tigon_c.h:2: says 'by turns'"),
            ({"c/tigon_c.h": "int a;  /* by turns */\n"}, "c/tigon_c.h:1: says 'by turns'"),
            ({"docs/page.md": "# Page\n\n## Part\n"}, "docs/page.md: has no sentence behind its title"),
            ({"CHANGELOG.md": "# Changelog\n\n## 1\n\n### New\n\n- one\n  and more\n"}, "CHANGELOG.md:8: is no item of one line"),
            ({"c/tigon_c.h": "enum {\n  TIGON_ERROR_SHAPE = 1,\n};\n"}, "docs/errors.md: does not name the status TIGON_ERROR_SHAPE"),
            (with_python("tigon_torch.apply(model, ...)\nprint(1"), "has Python that does not parse"),
            ({"docs/torch.md": "# Torch\n\n| `norm(x, size)` | a norm |\n", "python/tigon_torch/ops.py": "def norm(x, eps):\n    pass\n"},
             "docs/torch.md:3: gives norm the argument size"),
            (with_python("tigon_torch.patch(model)"), "names tigon_torch.patch, and patch is nothing of the package"),
            (with_line("docs/page.md", "| a | 1.25 | 3.5 |"), "has measured numbers in a table"),
            (with_line("docs/page.md", "A step takes 12.5 ms."), "has the number '12.5 ms'"),
            (with_line("docs/page.md", "A step takes 1,203\nMiB."), "has the number '1,203 MiB'"),
            (with_line("docs/page.md", "It is twice as fast."), "has the number 'twice as fast'"),
            ({"docs/tuning.md": "# Tuning\n\nIt spins.\n"}, "docs/tuning.md: has no 'spins for 30 microseconds'"),
            ({".github/workflows/ci.yml": "steps:\n  - run: .ci/walk\n"}, "calls .ci/walk, which is not there"),
            ({".ci/cuda": "operators=(rope attention)\n", "docs/cuda.md": "# CUDA\n\n`rope`\n"}, "docs/cuda.md: does not name attention"),
            ({"CHANGELOG.md": "# Changelog\n\n## 1\n\n- one\n"}, "CHANGELOG.md:5: is no item"),
            ({"docs/lab/log.md": "# Log\n"}, "has no date in its title"),
            (with_line("docs/page.md", "word " * 30), "columns; at most 120"),
        ]:
            with self.subTest(sentence):
                self.assertIn(sentence, faults(changes))


if __name__ == "__main__":
    unittest.main()
