# The library for CUDA: the kernels of csrc compiled by nvcc, an object for each source and element type, under the code that
# knows tensors. On a model of a GPU the same sources are compiled by the C++ compiler.
# Each has a line in csrc/entry.cpp. The model takes all of them in f32: what is between tensors and kernels is the same.
set(cuda_sources norms gates losses adamw cross_entropy preferences declared_activations declared_norms declared_divergences
  declared_heads declared_depth declared_linear_losses declared_layers declared_ranks)
set(without_f16 losses preferences adamw)  # which take no f16
if(NOT TIGON_TORCH_CUDA_ARCHS)
  set(TIGON_TORCH_CUDA_ARCHS 80 90a 100)
endif()
if(NOT TIGON_TORCH_CUDA_TYPES)
  set(TIGON_TORCH_CUDA_TYPES f32 bf16 f16 f64)
endif()
list(TRANSFORM TIGON_TORCH_CUDA_TYPES REPLACE "(.+)" "t(\\1)" OUTPUT_VARIABLE cuda_types)
list(JOIN cuda_types " " cuda_types)

# What distinguishes the sources of a type: those of all types are in one library.
function(definitions_of type out)
  string(TOUPPER ${type} upper)
  set(${out} TIGON_TORCH_CUDA=1 TIGON_TORCH_${upper}=1 tigon_torch=tigon_torch_${type}
    TIGON_MULTI_ARCH_ENTRY=tigon_torch_cuda_${type} PARENT_SCOPE)
endfunction()

function(cuda_library name file model types)
  file(CONFIGURE OUTPUT ${file}/tigon_torch_cuda_types.hpp CONTENT "#define TIGON_TORCH_CUDA_TYPES(t) ${types}\n" @ONLY)
  torch_library(${name} ${file} csrc/cuda.cpp ${ARGN})
  target_compile_definitions(${name} PRIVATE TIGON_TORCH_CUDA=1 TIGON_TORCH_CUDA_MODEL=${model})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${file})
endfunction()

if(TIGON_TORCH_NVCC)
  get_filename_component(cuda_folder ${TIGON_TORCH_NVCC} DIRECTORY)
  set(includes "")
  foreach(folder IN ITEMS ${TIGON_TORCH_CUBLAS_INCLUDE} ${TIGON_EIGEN_INCLUDE_DIR})
    list(APPEND includes -isystem ${folder})
  endforeach()
  set(architectures "")
  foreach(arch IN LISTS TIGON_TORCH_CUDA_ARCHS)
    list(APPEND architectures -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  # The first one's code also as PTX, for GPUs that come later; not that of 90a, which is for those GPUs alone.
  list(GET TIGON_TORCH_CUDA_ARCHS 0 first)
  if(first MATCHES "^[0-9]+$")
    list(APPEND architectures -gencode=arch=compute_${first},code=compute_${first})
  endif()
  set(objects "")
  foreach(type IN LISTS TIGON_TORCH_CUDA_TYPES)
    definitions_of(${type} definitions)
    list(TRANSFORM definitions PREPEND -D OUTPUT_VARIABLE flags)
    foreach(source IN LISTS cuda_sources)
      if(type STREQUAL "f16" AND source IN_LIST without_f16)
        continue()
      endif()
      set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${source}_${type}.o)
      add_custom_command(OUTPUT ${object} DEPFILE ${object}.d VERBATIM COMMENT "Building CUDA object ${source}_${type}.o"
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/csrc/${source}.cpp
        COMMAND ${TIGON_TORCH_NVCC} -std=c++20 -O3 -DNDEBUG ${architectures} --compress-mode=size -ccbin ${CMAKE_CXX_COMPILER}
          --expt-relaxed-constexpr -diag-suppress=20011,20012,20013,20014,20015,554
          -Xcompiler -fPIC,-fvisibility=hidden -I${TIGON_SOURCE}/include ${includes} -include tigon/backends/cuda/backend.hpp ${flags}
          -MD -MT ${object} -MF ${object}.d -x cu -c ${CMAKE_CURRENT_SOURCE_DIR}/csrc/${source}.cpp -o ${object})
      list(APPEND objects ${object})
    endforeach()
    add_library(cuda_entry_${type} OBJECT csrc/entry.cpp)
    set_target_properties(cuda_entry_${type} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_features(cuda_entry_${type} PRIVATE cxx_std_20)
    target_compile_definitions(cuda_entry_${type} PRIVATE ${definitions})
    list(APPEND objects $<TARGET_OBJECTS:cuda_entry_${type}>)
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  cuda_library(tigon_torch_cuda _library_cuda 0 "${cuda_types}" ${objects})
  target_compile_definitions(tigon_torch_cuda PRIVATE TIGON_TORCH_KEY=CUDA USE_CUDA)

  # What PyTorch has loaded when this library is: its own library for CUDA, and cuBLASLt, each of which is named here alone.
  # Empty libraries of these names stand for them; they are not installed.
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/cuda/empty.cpp "")
  execute_process(COMMAND ${TIGON_TORCH_NVCC} --version OUTPUT_VARIABLE version)
  string(REGEX REPLACE ".*release ([0-9]+)\\..*" "\\1" version "${version}")
  foreach(stand_in IN ITEMS libtorch_cuda.so libcublasLt.so.${version})
    string(MAKE_C_IDENTIFIER ${stand_in} target)
    add_library(${target} SHARED ${CMAKE_CURRENT_BINARY_DIR}/cuda/empty.cpp)
    set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME ${stand_in} LIBRARY_OUTPUT_DIRECTORY stand_in)
    target_link_options(tigon_torch_cuda PRIVATE -Wl,--no-as-needed)
    target_link_libraries(tigon_torch_cuda PRIVATE ${target})
  endforeach()
  set_target_properties(tigon_torch_cuda PROPERTIES SKIP_BUILD_RPATH ON)
  find_library(TIGON_TORCH_CUDART cudart_static REQUIRED PATHS ${cuda_folder}/../lib ${cuda_folder}/../lib64 NO_DEFAULT_PATH)
  target_include_directories(tigon_torch_cuda SYSTEM PRIVATE ${cuda_folder}/../include)
  target_link_libraries(tigon_torch_cuda PRIVATE ${TIGON_TORCH_CUDART} dl rt pthread)
endif()

if(TIGON_TORCH_CUDA_MODEL)
  definitions_of(f32 definitions)
  list(TRANSFORM cuda_sources REPLACE "(.+)" "csrc/\\1.cpp" OUTPUT_VARIABLE sources)
  add_library(cuda_model OBJECT csrc/entry.cpp ${sources})
  set_target_properties(cuda_model PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_compile_definitions(cuda_model PRIVATE ${definitions} TIGON_TORCH_CUDA_MODEL=1 TIGON_BACKEND=cuda TIGON_DEVICE=gpu
    "TIGON_BACKEND_HEADER=<tigon/backends/cuda/backend.hpp>")
  target_compile_options(cuda_model PRIVATE -O1 -mfma -Wno-unknown-pragmas
    -include ${TIGON_SOURCE}/tests/cuda/model_backend.hpp)
  target_link_libraries(cuda_model PRIVATE tigon::tigon)
  cuda_library(tigon_torch_model _library_model 1 "t(f32)" $<TARGET_OBJECTS:cuda_model>)
endif()
