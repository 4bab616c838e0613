#!/usr/bin/env python3
"""The fenced blocks of C++, shell and CMake of the documents: compiled and run by ctest (documents/*), or marked why not.

    blocks.py generate FILE.cpp            one program of all C++ blocks
    blocks.py check PROGRAM COMPILER       runs the programs among them and compares what they print, runs blocks of shell,
                                           and looks up excerpts

The comment before a block says what it is; without one a block is compiled, and run if it is a program or shell:

    <!-- with                              C++ before the block that the reader need not see
    std::vector<float> x(64);
    -->
    <!-- at file scope -->                 C++ that is not in a function; what includes files or begins with namespace,
                                           template, struct or class needs no mark
    <!-- from PATH -->                     an excerpt: each line stands in that file, in this order; CMake is one always, of a
                                           project that a test builds
    <!-- not compiled: REASON -->          and <!-- not run: REASON -->

A program (it has a main) prints what the block of text right behind it has. Blocks of shell run in a copy of the tree's first
level by links, so that `include` is there and what they write is not; their compiler is the one that is given, without
optimisation.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a test does not run unasked: it changes the system, or takes minutes.
INSTALLS = r"\b(apt(-get)?|brew|cmake|conan|conda|ctest|dnf|mpirun|ninja|nvcc|pip|vcpkg)\b"
ELSEWHERE = {"docs/interop.md"}  # its programs: ctest's examples.document.interop, with the C library


class Block:
    def __init__(self, page, line, language, comments, code):
        self.page, self.line, self.language, self.code = page, line, language, code
        self.output = None
        self.hidden = "".join(c[4:].strip("\n") + "\n" for c in comments if c.startswith("with"))
        self.marks = [" ".join(c.split()) for c in comments if not c.startswith("with")]
        self.program = bool(re.search(r"^int main\(", code, re.M))

    def mark(self, word):
        return next((m[len(word):].strip(" :") for m in self.marks if m.startswith(word)), None)

    @property
    def name(self):
        return f"block_{self.page.replace('/', '_').replace('.md', '')}_{self.line}"

    @property
    def left_out(self):
        return self.mark("not compiled") or self.mark("not run") or (self.program and self.page in ELSEWHERE)


def blocks_of(page):
    """Blocks of a page with the comments right before each."""
    lines = (ROOT / page).read_text().splitlines()
    found, comments, i = [], [], 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("<!--"):
            text = line[4:]
            while "-->" not in text:
                i += 1
                text += "\n" + lines[i]
            comments.append(text.split("-->")[0].strip(" "))
        elif re.match(r"`{3,}", line):
            fence, language, first, code = re.match(r"(`+)(\w*)", line)[1], line.strip("`").strip(), i + 2, []
            i += 1
            while not lines[i].startswith(fence):
                code.append(lines[i])
                i += 1
            block = Block(page, first, language, comments, "\n".join(code) + "\n")
            if language == "text" and found and found[-1].program and not "".join(lines[found[-1].end + 1:first - 2]).strip():
                found[-1].output = block.code
            block.end = i
            found.append(block)
            comments = []
        elif line.strip():
            comments = []
        i += 1
    return found


def pages():
    return [str(p.relative_to(ROOT)) for p in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
            if "docs/lab/" not in str(p)]


def all_blocks():
    return [b for page in pages() for b in blocks_of(page) if b.language in ("cpp", "sh", "cmake")]


def body_of(block):
    """The code in a namespace of its own; includes are written before."""
    lines = f'#line {block.line} "{block.page}"\n{block.code}'
    lines = re.sub(r"^#include .*$", "", lines, flags=re.M)
    hidden = re.sub(r"^#include .*\n", "", block.hidden, flags=re.M)
    if block.program:
        lines = re.sub(r"^int main\(\)", "int run()", lines, flags=re.M)
        before, _, after = lines.rpartition("\n}\n")
        lines = f"{before}\nreturn 0;\n}}\n{after}"
    elif block.mark("at file scope") is None and not re.match(r"\s*(//.*\n)*(namespace|template|struct|class|#include)\b", block.code):
        return f"namespace {block.name} {{\n[[maybe_unused]] void run() {{\n{hidden}{lines}}}\n}}\n"
    return f"namespace {block.name} {{\n{hidden}{lines}}}\n"


def generate(path):
    blocks = [b for b in all_blocks() if b.language == "cpp" and not b.left_out and b.mark("from") is None]
    includes = sorted({line for b in blocks for line in re.findall(r"^#include .*$", b.hidden + b.code, re.M)})
    text = "".join(f"{line}\n" for line in includes) + '#include <cstring>\n#pragma GCC diagnostic ignored "-Wunused"\n'
    text += "".join(map(body_of, blocks)) + '#line 1 "main"\nint main(int, char** argv) {\n'
    text += "".join(f'  if (std::strcmp(argv[1], "{b.name}") == 0) return {b.name}::run();\n' for b in blocks if b.program)
    text += "  return 127;\n}\n"
    pathlib.Path(path).write_text(text)


def lines_in_order(block, path):
    """What does not stand in the file: blanks are skipped, and a line of dots stands for any lines."""
    comment = r"\s#.*|^#.*" if block.language == "cmake" else r"//.*"
    plain = lambda line: " ".join(re.sub(comment, "", line).split())
    file = [plain(line) for line in (ROOT / path).read_text().splitlines()]
    at = 0
    for line in block.code.splitlines():
        line = plain(line)
        if not line or line == "...":
            continue
        while at < len(file) and file[at] != line:
            at += 1
        if at == len(file):
            return line
    return None


def run_shell(block, compiler):
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(ROOT):
            if name not in (".git", "build"):
                os.symlink(ROOT / name, os.path.join(folder, name))
        tools = os.path.join(folder, ".tools")
        os.mkdir(tools)
        gcc = pathlib.Path(tools, "g++")
        gcc.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0 -DTIGON_BACKEND=generic\n')  # less to compile
        gcc.chmod(0o755)
        if block.hidden:
            before = subprocess.run(["sh", "-ec", block.hidden], cwd=folder, capture_output=True, text=True)
            if before.returncode != 0:
                return before
        return subprocess.run(["sh", "-ec", block.code], cwd=folder, capture_output=True, text=True, timeout=600,
                              env={**os.environ, "PATH": tools + os.pathsep + os.environ["PATH"]})


def check(program, compiler):
    bad, ran, excerpts, left_out = 0, 0, 0, 0

    def fail(block, what):
        nonlocal bad
        bad += 1
        print(f"{block.page}:{block.line}: {what}")

    for block in all_blocks():
        source = block.mark("from")
        if source is not None:
            excerpts += 1
            if not (ROOT / source).exists():
                fail(block, f"is from {source}, which is not there")
            elif (line := lines_in_order(block, source)) is not None:
                fail(block, f"{source} has no such line, or not in this order: {line}")
        elif block.left_out:
            left_out += 1
            if len(str(block.left_out)) < 10 and block.left_out is not True:
                fail(block, "says too little about why it is not run")
        elif block.language == "cmake":
            fail(block, "is CMake of no project that a test builds; name it by <!-- from PATH -->, or say why there is none")
        elif block.language == "sh" and (name := re.search(INSTALLS, block.code)):
            fail(block, f"runs {name[0]}, which installs or builds for minutes; say why it is not run")
        elif block.language == "sh":
            ran += 1
            try:
                result = run_shell(block, compiler)
            except subprocess.TimeoutExpired:
                fail(block, "the commands take more than ten minutes; say why they are not run")
                continue
            if result.returncode != 0:
                fail(block, f"the commands ended with {result.returncode}: {result.stdout}{result.stderr}")
        elif block.program:
            ran += 1
            result = subprocess.run([program, block.name], capture_output=True, text=True)
            if result.returncode != 0:
                fail(block, f"the program ended with {result.returncode}: {result.stderr}")
            elif block.output is None:
                fail(block, "a program has no block of text with its output behind it")
            elif result.stdout != block.output:
                fail(block, f"the program printed\n{result.stdout}where the page has\n{block.output}")
    print(f"{ran} programs and commands ran, {excerpts} excerpts looked up, {left_out} blocks left out with a reason")
    return 1 if bad else 0


def main():
    if sys.argv[1:2] == ["generate"] and len(sys.argv) == 3:
        return generate(sys.argv[2])
    if sys.argv[1:2] == ["check"] and len(sys.argv) == 4:
        return check(*sys.argv[2:])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
