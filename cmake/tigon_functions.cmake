# What tigon offers to CMake projects beside its target, in an installed package and in a build tree alike:
#   tigon_conformance        every operator test, on a backend of yours     (tigon_conformance.cmake)
#   tigon_register_backend   makes it the default for what links it         (below)
#   tigon_multi_arch         one source for many CPUs, chosen at run time   (tigon_multi_arch.cmake)
# Of keyword arguments parsed into arg_*: those named are there, and there are no others.
macro(tigon_require_arguments function)
  foreach(keyword IN ITEMS ${ARGN})
    if(NOT DEFINED arg_${keyword})
      message(FATAL_ERROR "${function}: ${keyword} is missing")
    endif()
  endforeach()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${function}: what is ${arg_UNPARSED_ARGUMENTS}?")
  endif()
endmacro()

# The path of a header below include/tigon, in a checkout or installed; empty: there is none.
function(tigon_header name out)
  set(${out} "" PARENT_SCOPE)
  # From cmake/, share/tigon/ (vcpkg), share/cmake/tigon/, and one folder more.
  foreach(up IN ITEMS .. ../.. ../../.. ../../../..)
    set(header ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${up}/include/tigon/${name})
    if(EXISTS ${header})
      set(${out} ${header} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# The names of all operators: those of the header that reads the choices.
function(tigon_operators out)
  tigon_header(backend/operators.hpp header)
  file(STRINGS ${header} operators REGEX "^ +x[(]")
  string(REGEX MATCHALL "x[(][a-z0-9_]+" operators "${operators}")
  list(TRANSFORM operators REPLACE "^x.(.+)$" "\\1")
  set(${out} ${operators} PARENT_SCOPE)
endfunction()

# The names of the backends of the library, in order of preference: the lines of backend/library.hpp.
function(tigon_library_backends out)
  tigon_header(backend/library.hpp header)
  file(STRINGS ${header} lines REGEX "^#include <tigon/backends/.*/line.hpp>")
  list(TRANSFORM lines REPLACE "^.*/backends/(.*)/line.hpp>.*$" "\\1")
  set(${out} ${lines} PARENT_SCOPE)
endfunction()

# What the line of a backend of the library needs: HIGHWAY, XSIMD, EIGEN, ONEDNN; FLAGS of the compiler; CUDA. Nothing of
# one that is not the library's.
function(tigon_needs_of backend out)
  set(needs)
  tigon_header("backends/${backend}/line.hpp" header)
  if(header)
    file(READ ${header} line)
    foreach(pair IN ITEMS FOUND_hwy,HIGHWAY FOUND_dnnl,HIGHWAY FOUND_dnnl,ONEDNN FOUND_xsimd,XSIMD FOUND_eigen,EIGEN
        FOUND_cuda,CUDA FLAGS_,FLAGS)
      string(REPLACE "," ";" pair "${pair}")
      list(GET pair 0 word)
      list(GET pair 1 library)
      if(line MATCHES "TIGON_${word}")
        list(APPEND needs ${library})
      endif()
    endforeach()
  endif()
  set(${out} ${needs} PARENT_SCOPE)
endfunction()

# tigon_register_backend(TARGET acme NAME acme HEADER acme/backend.hpp DEVICES cpu)
#
# What links TARGET computes on tigon::backends::NAME, if TIGON_DEVICE (cpu when empty) is among DEVICES and TIGON_BACKEND
# names no other. The same without CMake: -DTIGON_BACKEND=acme -DTIGON_BACKEND_HEADER='"acme/backend.hpp"'.
function(tigon_register_backend)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "TARGET;NAME;HEADER" "DEVICES")
  tigon_require_arguments(tigon_register_backend TARGET NAME HEADER DEVICES)
  string(STRIP "${TIGON_DEVICE}" device)
  string(TOLOWER "${device}" device)
  string(STRIP "${TIGON_BACKEND}" wish)
  string(TOLOWER "${wish}" wish)
  if(device STREQUAL "")
    set(device cpu)
  endif()
  if(wish STREQUAL arg_NAME OR (wish STREQUAL "" AND device IN_LIST arg_DEVICES))
    # TIGON_BACKEND=NAME comes with tigon::tigon where it was asked for.
    target_compile_definitions(${arg_TARGET} INTERFACE TIGON_BACKEND_HEADER="${arg_HEADER}" TIGON_BACKEND=${arg_NAME})
  endif()
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/tigon_conformance.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/tigon_multi_arch.cmake)
