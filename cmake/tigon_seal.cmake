# cmake -DOUT= -DENTRY= -DOBJECTS=a.o;b.o -DLD= -DOBJCOPY= -DOBJDUMP= -P tigon_seal.cmake: links the objects into one whose
# only global symbol is ENTRY. See tigon_multi_arch.cmake.
cmake_minimum_required(VERSION 3.24)
set(open ${OUT}.open)
# Groups of sections, through which a linker would still exchange one object's body for another's, become plain sections.
execute_process(COMMAND ${LD} -r --force-group-allocation -o ${open} ${OBJECTS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJDUMP} -h ${open} OUTPUT_VARIABLE sections COMMAND_ERROR_IS_FATAL ANY)
if(sections MATCHES "\\.(init_array|ctors)")
  message(FATAL_ERROR "tigon_multi_arch: ${OBJECTS} have a constructor that runs at the start of the program, on any "
    "CPU, before an instruction set is chosen; make the object local to a function (<iostream> brings one, and under "
    "-O0 so does Eigen)")
endif()
execute_process(COMMAND ${OBJCOPY} --keep-global-symbol=${ENTRY} ${open} ${OUT} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJDUMP} -t ${OUT} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${open})
if(NOT symbols MATCHES " g +F [^\n]* ${ENTRY}\n")
  file(REMOVE ${OUT})
  message(FATAL_ERROR "tigon_multi_arch: no source defines extern \"C\" ... TIGON_MULTI_ARCH_ENTRY()")
endif()
