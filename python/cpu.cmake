# The library for CPUs: the kernels of csrc for several instruction sets, under the code that knows tensors.
# g++ collects garbage when its heap has grown by a third; with room, it compiles templates a fifth faster.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=300;--param=ggc-min-heapsize=1500000>")

# What goes over rows, and f32 products, for three instruction sets; bf16 products also for those that multiply bf16.
set(row_sources csrc/entry.cpp csrc/norms.cpp csrc/gates.cpp csrc/losses.cpp csrc/adamw.cpp
  csrc/declared_activations.cpp csrc/declared_norms.cpp csrc/declared_divergences.cpp csrc/declared_heads.cpp
  csrc/declared_depth.cpp)
set(product_sources csrc/entry.cpp csrc/attention.cpp csrc/cross_entropy.cpp csrc/preferences.cpp csrc/moe.cpp
  csrc/declared_linear_losses.cpp csrc/declared_layers.cpp csrc/declared_ranks.cpp)
if(NOT TIGON_TORCH_SETS)
  set(TIGON_TORCH_SETS x86-64-v2 x86-64-v3 x86-64-v4)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mavx512bf16 TIGON_TORCH_HAS_BF16)
  check_cxx_compiler_flag(-mamx-bf16 TIGON_TORCH_HAS_AMX)
  if(TIGON_TORCH_HAS_BF16)
    list(APPEND TIGON_TORCH_SETS avx512_bf16)
  endif()
  if(TIGON_TORCH_HAS_AMX)
    list(APPEND TIGON_TORCH_SETS amx)
  endif()
endif()
set(row_sets ${TIGON_TORCH_SETS})
list(TRANSFORM row_sets REPLACE "^(avx512_bf16|amx)$" x86-64-v4)
list(REMOVE_DUPLICATES row_sets)

# What is made of products is one translation unit of each table, because a third of its code is the products. The rows
# have nothing in common.
set(CMAKE_UNITY_BUILD ON)
set_source_files_properties(${row_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Definitions reach the sources of a table as those of a library.
foreach(definition IN ITEMS ROWS PRODUCTS F32 BF16 F16 F64)
  add_library(TIGON_TORCH_${definition} INTERFACE)
  target_compile_definitions(TIGON_TORCH_${definition} INTERFACE TIGON_TORCH_${definition}=1)
endforeach()
set(table HEADER csrc/kernels.hpp TABLE tigon_torch::kernel_table)
tigon_multi_arch(row_kernels SOURCES ${row_sources} ${table} SETS ${row_sets} LIBRARIES TIGON_TORCH_ROWS)
tigon_multi_arch(f32_kernels SOURCES ${product_sources} ${table} SETS ${row_sets}
  LIBRARIES TIGON_TORCH_PRODUCTS TIGON_TORCH_F32)
tigon_multi_arch(bf16_kernels SOURCES ${product_sources} csrc/integers.cpp ${table} SETS ${TIGON_TORCH_SETS}
  LIBRARIES TIGON_TORCH_PRODUCTS TIGON_TORCH_BF16)
# f16, for CPUs that convert it; what is not here is computed in f32.
tigon_multi_arch(f16_kernels SOURCES csrc/entry.cpp csrc/norms.cpp csrc/gates.cpp csrc/attention.cpp
  csrc/cross_entropy.cpp ${table} SETS x86-64-v3 LIBRARIES TIGON_TORCH_F16)
# f64, for any CPU: it is there to check gradients, and compiled the faster way, as the tests are.
target_compile_options(TIGON_TORCH_F64 INTERFACE -O1)
tigon_multi_arch(f64_kernels SOURCES ${row_sources} ${product_sources} ${table} SETS x86-64 LIBRARIES TIGON_TORCH_F64)

torch_library(tigon_torch _library csrc/cpu.cpp csrc/products.cpp)
set(set_names ${TIGON_TORCH_SETS})
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(set_names baseline)  # as tigon_multi_arch has it
endif()
list(REVERSE set_names)  # the widest first
list(TRANSFORM set_names REPLACE "(.+)" "\"\\1\"")
list(JOIN set_names "," set_names)
target_compile_definitions(tigon_torch PRIVATE "TIGON_TORCH_SETS=${set_names}")
target_link_libraries(tigon_torch PRIVATE row_kernels f32_kernels bf16_kernels f16_kernels f64_kernels)

