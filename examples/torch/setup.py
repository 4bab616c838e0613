"""Builds tigon_torch/_library.so with CMake, for several instruction sets, against PyTorch's stable ABI.

Environment:
  TIGON_TORCH_ARCHS   instruction sets, separated by commas or blanks; without it all that the compiler knows
  TIGON_SOURCE        tigon's repository; without it the one in which this folder lies
  MAX_JOBS            compilers at a time; without it one for every CPU
"""
import os
import pathlib
import shutil
import subprocess
import sys
import time

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent


def say(text):
    """To pip's log, and to the terminal, where pip shows nothing of what a build prints."""
    print(text, flush=True)
    if not sys.stdout.isatty():
        try:
            with open("/dev/tty", "w") as terminal:
                terminal.write(text + "\n")
        except OSError:
            pass


def torch_folder():
    """PyTorch's folder. In pip's isolated environment it is found by the same Python without that environment."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ask = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    for environment in (None, clean):
        found = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return pathlib.Path(found.stdout.strip())
    sys.exit("tigon_torch: PyTorch is not installed in this environment; install torch 2.10 or later first")


def tigon_folder():
    folder = pathlib.Path(os.environ.get("TIGON_SOURCE", HERE.parent.parent)).resolve()
    if not (folder / "include" / "tigon" / "tigon.hpp").exists():
        sys.exit(f"tigon_torch: no include/tigon/tigon.hpp in {folder}; install from examples/torch of tigon's "
                 "repository, or name the repository by TIGON_SOURCE")
    return folder


class cmake_build(build_ext):
    def get_ext_filename(self, fullname):
        """Without the version of Python, of which the library knows nothing."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, extension):
        begin = time.time()
        torch, tigon = torch_folder(), tigon_folder()
        headers = torch / "include"
        if not (headers / "torch" / "csrc" / "stable" / "library.h").exists():
            sys.exit(f"tigon_torch: PyTorch in {torch} has no stable ABI; 2.10 or later is needed")
        build = pathlib.Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        sets = os.environ.get("TIGON_TORCH_ARCHS", "").replace(",", " ").split()
        cmake = shutil.which("cmake") or "cmake"
        configure = [cmake, "-S", str(HERE), "-B", str(build), f"-DTIGON_SOURCE={tigon}",
                     f"-DTIGON_TORCH_INCLUDE={headers};{headers}/torch/csrc/api/include",
                     f"-DTIGON_TORCH_LIBRARIES={torch / 'lib'}", f"-DTIGON_TORCH_SETS={';'.join(sets)}"]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        say(f"tigon_torch: PyTorch in {torch}, tigon in {tigon}")
        subprocess.run(configure, check=True)
        jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
        self.compile([cmake, "--build", str(build), "--parallel", jobs])
        target = pathlib.Path(self.get_ext_fullpath(extension.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / "_library.so", target)
        say(f"tigon_torch: built in {time.time() - begin:.0f} s, {target.stat().st_size / 1e6:.1f} MB")

    @staticmethod
    def compile(command):
        """Runs it and says the sets and sources as they are done."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            line = line.rstrip()
            if line.startswith("[") and ("Building" in line or "Linking" in line or "Generating" in line):
                say("tigon_torch: " + line.replace("CMakeFiles/", ""))
            elif line and not line.startswith("["):
                print(line, flush=True)
        if process.wait() != 0:
            sys.exit("tigon_torch: the build failed; the lines above say where (pip install -v shows them)")


class any_python(bdist_wheel):
    """The library knows PyTorch's stable ABI and nothing of Python's."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("tigon_torch._library", sources=[])],
    cmdclass={"build_ext": cmake_build, "bdist_wheel": any_python},
)
