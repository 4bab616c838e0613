# cmake -DSOURCE= -DWORK= -DPREFIX= -DGENERATOR= -DCOMPILER= -DFLAGS= -P run.cmake: the suite accepts a backend that
# keeps what it promises, and finds the same error where it is not owned up to. Judged by exit codes and by what tigon's
# own programs print: the words of ctest depend on its version.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${WORK})
set(configure ${CMAKE_COMMAND} -S ${SOURCE} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${PREFIX} "-DCMAKE_CXX_FLAGS=${FLAGS}")
execute_process(COMMAND ${configure} -B ${WORK} -DTIGON_CONFORMANCE_OPS=softmax COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} COMMAND_ERROR_IS_FATAL ANY)

# expect(PASSES|FAILS COMMAND ... [SAYS ...]): a command ends so, and prints what matches each of the expressions.
function(expect wanted)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SAYS;COMMAND")
  execute_process(COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${WORK} OUTPUT_VARIABLE said ERROR_VARIABLE said
    RESULT_VARIABLE result)
  if(result EQUAL 0)
    set(came PASSES)
  else()
    set(came FAILS)
  endif()
  list(JOIN arg_COMMAND " " command)
  if(NOT came STREQUAL wanted)
    message(FATAL_ERROR "${command}: ${came}, expected ${wanted}:\n${said}")
  endif()
  foreach(line IN LISTS arg_SAYS)
    if(NOT said MATCHES "${line}")
      message(FATAL_ERROR "${command} does not say ${line}, but:\n${said}")
    endif()
  endforeach()
endfunction()

expect(PASSES COMMAND ${CMAKE_COMMAND} --build ${WORK} --target coarse_conformance
  SAYS "  softmax +coarse\n" "  rms_norm +generic\n" "coarse adapts 1 of [0-9]+ operators and adds 0\n"
    "coarse leaves out the tests of several operators [a-z_, ]*equivariance")
foreach(test IN ITEMS coverage ops/softmax golden/softmax)
  expect(PASSES COMMAND ${CMAKE_CTEST_COMMAND} --no-tests=error -R "^coarse/${test}$")
endforeach()
expect(FAILS COMMAND ${CMAKE_COMMAND} --build ${WORK} --target wrong_conformance SAYS "  softmax +coarse\n")
expect(PASSES COMMAND ${WORK}/wrong_conformance_coverage)
expect(FAILS COMMAND ${WORK}/wrong_conformance_ops_softmax SAYS "element [0-9]+ of [0-9]+ is [0-9.]+ and should be")
expect(FAILS COMMAND ${WORK}/wrong_conformance_golden_softmax SAYS "softmax case.*rel_l2 [0-9.e-]+, at most")

# Every operator of the library may be named, a test of several too, and what is neither is refused.
execute_process(COMMAND ${configure} -B ${WORK}/unknown -DTIGON_CONFORMANCE_OPS=softmin
  OUTPUT_QUIET ERROR_VARIABLE unknown RESULT_VARIABLE result)
string(REGEX REPLACE "[ \n]+" " " unknown "${unknown}")
if(result EQUAL 0 OR NOT unknown MATCHES "tigon_conformance: no operator is called softmin; there are .*softmax")
  message(FATAL_ERROR "softmin: result ${result}: ${unknown}")
endif()
include(${PREFIX}/share/cmake/tigon/tigon_functions.cmake)
tigon_operators(operators)
list(LENGTH operators count)
if(count LESS 60)
  message(FATAL_ERROR "only ${count} operators were read: ${operators}")
endif()
execute_process(COMMAND ${configure} -B ${WORK}/all "-DTIGON_CONFORMANCE_OPS=${operators};equivariance"
  COMMAND_ERROR_IS_FATAL ANY)
# Nothing is left out where nothing is named: a program for each test and for each set of golden values.
execute_process(COMMAND ${configure} -B ${WORK}/all -DTIGON_CONFORMANCE_OPS= COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS ${WORK}/all/programs.txt programs)
set(suite ${PREFIX}/share/tigon/conformance/tests)
file(GLOB files RELATIVE ${suite} ${suite}/ops/*_test.cpp ${suite}/losses/*_test.cpp ${suite}/gemm/*_test.cpp)
file(GLOB sets RELATIVE ${suite} ${suite}/golden/*.safetensors)
foreach(file IN LISTS files sets)
  string(REGEX REPLACE "(_test)?[.][a-z]+$" "" name ${file})
  string(REPLACE "/" "_" name coarse_conformance_${name})
  if(NOT name IN_LIST programs)
    message(FATAL_ERROR "left out: ${file}")
  endif()
endforeach()
