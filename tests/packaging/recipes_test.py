"""The recipes of Conan and vcpkg refuse what cannot compile the headers, and conda's names files that are there. None of the
three need be installed. consumer/vcpkg_port tries vcpkg's port, packaging/try_conda conda's."""
import importlib.util
import json
import pathlib
import re
import sys
import types
import unittest

PACKAGING = pathlib.Path(__file__).resolve().parent.parent.parent / "packaging"


class Refused(Exception):
    """In place of Conan's own exception."""


def recipe():
    """The class of conanfile.py, with just as much of Conan as it takes to read it."""
    modules = {"conan": {"ConanFile": object}, "conan.errors": {"ConanInvalidConfiguration": Refused},
               "conan.tools.build": {"check_min_cppstd": lambda *a: None},
               "conan.tools.cmake": {"CMake": None, "CMakeToolchain": None}, "conan.tools.files": {"copy": None}}
    for name, names in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)
    spec = importlib.util.spec_from_file_location("conanfile", PACKAGING / "conan" / "conanfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Tigon


class Setting:
    """A setting as Conan 2 has it: compared with a value that it does not know, it raises."""
    known = ("sun-cc", "gcc", "msvc", "clang", "apple-clang", "intel-cc", "qcc", "mcst-lcc", "emcc")

    def __init__(self, value, known=known):
        self.value, self.known = value, known

    def __eq__(self, other):
        if other not in self.known:
            raise ValueError(f"'{other}' is not a valid value")
        return self.value == other

    def __str__(self):
        return self.value


class Recipes(unittest.TestCase):
    def test_conan_refuses_msvc(self):
        tigon = recipe()()
        for compiler in ("gcc", "clang", "apple-clang"):
            tigon.settings = types.SimpleNamespace(compiler=Setting(compiler), os="Linux")
            tigon.validate()
        for compiler in ("msvc", "Visual Studio"):
            tigon.settings = types.SimpleNamespace(compiler=Setting(compiler, (*Setting.known, "Visual Studio")), os="Windows")
            with self.assertRaisesRegex(Refused, "MSVC cannot compile the headers"):
                tigon.validate()

    def test_vcpkg_refuses_msvc(self):
        port = json.loads((PACKAGING / "vcpkg" / "ports" / "tigon" / "vcpkg.json").read_text())
        words = {"&": " and ", "|": " or ", "!": " not "}
        python = re.sub(r"[&|!]", lambda sign: words[sign.group()], port.get("supports", "True"))
        platforms = {"windows": False, "mingw": False, "linux": False}
        supports = lambda *here: eval(python.strip(), {**platforms, **{name: True for name in here}})
        self.assertTrue(supports("linux") and supports("windows", "mingw"))
        self.assertFalse(supports("windows"))

    def test_conda_names_what_is_there(self):
        """The files that rattler-build copies for the test of the package are there, and are those that the test uses."""
        recipe = (PACKAGING / "conda" / "recipe.yaml").read_text()
        files = re.findall(r"^        - (\S+)$", re.search(r"^      source:\n((?:        - .*\n)+)", recipe, re.M)[1], re.M)
        commands = re.search(r"^    script:\n((?:      .*\n)+)", recipe, re.M)[1]
        self.assertTrue(files)
        for file in files:
            self.assertTrue((PACKAGING.parent / file).exists(), file)
            self.assertRegex(commands, rf" {re.escape(file.removesuffix('/CMakeLists.txt'))}\s")


if __name__ == "__main__":
    unittest.main()
