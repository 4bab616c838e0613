"""Builds tigon_torch/_library.so with CMake, for several instruction sets, against PyTorch's stable ABI.

What the build needs is looked for before CMake starts, and all that is missing is said in one message. An sdist holds
tigon's headers and CMake files in the folder tigon, so that it builds wherever it is unpacked.

Environment:
  TIGON_TORCH_ARCHS   instruction sets, separated by commas or blanks; native: that of this CPU alone; without it all that
                      the compiler knows
  TIGON_SOURCE        tigon's repository; without it the folder tigon of an sdist, or the repository around this folder
  TIGON_HIGHWAY_INCLUDE_DIR, TIGON_EIGEN_INCLUDE_DIR   where those headers are, if neither the compiler nor
                      CMAKE_PREFIX_PATH or CMAKE_INCLUDE_PATH leads to them
  CXX, CXXFLAGS       the compiler and its flags, as CMake takes them
  TIGON_TORCH_OPTIMISATION   -O1 compiles in two thirds of the time what runs slower; without it -O2
  MAX_JOBS            compilers at a time; without it one for every CPU
  TIGON_TORCH_CUDA    the library for CUDA, _library_cuda.so: 1 or the path of nvcc (13.0 or later); 0: without it; "only":
                      beside a _library.so that is there. Not set: where nvcc is found and PyTorch has CUDA
  TIGON_TORCH_CUDA_ARCHS, TIGON_TORCH_CUDA_TYPES   its architectures ("80 90a 100") and element types ("f32 bf16 f16 f64")
  TIGON_TORCH_CUDA_MODEL   1: also that library on a model of a GPU, _library_model.so, for tests
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

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
    """PyTorch's folder, or None. In pip's isolated environment the same Python finds it without that environment."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ask = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    for environment in (None, clean):
        found = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return pathlib.Path(found.stdout.strip())
    return None


def tigon_folder():
    inside = HERE / "tigon"  # of an sdist
    around = inside if inside.exists() else HERE.parent
    folder = pathlib.Path(os.environ.get("TIGON_SOURCE") or around).resolve()
    if not (folder / "include" / "tigon" / "tigon.hpp").exists():
        sys.exit(f"tigon_torch: no include/tigon/tigon.hpp in {folder}; install from an sdist, from the folder python of "
                 "tigon's repository, or name the repository by TIGON_SOURCE")
    return folder


def compiler():
    """The command that CMake will take, or None."""
    if os.environ.get("CXX"):
        command = shlex.split(os.environ["CXX"])
    else:
        command = [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]
    if not command or not shutil.which(command[0]):
        return None
    return command + shlex.split(os.environ.get("CXXFLAGS", ""))


