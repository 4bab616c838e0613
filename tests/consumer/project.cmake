# Configures, builds and runs one user's project from scratch, with -Werror, and not optimised, which would take longer.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${WORK})
set(flags "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=${flags} ${SETTINGS}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/your_program COMMAND_ERROR_IS_FATAL ANY)
