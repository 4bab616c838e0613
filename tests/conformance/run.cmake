# cmake -DSOURCE= -DWORK= -DPREFIX= -DGENERATOR= -DCOMPILER= -DFLAGS= -P run.cmake: the suite accepts a backend that keeps
# what it promises, and finds the same error where it is not owned up to.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${WORK})
set(configure ${CMAKE_COMMAND} -S ${SOURCE} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${PREFIX} "-DCMAKE_CXX_FLAGS=${FLAGS}")
execute_process(COMMAND ${configure} -B ${WORK} -DTIGON_CONFORMANCE_OPS=softmax COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} COMMAND_ERROR_IS_FATAL ANY)

execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} --target coarse_conformance
  OUTPUT_VARIABLE coarse RESULT_VARIABLE result)
message("${coarse}")
foreach(line IN ITEMS "  softmax +coarse\n" "  rms_norm +generic\n" "coarse adapts 1 of [0-9]+ operators and adds 0\n"
    "coarse/ops/softmax [.]+ +Passed" "coarse/golden/softmax [.]+ +Passed" "100% tests passed, 0 tests failed out of 3")
  if(NOT result EQUAL 0 OR NOT coarse MATCHES "${line}")
    message(FATAL_ERROR "coarse: result ${result}, expected 0 and to read: ${line}")
  endif()
endforeach()

execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} --target wrong_conformance
  OUTPUT_VARIABLE wrong ERROR_VARIABLE ignored RESULT_VARIABLE result)
foreach(line IN ITEMS "wrong/coverage [.]+ +Passed" "wrong/ops/softmax [.]+[*]+Failed"
    "wrong/golden/softmax [.]+[*]+Failed" "element [0-9]+ of [0-9]+ is [0-9.]+ and should be" "33% tests passed, 2 tests failed out of 3")
  if(result EQUAL 0 OR NOT wrong MATCHES "${line}")
    message(FATAL_ERROR "wrong: result ${result}, expected a failure and to read: ${line}\n${wrong}")
  endif()
endforeach()

execute_process(COMMAND ${configure} -B ${WORK}/unknown -DTIGON_CONFORMANCE_OPS=softmin
  OUTPUT_QUIET ERROR_VARIABLE unknown RESULT_VARIABLE result)
string(REGEX REPLACE "[ \n]+" " " unknown "${unknown}")
if(result EQUAL 0 OR NOT unknown MATCHES "tigon_conformance: no operator is called softmin; there are .*softmax")
  message(FATAL_ERROR "softmin: result ${result}: ${unknown}")
endif()