def preprocess(command, text, *flags):
    command = [*command, "-x", "c++", "-std=c++20", *flags, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stdout


def compilers_folder(command, header):
    """The folder in which the compiler itself finds a header, or None."""
    # -MG: a header that is missing is listed as it was written.
    rule = preprocess(command, f"#include <{header}>\n", "-M", "-MG") if command else ""
    for name in rule.replace("\\\n", " ").replace("\\ ", "\0").split():
        if name.endswith("/" + header):
            return pathlib.Path(name.replace("\0", " ")[:-len(header) - 1]).resolve()
    return None


def header_folder(command, header, variable, *below):
    """The folder from which `#include <header>` works, as the compiler and CMake's variables lead to it, or None."""
    def parts_of(name):
        return [pathlib.Path(part) for part in re.split("[:;]", os.environ.get(name, "")) if part]

    given = parts_of(variable) + parts_of("CMAKE_INCLUDE_PATH")
    given += [part / "include" for part in parts_of("CMAKE_PREFIX_PATH")]
    system = compilers_folder(command, "stdio.h")  # of the compiler's own system, which --sysroot changes
    found = compilers_folder(command, header)
    beside = [system.parent / "local" / "include", system] if system else []
    folders = [folder / part for folder in given for part in ("", *below)] + [found] * (found is not None)
    for folder in folders + [folder / part for folder in beside for part in below]:
        if (folder / header).is_file():
            return folder
    return None


def cmake_is_new_enough():
    """Asked by CMake itself, which ends with an error where it is older than a script wants."""
    if not shutil.which("cmake"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "version.cmake"
        script.write_text("cmake_minimum_required(VERSION 3.24)\n")
        return subprocess.run(["cmake", "-P", str(script)], capture_output=True).returncode == 0


def look_for_everything(cpu):
    """PyTorch's folder and those of Highway, of which only the library for CPUs is made, and Eigen; or the end, with all
    that is missing in one message."""
    missing, packages = [], []

    def lacks(what, package=None):
        missing.append(what)
        packages.extend([package] if package else [])

    torch = torch_folder()
    if torch is None or not (torch / "include" / "torch" / "csrc" / "stable" / "library.h").exists():
        lacks("PyTorch 2.10 or later in this environment (pip install torch)")
    command = compiler()
    macros = preprocess(command, "", "-dM", "-E") if command else ""
    versions = {name: int(number) for name, number in re.findall(r"#define (__GNUC__|__clang_major__) (\d+)", macros)}
    if versions.get("__clang_major__", 14) < 14 or "__clang_major__" not in versions and versions.get("__GNUC__", 0) < 12:
        lacks("a compiler, g++ 12 or clang++ 14 or later", "g++")
    if not cmake_is_new_enough():
        lacks("CMake 3.24 or later", "cmake")
    if not shutil.which("ninja") and not shutil.which("make"):
        lacks("ninja or make", "ninja-build")
    if not all(shutil.which(name) for name in ("ld.bfd", "objcopy", "objdump")):
        lacks("GNU ld, objcopy and objdump", "binutils")
    highway = header_folder(command, "hwy/highway.h", "TIGON_HIGHWAY_INCLUDE_DIR")
    if highway is None and cpu:
        lacks("Highway (<hwy/highway.h>)", "libhwy-dev")
    eigen = header_folder(command, "Eigen/Core", "TIGON_EIGEN_INCLUDE_DIR", "eigen3")
    if eigen is None:
        lacks("Eigen (<Eigen/Core>)", "libeigen3-dev")
    if missing:
        install = f"; Debian and Ubuntu: apt-get install {' '.join(packages)}" if packages else ""
        sys.exit(f"tigon_torch: not built; it needs {', '.join(missing)}{install} (docs/torch.md)")
    return torch, highway, eigen


def words(name):
    return ";".join(os.environ.get(name, "").replace(",", " ").split())


# Instruction sets, the widest first, and what /proc/cpuinfo says of a CPU that has one.
SETS = {"amx": "amx_tile amx_bf16 amx_int8 avx512_bf16", "avx512_bf16": "avx512_bf16",
        "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v3": "avx2 bmi1 bmi2 f16c fma movbe"}


def native_set():
    """The widest instruction set of this CPU."""
    try:
        flags = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    there = set(flags[1].split()) if flags else set()
    return next((name for name, needed in SETS.items() if there.issuperset(needed.split())), "x86-64-v2")


def cublas_headers(nvcc, torch):
    """The folder of cublasLt.h: of the CUDA that nvcc is of, or of PyTorch's packages. None, where there is none."""
    folders = [pathlib.Path(nvcc).resolve().parent.parent / "include", *torch.parent.glob("nvidia/cu*/include")]
    return next((folder for folder in folders if (folder / "cublasLt.h").exists()), None)


def nvcc_for(torch):
    """The path of nvcc if the library for CUDA is built, or None. The end, where it is wanted and cannot be built."""
    wish = os.environ.get("TIGON_TORCH_CUDA", "")
    if wish == "0":
        return None
    home = [pathlib.Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = os.pathsep.join([*map(str, home), os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    nvcc = shutil.which(wish if wish not in ("", "1", "only") else "nvcc", path=places)
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout if nvcc else ""
    version = re.search(r"release (\d+)\.(\d+)", said)
    if version and int(version[1]) >= 13:
        if cublas_headers(nvcc, torch) is None:
            if wish:
                sys.exit("tigon_torch: not built; the library for CUDA needs the header of cuBLASLt (pip install nvidia-cublas)")
            return None
        has_cuda = re.search(r"^cuda\b.*= '", (torch / "version.py").read_text(), re.MULTILINE)
        return pathlib.Path(nvcc).resolve() if wish or has_cuda else None
    if wish:
        found = f"nvcc {version[1]}.{version[2]} in {nvcc}" if version else "no nvcc"
        sys.exit(f"tigon_torch: not built; the library for CUDA needs nvcc 13.0 or later (TIGON_TORCH_CUDA), and there is "
                 f"{found}")
    return None


class cmake_build(build_ext):
    def get_ext_filename(self, fullname):
        """Without the version of Python, of which the library knows nothing."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, extension):
        begin = time.time()
        tigon = tigon_folder()
        cpu = os.environ.get("TIGON_TORCH_CUDA") != "only"
        torch, highway, eigen = look_for_everything(cpu)
        nvcc, model = nvcc_for(torch), os.environ.get("TIGON_TORCH_CUDA_MODEL") == "1"
        headers = torch / "include"
        build = pathlib.Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        sets = [native_set() if name == "native" else name
                for name in os.environ.get("TIGON_TORCH_ARCHS", "").replace(",", " ").split()]
        cmake = shutil.which("cmake")
        configure = [cmake, "-S", str(HERE), "-B", str(build), f"-DTIGON_SOURCE={tigon}",
                     f"-DTIGON_TORCH_INCLUDE={headers};{headers}/torch/csrc/api/include",
                     f"-DTIGON_TORCH_LIBRARIES={torch / 'lib'}", f"-DTIGON_TORCH_SETS={';'.join(sets)}",
                     f"-DTIGON_HIGHWAY_INCLUDE_DIR={highway}", f"-DTIGON_EIGEN_INCLUDE_DIR={eigen}"]
        configure += [f"-DTIGON_TORCH_CPU={'ON' if cpu else 'OFF'}", f"-DTIGON_TORCH_NVCC={nvcc or ''}",
                      f"-DTIGON_TORCH_CUDA_MODEL={'ON' if model else 'OFF'}",
                      f"-DTIGON_TORCH_CUBLAS_INCLUDE={cublas_headers(nvcc, torch) if nvcc else ''}",
                      *(f"-D{name}={words(name)}" for name in ("TIGON_TORCH_CUDA_ARCHS", "TIGON_TORCH_CUDA_TYPES"))]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        say(f"tigon_torch: PyTorch in {torch}, tigon in {tigon}, " + (f"nvcc in {nvcc}" if nvcc else "without CUDA"))
        subprocess.run(configure, check=True)
        jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
        self.compile([cmake, "--build", str(build), "--parallel", jobs])
        target = pathlib.Path(self.get_ext_fullpath(extension.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        self.made = made = {"_library": cpu, "_library_cuda": nvcc is not None, "_library_model": model}
        self.put_libraries(build, target.parent)
        sizes = ", ".join(f"{n}.so {target.with_name(n + '.so').stat().st_size / 1e6:.1f} MB" for n in made if made[n])
        say(f"tigon_torch: built in {time.time() - begin:.0f} s: {sizes}")

    def put_libraries(self, source, folder):
        """What was made; and one of an earlier build goes, unless this is of the library for CUDA alone."""
        for name, is_made in self.made.items():
            copy = folder / f"{name}.so"
            if self.made["_library"]:
                copy.unlink(missing_ok=True)
            if is_made:
                shutil.copy2(source / f"{name}.so", copy)

    def copy_extensions_to_source(self):
        """All libraries, of which setuptools knows the first alone."""
        self.put_libraries(pathlib.Path(self.build_lib) / "tigon_torch", HERE / "tigon_torch")

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


class whole_sdist(sdist):
    """With tigon's headers and CMake files, which lie beside this folder in the repository."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        source, target = tigon_folder(), pathlib.Path(base_dir) / "tigon"
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/tigon/**/*.hpp"):
            for file in source.glob(pattern):
                copy = target / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


setup(
    license="MIT",  # here, as setuptools before 77 and after 80 want it in different forms in pyproject.toml
    ext_modules=[Extension("tigon_torch._library", sources=[])],
    cmdclass={"build_ext": cmake_build, "bdist_wheel": any_python, "sdist": whole_sdist},
)
