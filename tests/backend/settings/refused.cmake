# cmake -DSENTENCE= -DWORK= -DGENERATOR= -DCOMPILER= -DSETTINGS= -P refused.cmake: the project is refused with that
# sentence, which message() has broken into lines.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK} -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER} ${SETTINGS}
  OUTPUT_QUIET ERROR_VARIABLE said RESULT_VARIABLE result)
string(REGEX REPLACE "[ \n]+" " " words "${said}")
string(FIND "${words}" "${SENTENCE}" at)
if(result EQUAL 0 OR at EQUAL -1)
  message(FATAL_ERROR "result ${result}, expected a refusal with\n  ${SENTENCE}\nbut\n${said}")
endif()
