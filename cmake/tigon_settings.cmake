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
# does not need; where a project has made such a target before it adds tigon, its include directories are used. A library
# that the chosen backend needs and that is not found is an error (tigon_missing), never another backend.
#
# oneDNN is the one library that is linked, and only by who asks for it: programs that link tigon::onednn, which exists
# where it was found, or everything where TIGON_BACKEND is onednn.
#
# Backend cuda is for .cu files of programs that link tigon::cuda, which exists with TIGON_CUDA and brings nvcc's flags; the
# program enables the language CUDA (docs/cuda.md).
option(TIGON_CUDA "Make the target tigon::cuda, for programs in CUDA C++" OFF)
set(TIGON_BACKEND "" CACHE STRING "Default backend by name; empty: chosen for TIGON_DEVICE")
set(TIGON_DEVICE "" CACHE STRING "Device for which the default backend is chosen: cpu, npu or a vendor's; empty: cpu, or gpu in files of CUDA C++ that link tigon::cuda")
set_property(CACHE TIGON_DEVICE PROPERTY STRINGS "" cpu npu)
set(TIGON_CORE "" CACHE STRING "CPU core that row kernels are scheduled for: intel, zen4, zen5 or other; empty: by the flags")
set_property(CACHE TIGON_CORE PROPERTY STRINGS "" intel zen4 zen5 other)
set(TIGON_TILE_CAPACITY_BITS "" CACHE STRING "Bits of memory for tiles of a core of a chip; empty: what the backend says")
set(TIGON_VECTOR_CORES "" CACHE STRING "Cores of a chip; empty: what the backend says")
find_path(TIGON_HIGHWAY_INCLUDE_DIR hwy/highway.h HINTS ENV CPLUS_INCLUDE_PATH ENV CPATH)
find_path(TIGON_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp HINTS ENV CPLUS_INCLUDE_PATH ENV CPATH)
find_path(TIGON_EIGEN_INCLUDE_DIR Eigen/Core HINTS ENV CPLUS_INCLUDE_PATH ENV CPATH PATH_SUFFIXES eigen3)
find_path(TIGON_ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(TIGON_ONEDNN_LIBRARY dnnl)
mark_as_advanced(TIGON_HIGHWAY_INCLUDE_DIR TIGON_XSIMD_INCLUDE_DIR TIGON_EIGEN_INCLUDE_DIR TIGON_ONEDNN_INCLUDE_DIR
  TIGON_ONEDNN_LIBRARY)

# Header, targets under which projects may have it already, and packages of Debian, vcpkg and Conan.
set(TIGON_HIGHWAY_IS hwy/highway.h hwy::hwy,hwy libhwy-dev highway highway)
set(TIGON_XSIMD_IS xsimd/xsimd.hpp xsimd::xsimd,xsimd libxsimd-dev xsimd xsimd)
set(TIGON_EIGEN_IS Eigen/Core Eigen3::Eigen,eigen libeigen3-dev eigen3 eigen)
set(TIGON_ONEDNN_IS oneapi/dnnl/dnnl.hpp "" libdnnl-dev onednn onednn)

# A setting without blanks around it, in small letters.
function(tigon_value setting out)
  string(STRIP "${${setting}}" value)
  string(TOLOWER "${value}" value)
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

# The target by which this project has a library, or nothing.
function(tigon_target_of library out)
  set(${out} "" PARENT_SCOPE)
  list(GET TIGON_${library}_IS 1 targets)
  string(REPLACE "," ";" targets "${targets}")
  foreach(target IN LISTS targets)
    if(TARGET ${target})
      set(${out} ${target} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# A sentence if what the chosen backends need is not there, or if the compiler cannot compile the headers; else nothing.
# Of `generic` nothing is needed here: its operators that are made of products need Eigen, and the headers say so. What a
# backend from outside needs is for its own project.
function(tigon_missing out)
  set(${out} "" PARENT_SCOPE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "MSVC")
    set(${out} "tigon: MSVC cannot compile the headers; use g++ or clang++" PARENT_SCOPE)
    return()
  endif()
  tigon_value(TIGON_BACKEND backend)
  set(backends "${backend}")
  if(backend STREQUAL "")
    set(backends "default")
  endif()
  get_directory_property(choices VARIABLES)
  list(FILTER choices INCLUDE REGEX "^TIGON_BACKEND_OF_")
  foreach(choice IN LISTS choices)
    tigon_value(${choice} value)
    list(APPEND backends ${value})
  endforeach()
  list(REMOVE_DUPLICATES backends)
  set(who)
  set(missing)
  foreach(name IN LISTS backends)
    if(name STREQUAL "default")
      set(needs HIGHWAY)
    else()
      tigon_needs_of(${name} needs)
      list(REMOVE_ITEM needs CUDA FLAGS)
    endif()
    if(needs)  # products, of all engines
      list(APPEND needs EIGEN)
      list(REMOVE_DUPLICATES needs)
    endif()
    foreach(library IN LISTS needs)
      tigon_target_of(${library} provider)
      if(NOT TIGON_${library}_INCLUDE_DIR AND NOT provider OR library STREQUAL "ONEDNN" AND NOT TIGON_ONEDNN_LIBRARY)
        if(name STREQUAL "default")
          list(APPEND who "the default backend")
        else()
          list(APPEND who "backend ${name}")
        endif()
        list(APPEND missing ${library})
      endif()
    endforeach()
  endforeach()
  if(NOT missing)
    return()
  endif()
  list(REMOVE_DUPLICATES who)
  list(REMOVE_DUPLICATES missing)
  foreach(library IN LISTS missing)
    list(GET TIGON_${library}_IS 0 header)
    list(APPEND headers "<${header}>")
    list(APPEND variables TIGON_${library}_INCLUDE_DIR)
    if(library STREQUAL "ONEDNN")
      list(APPEND variables TIGON_ONEDNN_LIBRARY)
    endif()
    foreach(index IN ITEMS 2 3 4)
      list(GET TIGON_${library}_IS ${index} package)
      list(APPEND packages_${index} ${package})
    endforeach()
  endforeach()
  list(JOIN who " and " who)
  list(JOIN headers " and " headers)
  list(JOIN variables " and " variables)
  list(JOIN packages_2 " " debian)
  list(JOIN packages_3 " " vcpkg)
  list(JOIN packages_4 " " conan)
  set(${out} "tigon: ${who} needs ${headers}; install ${debian} (vcpkg: ${vcpkg}; Conan: ${conan}), \
set ${variables}, or choose another backend by name, such as TIGON_BACKEND=xsimd, or generic, \
which is single numbers and slow" PARENT_SCOPE)
endfunction()

function(tigon_settings target)
  # CMake's own default optimises nothing, and kernels are functions that have to be inlined.
  if(NOT CMAKE_PROJECT_NAME STREQUAL "tigon" AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES
     AND NOT CMAKE_CXX_FLAGS MATCHES "-O[1-3sfgz]")
    message(NOTICE "tigon: CMAKE_BUILD_TYPE is not set, and nothing is optimised; with -DCMAKE_BUILD_TYPE=Release kernels are \
about a hundred times faster")
  endif()
  foreach(library IN ITEMS HIGHWAY XSIMD EIGEN)
    tigon_target_of(${library} provider)
    if(TIGON_${library}_INCLUDE_DIR)
      target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${TIGON_${library}_INCLUDE_DIR}>)
    elseif(provider)
      target_include_directories(${target} SYSTEM INTERFACE
        $<BUILD_INTERFACE:$<TARGET_PROPERTY:${provider},INTERFACE_INCLUDE_DIRECTORIES>>)
    endif()
  endforeach()
  tigon_operators(operators)
  list(TRANSFORM operators PREPEND TIGON_BACKEND_OF_)
  get_directory_property(choices VARIABLES)
  list(FILTER choices INCLUDE REGEX "^TIGON_BACKEND_OF_")
  foreach(choice IN LISTS choices)
    if(NOT choice IN_LIST operators)
      message(FATAL_ERROR "tigon: ${choice} is set, but there is no such operator; docs/backends.md lists them")
    endif()
  endforeach()
  foreach(setting IN ITEMS TIGON_BACKEND TIGON_DEVICE TIGON_CORE TIGON_TILE_CAPACITY_BITS TIGON_VECTOR_CORES ${choices})
    tigon_value(${setting} value)
    set(${setting} "${value}")
    if(NOT value STREQUAL "")
      target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:${setting}=${value}>)
    endif()
  endforeach()
  if(TIGON_CUDA AND NOT TARGET tigon::cuda)
    add_library(tigon::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(tigon::cuda INTERFACE tigon::tigon)
    target_compile_options(tigon::cuda INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>")
    # nvcc warns of calls that device code never makes, and (20012) of Eigen's defaulted functions.
    target_include_directories(tigon::cuda SYSTEM INTERFACE $<TARGET_PROPERTY:tigon::tigon,INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_options(tigon::cuda INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-diag-suppress=20012>)
    if("${TIGON_DEVICE}" STREQUAL "")
      target_compile_definitions(tigon::cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:TIGON_DEVICE=gpu>)
    endif()
  endif()
  if(TIGON_ONEDNN_INCLUDE_DIR AND TIGON_ONEDNN_LIBRARY AND NOT TARGET tigon::onednn)
    add_library(tigon::onednn INTERFACE IMPORTED GLOBAL)
    target_include_directories(tigon::onednn SYSTEM INTERFACE ${TIGON_ONEDNN_INCLUDE_DIR})
    target_link_libraries(tigon::onednn INTERFACE tigon::tigon ${TIGON_ONEDNN_LIBRARY} ${CMAKE_DL_LIBS})
  endif()
  if(TIGON_BACKEND STREQUAL "onednn" AND TARGET tigon::onednn)
    target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${TIGON_ONEDNN_INCLUDE_DIR}>)
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:${TIGON_ONEDNN_LIBRARY}> $<BUILD_INTERFACE:${CMAKE_DL_LIBS}>)
  endif()
endfunction()
