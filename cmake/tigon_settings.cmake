# What tigon::tigon takes from the machine and from the user, in the build tree and in an installed package alike.
#
#   TIGON_BACKEND, TIGON_DEVICE   become compile definitions when they are set (before find_package, add_subdirectory
#                                 or FetchContent_MakeAvailable); in either case of letters, blanks around them removed
#   TIGON_HIGHWAY_INCLUDE_DIR, TIGON_XSIMD_INCLUDE_DIR, TIGON_EIGEN_INCLUDE_DIR   where those headers are
#
# Only include directories of the three libraries are taken. Their own targets would link shared objects that static
# dispatch does not need. One that is not found is not an error: the header that needs it names the package.
set(TIGON_BACKEND "" CACHE STRING "Default backend by name; empty: chosen for TIGON_DEVICE")
set(TIGON_DEVICE "" CACHE STRING "Device for which the default backend is chosen: cpu or npu; empty: cpu")
set_property(CACHE TIGON_DEVICE PROPERTY STRINGS "" cpu npu)
find_path(TIGON_HIGHWAY_INCLUDE_DIR hwy/highway.h)
find_path(TIGON_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp)
find_path(TIGON_EIGEN_INCLUDE_DIR Eigen/Core PATH_SUFFIXES eigen3)
mark_as_advanced(TIGON_HIGHWAY_INCLUDE_DIR TIGON_XSIMD_INCLUDE_DIR TIGON_EIGEN_INCLUDE_DIR)

function(tigon_settings target)
  foreach(library IN ITEMS HIGHWAY XSIMD EIGEN)
    if(TIGON_${library}_INCLUDE_DIR)
      target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${TIGON_${library}_INCLUDE_DIR}>)
    endif()
  endforeach()
  foreach(setting IN ITEMS TIGON_BACKEND TIGON_DEVICE)
    string(STRIP "${${setting}}" value)
    string(TOLOWER "${value}" value)
    set(${setting} "${value}")
    if(NOT value STREQUAL "")
      target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:${setting}=${value}>)
    endif()
  endforeach()
  # The compiler says the same, but not always where tigon's headers count as a system's.
  if(TIGON_BACKEND STREQUAL "" AND NOT TIGON_HIGHWAY_INCLUDE_DIR)
    message(STATUS "tigon: <hwy/highway.h> was not found; without it the default backend is generic, which is slow. "
      "Install libhwy-dev")
  endif()
endfunction()
