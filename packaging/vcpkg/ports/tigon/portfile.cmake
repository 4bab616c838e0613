# As an overlay the port takes the sources that it lies in:
#
#   vcpkg install tigon --overlay-ports=packaging/vcpkg/ports
#
# In a registry, vcpkg_from_github(OUT_SOURCE_PATH SOURCE_PATH ...) with the archive's SHA512 replaces this line.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

set(VCPKG_BUILD_TYPE release)  # header-only: there is nothing to debug
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DTIGON_BUILD_TESTS=OFF -DTIGON_BUILD_EXAMPLES=OFF -DTIGON_BUILD_BENCH=OFF -DTIGON_INSTALL=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME tigon CONFIG_PATH share/cmake/tigon)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
