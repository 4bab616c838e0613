# The port of vcpkg without vcpkg: functions of its names that do what its documentation says of a release build for Linux,
# the port's own portfile, and a program against the result.
#   cmake -DROOT=... -DWORK=... -DGENERATOR=... -DCOMPILER=... -P vcpkg_port.cmake
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${WORK})
set(CURRENT_PACKAGES_DIR ${WORK}/packages)

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 port "" "SOURCE_PATH" "OPTIONS")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${port_SOURCE_PATH} -B ${WORK}/build -G ${GENERATOR} ${port_OPTIONS}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}
    ERROR_VARIABLE warnings OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  if(warnings MATCHES "Manually-specified variables were not used")
    message(FATAL_ERROR "the portfile has options that nothing reads: ${warnings}")
  endif()
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK}/build OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Configurations go to share/PACKAGE_NAME, two folders below the prefix.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 port "" "PACKAGE_NAME;CONFIG_PATH" "")
  file(GLOB files ${CURRENT_PACKAGES_DIR}/${port_CONFIG_PATH}/*)
  if(NOT files)
    message(FATAL_ERROR "CONFIG_PATH is ${port_CONFIG_PATH}, and nothing is installed there")
  endif()
  file(COPY ${files} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${port_PACKAGE_NAME})
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/${port_CONFIG_PATH})
  file(GLOB scripts ${CURRENT_PACKAGES_DIR}/share/${port_PACKAGE_NAME}/*.cmake)
  foreach(script IN LISTS scripts)
    file(READ ${script} text)
    string(REPLACE "(PACKAGE_PREFIX_DIR \"\${CMAKE_CURRENT_LIST_DIR}/../../../\"" "(PACKAGE_PREFIX_DIR \"\${CMAKE_CURRENT_LIST_DIR}/../../\"" text "${text}")
    set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
    file(WRITE ${script} "${text}")
  endforeach()
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(GLOB_RECURSE files ${CURRENT_PACKAGES_DIR}/*.pc)
  foreach(file IN LISTS files)
    file(READ ${file} text)
    if(text MATCHES "${CURRENT_PACKAGES_DIR}")
      message(FATAL_ERROR "${file} remembers where it was made")
    endif()
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 port "" "" "FILE_LIST")
  file(COPY ${port_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/tigon)
endfunction()

include(${ROOT}/packaging/vcpkg/ports/tigon/portfile.cmake)
file(RENAME ${CURRENT_PACKAGES_DIR} ${WORK}/installed)
set(SOURCE ${ROOT}/tests/consumer/find_package)
set(SETTINGS -DCMAKE_PREFIX_PATH=${WORK}/installed)
set(WORK ${WORK}/program)
include(${ROOT}/tests/consumer/project.cmake)
