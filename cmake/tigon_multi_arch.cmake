# One program for many CPUs: compiles the same sources for several instruction sets and picks one at run time.
#
#   tigon_multi_arch(kernels SOURCES kernels.cpp HEADER kernels.hpp TABLE kernel_table
#     [SETS x86-64 x86-64-v3 x86-64-v4] [LIBRARIES tigon::tigon])
#   target_link_libraries(program PRIVATE kernels)
#
# HEADER declares TABLE, a struct of pointers to functions. The sources define, without naming an instruction set,
#
#   extern "C" const kernel_table* TIGON_MULTI_ARCH_ENTRY() {
#     static constexpr kernel_table table{...};
#     return &table;
#   }
#
# and the program includes "kernels_multi_arch.hpp", which is made here and declares
#
#   const kernel_table& kernels();                       of the widest set that this CPU has; chosen once
#   const kernel_table* kernels_for(const char* set);    nullptr if this CPU lacks the set, or nobody compiled for it
#   const char* kernels_instruction_set();               its name, as in SETS
#
# The environment variable TIGON_INSTRUCTION_SET=x86-64-v3 forces one set; one that cannot be had is a
# std::runtime_error at the first call, never another set. SETS are x86-64, x86-64-v2, x86-64-v3, x86-64-v4,
# avx512_bf16 (x86-64-v4 with the bf16 dot instruction), amx (that with tile registers, where Linux permits them to the
# process) and baseline (the compiler's own default, all there is on other processors).
#
# The objects of each set are linked into one whose only global symbol is its entry, so that nothing of it can be
# exchanged for a body that was compiled for another set: not Eigen's templates, not those of the standard library. No
# object may have a constructor that runs before the choice: that is refused. GNU ld and objcopy do this.
function(tigon_multi_arch name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER;TABLE" "SOURCES;SETS;LIBRARIES")
  tigon_require_arguments(tigon_multi_arch SOURCES HEADER TABLE)
  # By name: with clang, CMake's own variables mean LLVM's tools, whose ld -r keeps the groups. Those of another processor
  # begin as its compiler does: aarch64-linux-gnu-.
  get_filename_component(tools ${CMAKE_CXX_COMPILER} NAME)
  string(REGEX REPLACE "[^-]*([+][+]|clang).*$" "" tools ${tools})
  find_program(TIGON_LD NAMES ${tools}ld.bfd ld.bfd)
  find_program(TIGON_OBJCOPY NAMES ${tools}objcopy objcopy)
  find_program(TIGON_OBJDUMP NAMES ${tools}objdump objdump)
  mark_as_advanced(TIGON_LD TIGON_OBJCOPY TIGON_OBJDUMP)
  if(NOT TIGON_LD OR NOT TIGON_OBJCOPY OR NOT TIGON_OBJDUMP)
    message(FATAL_ERROR "tigon_multi_arch: GNU ld, objcopy and objdump are needed; install binutils")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(arg_SETS baseline)
  elseif(NOT arg_SETS)
    set(arg_SETS x86-64 x86-64-v3 x86-64-v4)
  endif()

  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name}_multi_arch)
  set(MULTI_ARCH_NAME ${name})
  set(MULTI_ARCH_TABLE ${arg_TABLE})
  get_filename_component(MULTI_ARCH_HEADER ${arg_HEADER} ABSOLUTE)
  set(MULTI_ARCH_ENTRIES "")
  set(MULTI_ARCH_SETS "")
  set(sealed "")
  foreach(set IN ITEMS amx avx512_bf16 x86-64-v4 x86-64-v3 x86-64-v2 x86-64 baseline)  # the widest first
    if(NOT set IN_LIST arg_SETS)
      continue()
    endif()
    list(REMOVE_ITEM arg_SETS ${set})
    string(MAKE_C_IDENTIFIER ${set} word)
    set(flags -march=${set})
    if(set STREQUAL amx)
      set(flags -march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8)
    elseif(set STREQUAL avx512_bf16)
      set(flags -march=x86-64-v4 -mavx512bf16)
    elseif(set STREQUAL baseline)
      set(flags "")
    endif()
    set(objects ${name}_${word})
    add_library(${objects} OBJECT ${arg_SOURCES})
    set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF)
    target_compile_definitions(${objects} PRIVATE TIGON_MULTI_ARCH_ENTRY=${objects})
    target_compile_options(${objects} PRIVATE ${flags} -fno-lto $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>
      # Not optimised at all, the constants of Eigen's headers have constructors.
      $<$<OR:$<CONFIG:>,$<CONFIG:Debug>>:-O1>)
    target_link_libraries(${objects} PRIVATE tigon::tigon ${arg_LIBRARIES})
    add_custom_command(OUTPUT ${folder}/${word}.o
      COMMAND ${CMAKE_COMMAND} -DOUT=${folder}/${word}.o -DENTRY=${objects} -DLD=${TIGON_LD}
        -DOBJCOPY=${TIGON_OBJCOPY} -DOBJDUMP=${TIGON_OBJDUMP} "-DOBJECTS=$<TARGET_OBJECTS:${objects}>"
        -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/tigon_seal.cmake
      DEPENDS $<TARGET_OBJECTS:${objects}> ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/tigon_seal.cmake VERBATIM)
    list(APPEND sealed ${folder}/${word}.o)
    string(APPEND MULTI_ARCH_ENTRIES "extern \"C\" const ${arg_TABLE}* ${objects}();\n")
    string(APPEND MULTI_ARCH_SETS "    {\"${set}\", &has_${word}, &${objects}},\n")
  endforeach()
  if(arg_SETS)
    message(FATAL_ERROR "tigon_multi_arch: no instruction set is called ${arg_SETS}; there are x86-64, x86-64-v2, "
      "x86-64-v3, x86-64-v4, avx512_bf16, amx and baseline")
  endif()

  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/multi_arch.hpp.in ${folder}/${name}_multi_arch.hpp @ONLY)
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/multi_arch.cpp.in ${folder}/${name}_multi_arch.cpp @ONLY)
  set_source_files_properties(${sealed} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(${name} STATIC ${folder}/${name}_multi_arch.cpp ${sealed})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} INTERFACE ${folder})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(${name} PRIVATE -march=x86-64)  # it runs on every CPU: it chooses
  endif()
  find_package(Threads REQUIRED)
  target_link_libraries(${name} PRIVATE Threads::Threads)
endfunction()
