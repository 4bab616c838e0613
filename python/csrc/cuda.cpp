// What a call on CUDA runs on: the current stream and memory of PyTorch's allocator, and the kernels of the library for
// CUDA, a table for each element type. Tests compile them with a C++ compiler against a model of a GPU, whose memory is
// the host's (TIGON_TORCH_CUDA_MODEL).
#if !TIGON_TORCH_CUDA_MODEL
#include <cuda_runtime_api.h>
#endif

#include "tensors.hpp"
#include "tigon_torch_cuda_types.hpp"  // TIGON_TORCH_CUDA_TYPES(t): t(name) for each element type that it was built with

#define TIGON_TORCH_TABLE(name) extern "C" const tigon_torch::kernel_table* tigon_torch_cuda_##name();
TIGON_TORCH_CUDA_TYPES(TIGON_TORCH_TABLE)
#undef TIGON_TORCH_TABLE

namespace tigon_torch {
namespace {

/// Null for an element type that the library was built without.
const kernel_table* table_for(type of) {
  switch (of) {
#define TIGON_TORCH_TABLE(name) \
  case type::name: return tigon_torch_cuda_##name();
    TIGON_TORCH_CUDA_TYPES(TIGON_TORCH_TABLE)
#undef TIGON_TORCH_TABLE
    default: return nullptr;
  }
}

/// The names of the operators that there are: the declared ones, and those that register themselves.
std::string names_of_operators() {
  std::string all = registered();
  for (const declared_operators& some : any_table().declared)
    for (std::size_t i = 0; i < some.count; ++i)
      if (some.first[i].run != nullptr) all += (all.empty() ? "" : " ") + std::string(some.first[i].name);
  return all;
}

/// Python's, over torch.distributed, of bytes in the device's memory; set when it is imported.
int (*gather_bytes)(int64_t, const void*, std::size_t, void*) = nullptr;
void set_communicator(int64_t all_gather) {
  gather_bytes = reinterpret_cast<decltype(gather_bytes)>(static_cast<std::intptr_t>(all_gather));
}

#if !TIGON_TORCH_CUDA_MODEL
void expect_success(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("tigon: cuda: ") + what + ": " + cudaGetErrorString(error));
}
#endif

}  // namespace

bool is_here(const Tensor& t) { return TIGON_TORCH_CUDA_MODEL ? t.is_cpu() : t.is_cuda(); }
void prepare(const Tensor&) {}

call::call(const Tensor& on) : on_(on) {
#if !TIGON_TORCH_CUDA_MODEL
  const auto device = on.get_device_index();
  guard_.emplace(device);  // of PyTorch's; this library has a CUDA runtime of its own
  expect_success(cudaSetDevice(device), "the device of a tensor");
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &host_.stream));
  // The first call on a stream takes memory of the host for its reports, which is no part of a graph that is captured.
  auto mode = cudaStreamCaptureModeRelaxed;
  expect_success(cudaThreadExchangeStreamCaptureMode(&mode), "the mode of captures");
  capture_mode_ = mode;
#endif
  host_.scratch = [](void* of, std::size_t bytes) { return static_cast<call*>(of)->scratch(bytes); };
  host_.memory = this;
  host_.all_gather = gather_bytes;
}
call::~call() {
#if !TIGON_TORCH_CUDA_MODEL
  auto mode = static_cast<cudaStreamCaptureMode>(capture_mode_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
#endif
}

/// The allocator gives it away again in the order of the stream.
void* call::scratch(std::size_t bytes) {
  memory_.push_back(torch::stable::new_empty(on_, {static_cast<int64_t>(bytes)}, ScalarType::Byte));
  return memory_.back().data_ptr();
}

bool has_f16() { return table_for(type::f16) != nullptr; }

const kernel_table& table(std::string_view op, type of) {
  const kernel_table* const found = table_for(of);
  if (found == nullptr) fail(std::string(op), "the library for CUDA was built without the first tensor's element type");
  return *found;
}
const kernel_table& any_table() {
  for (const type of : {type::f32, type::bf16, type::f64, type::f16})
    if (const kernel_table* const found = table_for(of)) return *found;
  throw std::runtime_error("tigon: the library for CUDA was built without element types");
}

}  // namespace tigon_torch

STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def("operators_on_cuda() -> str");
  m.def("set_communicator_on_cuda(int all_gather) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(tigon, CompositeExplicitAutograd, m) {
  m.impl("operators_on_cuda", TORCH_BOX(&tigon_torch::names_of_operators));
  m.impl("set_communicator_on_cuda", TORCH_BOX(&tigon_torch::set_communicator));
}
