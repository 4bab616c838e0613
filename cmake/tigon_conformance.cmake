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
#   OPS        the operators to test, of those of tigon/backend/operators.hpp; not given: those of the cache variable
#              TIGON_CONFORMANCE_OPS, and if that is empty all of them. Tests of several operators, such as equivariance,
#              run where all operators do, or by their names. What is left out is printed.
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

  # Whom a test or an adapter belongs to, it says itself; a test without a line has an operator's name.
  tigon_operators(operators)
  file(GLOB tests RELATIVE ${suite} ${suite}/ops/*_test.cpp ${suite}/losses/*_test.cpp ${suite}/gemm/*_test.cpp)
  file(GLOB adapters RELATIVE ${suite} ${suite}/golden/adapters/*.hpp)
  if(NOT tests OR NOT adapters)
    message(FATAL_ERROR "tigon_conformance: there are no tests in ${suite}")
  endif()
  set(several)
  foreach(test IN LISTS tests)
    string(REGEX REPLACE "^.*/(.*)_test\\.cpp$" "\\1" name ${test})
    tigon_owners(${test} "^// Operators: (.*)$" ${name})
    if(owners STREQUAL "several")
      list(APPEND several ${name})
    endif()
    set(owners_of_${test} ${owners})
    list(APPEND tested ${owners})
  endforeach()
  foreach(adapter IN LISTS adapters)
    tigon_owners(${adapter} "^  using op = tigon::op::([a-z0-9_]+);$" "")
    set(owners_of_${adapter} ${owners})
    list(APPEND with_golden_values ${owners})
  endforeach()
  foreach(op IN LISTS operators)
    if(NOT op IN_LIST tested)
      message(FATAL_ERROR "tigon_conformance: operator ${op} has no test in ${suite}")
    endif()
  endforeach()

  set(wanted ${arg_OPS})
  if(NOT wanted)
    set(wanted ${TIGON_CONFORMANCE_OPS})
  endif()
  if(NOT wanted)
    set(wanted ${operators} ${several})
  endif()
  foreach(op IN LISTS wanted)
    if(NOT op IN_LIST operators AND NOT op IN_LIST several)
      list(JOIN operators ", " names)
      list(JOIN several ", " tests_of_several)
      message(FATAL_ERROR "tigon_conformance: no operator is called ${op}; there are ${names} and the tests of several "
        "operators ${tests_of_several}")
    endif()
  endforeach()
  set(without ${several})
  list(REMOVE_ITEM without ${wanted})
  set(left_out)
  if(without)
    list(JOIN without ", " names)
    set(left_out "the tests of several operators ${names}")
  endif()
  set(without ${wanted})
  list(REMOVE_ITEM without ${with_golden_values} ${several})
  if(without)
    list(JOIN without ", " names)
    list(APPEND left_out "golden values of ${names}, of which there are none")
  endif()
  list(JOIN left_out " and " left_out)
  if(left_out)
    set(left_out "${arg_NAME} leaves out ${left_out}")
    message(STATUS "tigon_conformance: ${left_out}")
    set(say_left_out COMMAND ${CMAKE_COMMAND} -E echo "${left_out}")
  endif()

  add_library(${all}_settings INTERFACE)
  target_compile_definitions(${all}_settings INTERFACE
    TIGON_CONFORMANCE_BACKEND=${arg_BACKEND} TIGON_CONFORMANCE_HEADER="${arg_HEADER}")
  target_compile_options(${all}_settings INTERFACE
    # g++ 12 warns of its own AVX-512 headers, even when they are system headers.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
  target_include_directories(${all}_settings SYSTEM INTERFACE ${suite})
  target_link_libraries(${all}_settings INTERFACE tigon::tigon nlohmann_json::nlohmann_json ${arg_LIBRARIES})

  tigon_conformance_test(coverage ${suite}/conformance/coverage.cpp)
  foreach(test IN LISTS tests)
    string(REGEX REPLACE "_test\\.cpp$" "" name ${test})
    get_filename_component(own ${name} NAME)
    foreach(owner IN LISTS owners_of_${test})
      if(owner IN_LIST wanted OR own IN_LIST wanted)
        tigon_conformance_test(${name} ${suite}/${test})
        break()
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
    if(owners_of_${adapter} IN_LIST wanted)
      get_filename_component(name ${adapter} NAME_WE)
      tigon_conformance_test(golden/${name} ${suite}/golden/adapter.cpp)
      target_compile_definitions(${all}_golden_${name} PRIVATE TIGON_GOLDEN_OP=${name})
      target_link_libraries(${all}_golden_${name} PRIVATE ${all}_golden)
    endif()
  endforeach()

  get_property(programs GLOBAL PROPERTY ${all}_programs)
  add_custom_target(${all}
    COMMAND ${all}_coverage --gtest_brief=1
    ${say_left_out}
    COMMAND ${CMAKE_CTEST_COMMAND} -C $<CONFIG> -L "^${all}$" --output-on-failure --no-tests=error
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} USES_TERMINAL VERBATIM)
  add_dependencies(${all} ${programs})
endfunction()

# `owners`: the operators that a file of the suite belongs to, by its lines that match, or by its name.
function(tigon_owners file line name)
  file(STRINGS ${suite}/${file} lines REGEX "${line}")
  list(TRANSFORM lines REPLACE "${line}" "\\1")
  list(JOIN lines " " owners)
  string(REPLACE " " ";" owners "${owners}")
  if(NOT owners AND name IN_LIST operators)
    set(owners ${name})
  endif()
  if(NOT owners)
    message(FATAL_ERROR "tigon_conformance: ${file} names no operator")
  endif()
  foreach(owner IN LISTS owners)
    if(NOT owner IN_LIST operators AND NOT owner STREQUAL "several")
      message(FATAL_ERROR "tigon_conformance: ${file} is for ${owner}, and there is no such operator")
    endif()
  endforeach()
  set(owners ${owners} PARENT_SCOPE)
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
