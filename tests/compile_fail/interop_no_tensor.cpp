// expect: tigon: this is no DLTensor, DLManagedTensor or DLManagedTensorVersioned, nor has it their fields
#include <tigon/interop/dlpack.hpp>

struct someone {
  void* data;
};
#ifdef SHOULD_NOT_COMPILE
using tensor = someone;
#else
using tensor = tigon::interop::dl_tensor;
#endif
auto view(const tensor& t) { return tigon::interop::matrix_from_dlpack<const float>(t); }
