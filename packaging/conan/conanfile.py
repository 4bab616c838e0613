"""Conan recipe of tigon: `conan create packaging/conan` in the repository, or in an unpacked archive."""

import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy


class Tigon(ConanFile):
    name = "tigon"
    version = "0.2.0"
    description = "Fused training kernels for language models on CPUs and NVIDIA GPUs"
    license = "MIT"
    topics = ("machine-learning", "language-models", "simd", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for what in ["CMakeLists.txt", "LICENSE", "*.md", "cmake/*", "docs/*", "include/*", "tests/*", "support/*"]:
            copy(self, what, root, self.export_sources_folder)

    def requirements(self):
        # Highway is the engine of the default backends and has a library of its own, which is not used.
        self.requires("highway/[>=1.0.3]", transitive_headers=True, transitive_libs=False)
        self.requires("xsimd/[>=8.1]", transitive_headers=True)
        self.requires("eigen/[>=3.4 <6]", transitive_headers=True)

    def validate(self):
        if str(self.settings.compiler) in ["msvc", "Visual Studio"]:
            raise ConanInvalidConfiguration("tigon: MSVC cannot compile the headers; use g++ or clang++")
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for what in ["TESTS", "EXAMPLES", "BENCH"]:
            toolchain.cache_variables[f"TIGON_BUILD_{what}"] = False
        for name, library in {"HIGHWAY": "highway", "XSIMD": "xsimd", "EIGEN": "eigen"}.items():
            folders = self.dependencies[library].cpp_info.aggregated_components().includedirs
            toolchain.cache_variables[f"TIGON_{name}_INCLUDE_DIR"] = folders[-1]
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "tigon")
        self.cpp_info.set_property("cmake_target_name", "tigon::tigon")
        self.cpp_info.set_property("pkg_config_name", "tigon")
        # tigon_multi_arch, tigon_conformance and tigon_register_backend, for those who use CMake
        self.cpp_info.set_property("cmake_build_modules",
                                   [os.path.join("share", "cmake", "tigon", "tigon_functions.cmake")])
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        if self.settings.os in ["Linux", "FreeBSD"]:
            self.cpp_info.system_libs = ["pthread"]
