// expect: tigon: tensors of DLPack are viewed as float, double, bfloat16, float16, int8, uint8, int32 or int64
#include <tigon/interop/dlpack.hpp>

#ifdef SHOULD_NOT_COMPILE
using scalar = bool;
#else
using scalar = std::uint8_t;
#endif
auto view(const tigon::interop::dl_tensor& t) { return tigon::interop::span_from_dlpack<scalar>(t); }
