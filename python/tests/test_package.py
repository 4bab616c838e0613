"""What setup.py does before and beside the build: what is missing is said before CMake starts; an sdist is whole."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
SETUP = PACKAGE / "setup.py"


def run(folder, *arguments, **environment):
    """setup.py by itself; what it prints and whether it passed."""
    settings = ("CXX", "CXXFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "CMAKE_PREFIX_PATH", "CMAKE_INCLUDE_PATH",
                "TIGON_HIGHWAY_INCLUDE_DIR", "TIGON_EIGEN_INCLUDE_DIR", "TIGON_SOURCE")
    clean = {name: value for name, value in os.environ.items() if name not in settings}
    done = subprocess.run([sys.executable, "setup.py", *map(str, arguments)], cwd=folder, env=clean | environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
    return done.returncode == 0, done.stdout


def refusal(tmp_path, **environment):
    """The last line of a build, which ended before CMake made its folder."""
    passed, said = run(PACKAGE, "-q", "build_ext", "--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp",
                       **environment)
    assert not passed and not (tmp_path / "temp").exists(), said
    lines = [line for line in said.splitlines() if line.startswith("tigon_torch: not built; it needs ")]
    assert len(lines) == 1, said
    return lines[0]


@pytest.fixture
def bare(tmp_path):
    """A compiler in whose system no library is installed, and a folder with each of the headers."""
    for header in ("hwy/highway.h", "eigen3/Eigen/Core"):
        file = tmp_path / "prefix" / "include" / header
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "system").mkdir()
    return f"{shutil.which('g++') or 'c++'} --sysroot={tmp_path}/system", tmp_path / "prefix"


def importing(folder, before="", **environment):
    """What a process says last that imports the package from a folder."""
    program = f"import sys, torch; sys.path.insert(0, {str(folder)!r}); {before}\nimport tigon_torch"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, cwd="/", capture_output=True,
                          text=True)
    return done.stderr.strip().splitlines()[-1:]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The package's Python alone."""
    import tigon_torch

    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(pathlib.Path(tigon_torch.__file__).parent, folder / "tigon_torch",
                    ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def test_sources_that_were_not_built(sources):
    said, = importing(sources)
    assert said.startswith(f"ImportError: tigon_torch: {sources}/tigon_torch/_library.so was not built; `pip install ")


def test_an_older_torch(sources):
    said, = importing(sources, "torch.__version__ = '2.9.1+cpu'")
    assert said == "ImportError: tigon_torch: PyTorch 2.9.1+cpu is older than 2.10, for which it is compiled; upgrade it"


@pytest.mark.skipif(not SETUP.exists(), reason="built elsewhere")
def test_authors_are_those_of_the_licence():
    tomllib = pytest.importorskip("tomllib")
    authors = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["authors"]
    licence = (PACKAGE / "LICENSE").read_text()
    assert authors and all(re.search(rf"Copyright .*{author['name']}$", licence, re.M | re.I) for author in authors)


@pytest.mark.skipif(not sys.platform.startswith("linux") or not SETUP.exists(), reason="built elsewhere")
class TestPackage:
    def test_all_that_is_missing_is_said_at_once(self, tmp_path, bare):
        compiler, prefix = bare
        said = refusal(tmp_path, CXX=compiler)
        assert "Highway (<hwy/highway.h>), Eigen (<Eigen/Core>)" in said
        assert "apt-get install libhwy-dev libeigen3-dev " in said
        (tmp_path / "bin").mkdir()
        said = refusal(tmp_path, PATH=str(tmp_path / "bin"))
        for word in ("g++", "cmake", "ninja-build", "binutils", "libhwy-dev", "libeigen3-dev"):
            assert word in said.partition("apt-get install ")[2].split(), said

    def test_headers_are_found_where_the_variables_lead(self, tmp_path, bare):
        compiler, prefix = bare
        said = refusal(tmp_path, CXX=compiler, TIGON_HIGHWAY_INCLUDE_DIR=str(prefix / "include"))
        assert "libeigen3-dev" in said and "libhwy-dev" not in said
        said = refusal(tmp_path, CXX=compiler, TIGON_EIGEN_INCLUDE_DIR=str(prefix / "include" / "eigen3"))
        assert "libhwy-dev" in said and "libeigen3-dev" not in said
        for name, value in (("CMAKE_PREFIX_PATH", prefix), ("CMAKE_INCLUDE_PATH", prefix / "include")):
            said = refusal(tmp_path, **{name: str(value), "PATH": str(tmp_path / "system")})  # where no tools are
            assert "g++" in said and "libhwy-dev" not in said and "libeigen3-dev" not in said, name

    def test_headers_are_found_in_the_system(self, tmp_path, bare):
        compiler, prefix = bare
        system = tmp_path / "system" / "usr"
        shutil.copytree(prefix / "include", system / "include")
        (system / "include" / "stdio.h").touch()
        (tmp_path / "bin").mkdir()
        # The compiler alone; where it is a script, such as ccache's, that wants the whole PATH.
        call = f'PATH={shlex.quote(os.environ["PATH"])} exec {compiler.split()[0]} "$@"'
        (tmp_path / "bin" / "g++").write_text(f"#!/bin/sh\n{call}\n")
        (tmp_path / "bin" / "g++").chmod(0o755)
        tools = {"CXX": f"g++ --sysroot={tmp_path}/system", "PATH": str(tmp_path / "bin")}  # where no other tools are
        said = refusal(tmp_path, **tools)
        assert "CMake" in said and "libhwy-dev" not in said and "libeigen3-dev" not in said and "g++ 12" not in said
        (system / "local").mkdir()
        (system / "include" / "eigen3").rename(system / "local" / "eigen3")
        assert "libeigen3-dev" in refusal(tmp_path, **tools)
        (system / "local" / "include").mkdir()
        (system / "local" / "eigen3").rename(system / "local" / "include" / "eigen3")
        assert "libeigen3-dev" not in refusal(tmp_path, **tools)
        if pathlib.Path("/usr/include/eigen3/Eigen/Core").exists():  # the compiler's own system, as it is
            assert "libeigen3-dev" not in refusal(tmp_path, **tools | {"CXX": "g++"})

    def test_cuda_that_is_wanted_needs_nvcc(self, tmp_path):
        old = tmp_path / "nvcc"
        old.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.1'\n")
        old.chmod(0o755)
        for wish, found in ((tmp_path / "none", "no nvcc"), (old, f"nvcc 12.4 in {old}")):
            passed, said = run(PACKAGE, "-q", "build_ext", "--build-lib", tmp_path / "lib", "--build-temp",
                               tmp_path / "temp", TIGON_TORCH_CUDA=str(wish))
            line = ("tigon_torch: not built; the library for CUDA needs nvcc 13.0 or later (TIGON_TORCH_CUDA), and there is "
                    f"{found}")
            assert not passed and line in said.splitlines(), said
            assert not list((tmp_path / "temp").rglob("CMakeCache.txt"))

    def test_native_is_the_set_of_this_cpu(self, tmp_path, bare):
        """Beside what the compiler says of this CPU. In the place of CMake a script prints its arguments and fails."""
        compiler, prefix = bare
        cmake = tmp_path / "bin" / "cmake"
        cmake.parent.mkdir()
        cmake.write_text('#!/bin/sh\n[ "$1" = -P ] && exit 0\necho "$@"\nexit 1\n')
        cmake.chmod(0o755)
        passed, said = run(PACKAGE, "-q", "build_ext", "--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp",
                           CMAKE_PREFIX_PATH=str(prefix), PATH=f"{cmake.parent}:{os.environ['PATH']}",
                           TIGON_TORCH_ARCHS="native", TIGON_TORCH_CUDA="0")
        macros = subprocess.run([*shlex.split(compiler), "-march=native", "-x", "c++", "-dM", "-E", "/dev/null"],
                                capture_output=True, text=True).stdout
        sets = {"amx": "__AMX_BF16__", "avx512_bf16": "__AVX512BF16__", "x86-64-v4": "__AVX512VL__", "x86-64-v3": "__AVX2__"}
        expected = next((name for name, macro in sets.items() if f"{macro} 1" in macros), "x86-64-v2")
        assert not passed and f"-DTIGON_TORCH_SETS={expected} " in said, said

    def test_sdist_is_whole(self, tmp_path):
        passed, said = run(PACKAGE, "-q", "egg_info", "--egg-base", tmp_path, "sdist", "--formats=gztar", "--dist-dir",
                           tmp_path)
        assert passed, said
        archive, = tmp_path.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / "elsewhere")
        unpacked, = (tmp_path / "elsewhere").iterdir()
        repository = PACKAGE / "tigon" if (PACKAGE / "tigon").exists() else PACKAGE.parent
        there = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
        for folder, pattern, below in ((PACKAGE, "csrc/*", ""), (PACKAGE, "tigon_torch/**/*.py", ""),
                                       (PACKAGE, "CMakeLists.txt", ""), (PACKAGE, "*.cmake", ""),
                                       (PACKAGE, "pyproject.toml", ""),
                                       (repository, "include/tigon/**/*.hpp", "tigon/"),
                                       (repository, "cmake/*", "tigon/"),
                                       (repository, "CMakeLists.txt", "tigon/"), (repository, "LICENSE", "tigon/")):
            wanted = {below + str(file.relative_to(folder)) for file in folder.glob(pattern)}
            assert wanted and wanted <= there, sorted(wanted - there)
        assert "LICENSE" in there and not any(file.endswith(".so") for file in there)
        # It configures where it is, without the repository.
        environment = {name: value for name, value in os.environ.items() if name != "TIGON_SOURCE"}
        configure = ["cmake", "-S", str(unpacked), "-B", str(tmp_path / "build"), "-DTIGON_TORCH_SETS=x86-64-v2"]
        done = subprocess.run(configure, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
