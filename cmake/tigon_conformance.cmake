# The conformance suite: every operator test of tigon, compiled for one backend of your own, in your own build.
#
#   find_package(tigon 0.2 REQUIRED)
#   enable_testing()
#   tigon_conformance(NAME acme BACKEND tigon::backends::acme HEADER acme/backend.hpp
#     [LIBRARIES target...] [OPS name...] [TESTS file...])
#
#   NAME       begins the names of all targets and tests; the target NAME_conformance builds them, runs them and prints
#              who provides which operator
#   BACKEND    the type, in any namespace
#   HEADER     where it is defined, as you include it
#   LIBRARIES  what that header needs, for example the target that brings its folder
#   OPS        the operators to test; not given: those of the cache variable TIGON_CONFORMANCE_OPS, and if that is
#              empty all of them
#   TESTS      GoogleTest files of your own, for the operators that only you have; compiled like the others, with
#              support/*.hpp at hand
#
# GoogleTest and nlohmann_json have to be found. The flags are yours: the instruction set that they promise is tested.
set(TIGON_CONFORMANCE_OPS "" CACHE STRING "Operators that conformance suites test; empty: all")

function(tigon_conformance)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;BACKEND;HEADER" "LIBRARIES;OPS;TESTS")
  tigon_require_arguments(tigon_conformance NAME BACKEND HEADER)
  find_package(GTest REQUIRED)          # libgtest-dev
  find_package(nlohmann_json REQUIRED)  # nlohmann-json3-dev
  set(suite ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../tests)  # in a checkout
  if(NOT EXISTS ${suite}/conformance)
    set(suite ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../tigon/conformance/tests)  # installed
  endif()
  get_filename_component(suite ${suite} ABSOLUTE)
  set(all ${arg_NAME}_conformance)

  # An operator is what has a test of its name; an adapter belongs to the operator whose name begins its own.
  file(GLOB tests RELATIVE ${suite} ${suite}/ops/*_test.cpp ${suite}/losses/*_test.cpp ${suite}/gemm/*_test.cpp)
  file(GLOB adapters RELATIVE ${suite}/golden/adapters ${suite}/golden/adapters/*.hpp)
  list(TRANSFORM tests REPLACE "^.*/(.*)_test\\.cpp$" "\\1" OUTPUT_VARIABLE known)
  if(NOT known)
    message(FATAL_ERROR "tigon_conformance: there are no tests in ${suite}")
  endif()
  set(wanted ${arg_OPS})
  if(NOT wanted)
    set(wanted ${TIGON_CONFORMANCE_OPS})
  endif()
  if(NOT wanted)
    set(wanted ${known})
  endif()
  foreach(op IN LISTS wanted)
    if(NOT op IN_LIST known)
      list(JOIN known ", " names)
      message(FATAL_ERROR "tigon_conformance: no operator is called ${op}; there are ${names}")
    endif()
  endforeach()

  add_library(${all}_settings INTERFACE)
  target_compile_definitions(${all}_settings INTERFACE
    TIGON_CONFORMANCE_BACKEND=${arg_BACKEND} TIGON_CONFORMANCE_HEADER="${arg_HEADER}")
  target_compile_options(${all}_settings INTERFACE
    # g++ 12 warns of its own AVX-512 headers, even when they are system headers.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
  target_include_directories(${all}_settings SYSTEM INTERFACE ${suite})
  target_link_libraries(${all}_settings INTERFACE tigon::tigon nlohmann_json::nlohmann_json ${arg_LIBRARIES})

  tigon_conformance_test(coverage ${suite}/conformance/coverage.cpp)
  foreach(op IN LISTS wanted)
    foreach(test IN LISTS tests)
      if(test MATCHES "^(.*)/${op}_test\\.cpp$")
        tigon_conformance_test(${CMAKE_MATCH_1}/${op} ${suite}/${test})
      endif()
    endforeach()
  endforeach()
  foreach(source IN LISTS arg_TESTS)
    get_filename_component(name ${source} NAME_WE)
    tigon_conformance_test(own/${name} ${source})
  endforeach()

  # Golden fixtures: what reads and judges them once, an adapter an operator.
  add_library(${all}_golden OBJECT ${suite}/support/golden.cpp ${suite}/golden/golden_test.cpp)
  target_compile_definitions(${all}_golden PRIVATE TIGON_GOLDEN_FOLDER="${suite}/golden")
  target_link_libraries(${all}_golden PUBLIC ${all}_settings GTest::gtest)
  foreach(adapter IN LISTS adapters)
    string(REGEX REPLACE "\\.hpp$" "" name ${adapter})
    set(owner "")
    foreach(op IN LISTS known)
      string(LENGTH "${op}" length)
      string(LENGTH "${owner}" owner_length)
      if("${name}_" MATCHES "^${op}_" AND length GREATER owner_length)
        set(owner ${op})
      endif()
    endforeach()
    if(owner IN_LIST wanted)
      tigon_conformance_test(golden/${name} ${suite}/golden/adapter.cpp)
      target_compile_definitions(${all}_golden_${name} PRIVATE TIGON_GOLDEN_OP=${name})
      target_link_libraries(${all}_golden_${name} PRIVATE ${all}_golden)
    endif()
  endforeach()

  get_property(programs GLOBAL PROPERTY ${all}_programs)
  add_custom_target(${all}
    COMMAND ${all}_coverage --gtest_brief=1
    COMMAND ${CMAKE_CTEST_COMMAND} -C $<CONFIG> -L "^${all}$" --output-on-failure --no-tests=error
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} USES_TERMINAL VERBATIM)
  add_dependencies(${all} ${programs})
endfunction()

# One program, NAME_conformance_<folder>_<name>, and one test, NAME/<folder>/<name>.
function(tigon_conformance_test name source)
  string(REPLACE "/" "_" program ${all}_${name})
  add_executable(${program} ${source})
  target_link_libraries(${program} PRIVATE ${all}_settings GTest::gtest)
  if(NOT name MATCHES "^golden/")
    target_link_libraries(${program} PRIVATE GTest::gtest_main)
  endif()
  add_test(NAME ${arg_NAME}/${name} COMMAND ${program})
  set_tests_properties(${arg_NAME}/${name} PROPERTIES TIMEOUT 600 LABELS ${all})
  set_property(GLOBAL APPEND PROPERTY ${all}_programs ${program})
endfunction()
