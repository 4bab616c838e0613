# What tigon::tigon takes from the machine and from the user, in the build tree and in an installed package alike.
#
#   TIGON_BACKEND, TIGON_DEVICE, TIGON_CORE   become compile definitions when they are set (before find_package,
#                                 add_subdirectory or FetchContent_MakeAvailable); in either case of letters, blanks
#                                 around them removed
#   TIGON_TILE_CAPACITY_BITS, TIGON_VECTOR_CORES   likewise: memory of a core and number of cores of a chip
#   TIGON_BACKEND_OF_<op>         likewise: a backend by name for one operator; refused where there is no such operator
#   TIGON_HIGHWAY_INCLUDE_DIR, TIGON_XSIMD_INCLUDE_DIR, TIGON_EIGEN_INCLUDE_DIR   where those headers are
#   TIGON_ONEDNN_INCLUDE_DIR, TIGON_ONEDNN_LIBRARY   oneDNN, for backend onednn alone
#
# Only include directories of the first three are taken. Their own targets would link shared objects that static dispatch
# does not need. One that is not found is not an error: the header that needs it names the package.
#
# oneDNN is the one library that is linked, and only by who asks for it: programs that link tigon::onednn, which exists
# where it was found, or everything where TIGON_BACKEND is onednn.
set(TIGON_BACKEND "" CACHE STRING "Default backend by name; empty: chosen for TIGON_DEVICE")
set(TIGON_DEVICE "" CACHE STRING "Device for which the default backend is chosen: cpu, npu or a vendor's; empty: cpu")
set_property(CACHE TIGON_DEVICE PROPERTY STRINGS "" cpu npu)
set(TIGON_CORE "" CACHE STRING "CPU core that row kernels are scheduled for: intel, zen4, zen5 or other; empty: by the flags")
set_property(CACHE TIGON_CORE PROPERTY STRINGS "" intel zen4 zen5 other)
set(TIGON_TILE_CAPACITY_BITS "" CACHE STRING "Bits of memory for tiles of a core of a chip; empty: what the backend says")
set(TIGON_VECTOR_CORES "" CACHE STRING "Cores of a chip; empty: what the backend says")
find_path(TIGON_HIGHWAY_INCLUDE_DIR hwy/highway.h)
find_path(TIGON_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp)
find_path(TIGON_EIGEN_INCLUDE_DIR Eigen/Core PATH_SUFFIXES eigen3)
find_path(TIGON_ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(TIGON_ONEDNN_LIBRARY dnnl)
mark_as_advanced(TIGON_HIGHWAY_INCLUDE_DIR TIGON_XSIMD_INCLUDE_DIR TIGON_EIGEN_INCLUDE_DIR TIGON_ONEDNN_INCLUDE_DIR
  TIGON_ONEDNN_LIBRARY)

function(tigon_settings target)
  foreach(library IN ITEMS HIGHWAY XSIMD EIGEN)
    if(TIGON_${library}_INCLUDE_DIR)
      target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${TIGON_${library}_INCLUDE_DIR}>)
    endif()
  endforeach()
  # The operators that may be chosen for are those of the header that reads the choices: in a checkout, or installed.
  set(operators)
  foreach(up IN ITEMS .. ../../.. ../../../..)
    set(header ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${up}/include/tigon/backend/choices.hpp)
    if(NOT operators AND EXISTS ${header})
      file(STRINGS ${header} operators REGEX "^ +x[(]")
      string(REGEX MATCHALL "x[(][a-z0-9_]+" operators "${operators}")
      list(TRANSFORM operators REPLACE "^x.(.+)$" "TIGON_BACKEND_OF_\\1")
    endif()
  endforeach()
  get_directory_property(choices VARIABLES)
  list(FILTER choices INCLUDE REGEX "^TIGON_BACKEND_OF_")
  foreach(choice IN LISTS choices)
    if(NOT choice IN_LIST operators)
      message(FATAL_ERROR "tigon: ${choice} is set, but there is no such operator; docs/backends.md lists them")
    endif()
  endforeach()
  foreach(setting IN ITEMS TIGON_BACKEND TIGON_DEVICE TIGON_CORE TIGON_TILE_CAPACITY_BITS TIGON_VECTOR_CORES ${choices})
    string(STRIP "${${setting}}" value)
    string(TOLOWER "${value}" value)
    set(${setting} "${value}")
    if(NOT value STREQUAL "")
      target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:${setting}=${value}>)
    endif()
  endforeach()
  if(TIGON_ONEDNN_INCLUDE_DIR AND TIGON_ONEDNN_LIBRARY AND NOT TARGET tigon::onednn)
    add_library(tigon::onednn INTERFACE IMPORTED GLOBAL)
    target_include_directories(tigon::onednn SYSTEM INTERFACE ${TIGON_ONEDNN_INCLUDE_DIR})
    target_link_libraries(tigon::onednn INTERFACE tigon::tigon ${TIGON_ONEDNN_LIBRARY} ${CMAKE_DL_LIBS})
  endif()
  if(TIGON_BACKEND STREQUAL "onednn" AND TARGET tigon::onednn)
    target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${TIGON_ONEDNN_INCLUDE_DIR}>)
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:${TIGON_ONEDNN_LIBRARY}> $<BUILD_INTERFACE:${CMAKE_DL_LIBS}>)
  endif()
  # The compiler says the same, but not always where tigon's headers count as a system's.
  if(TIGON_BACKEND STREQUAL "" AND NOT TIGON_HIGHWAY_INCLUDE_DIR)
    message(STATUS "tigon: <hwy/highway.h> was not found; without it the default backend is generic, which is slow. "
      "Install libhwy-dev")
  endif()
endfunction()
