// The functions of tigon_c.h: tensors become views, exceptions become codes and sentences, the work is that of the
// kernels of the chosen instruction set.
#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tigon/core/error.hpp>
#include <tigon/core/executor.hpp>
#include <tigon/interop/dlpack.hpp>
#include <tigon/interop/strided.hpp>
#include <vector>

#include "c_api_kernels_multi_arch.hpp"

struct tigon_context {
  explicit tigon_context(std::size_t threads) : pool(threads), of_call(pool, scratch) {}

  tigon::thread_pool pool;
  tigon::workspace scratch;
  tigon::context of_call;
  std::vector<std::int64_t> ids;  // i32 labels, widened
  std::vector<float> ones;        // of the sums of rows that are a gradient of a bias
  std::vector<tigon::bfloat16> ones_bf16;
};

namespace {

using tigon::bfloat16;
using tigon::error_code;

// No destructor runs when a thread ends, so that the sentence outlives all others.
thread_local char last_error[1024] = "";

std::int32_t failed(tigon_status status, const char* sentence) noexcept {
  std::strncpy(last_error, sentence, sizeof last_error - 1);
  last_error[sizeof last_error - 1] = 0;
  return status;
}

static_assert(static_cast<int>(error_code::shape) + 1 == TIGON_ERROR_SHAPE &&
              static_cast<int>(error_code::dtype) + 1 == TIGON_ERROR_DTYPE &&
              static_cast<int>(error_code::stride) + 1 == TIGON_ERROR_STRIDE &&
              static_cast<int>(error_code::alias) + 1 == TIGON_ERROR_ALIAS &&
              static_cast<int>(error_code::argument) + 1 == TIGON_ERROR_ARGUMENT &&
              static_cast<int>(error_code::index) + 1 == TIGON_ERROR_INDEX &&
              static_cast<int>(error_code::state) + 1 == TIGON_ERROR_STATE &&
              static_cast<int>(error_code::workspace) + 1 == TIGON_ERROR_WORKSPACE);

struct no_instruction_set : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The border: what `call` throws becomes a status.
template <class Call>
std::int32_t guarded(Call call) noexcept {
  try {
    call();
    return TIGON_OK;
  } catch (const tigon::error& e) {
    // Of error_code::device, which no CPU reports, the list has no number of its own.
    if (e.code() == error_code::device) return failed(TIGON_ERROR_INTERNAL, e.what());
    return failed(static_cast<tigon_status>(static_cast<int>(e.code()) + 1), e.what());
  } catch (const std::bad_alloc&) {
    return failed(TIGON_ERROR_MEMORY, "tigon: memory has no more");
  } catch (const std::system_error& e) {
    return failed(TIGON_ERROR_SYSTEM, e.what());
  } catch (const no_instruction_set& e) {
    return failed(TIGON_ERROR_SYSTEM, e.what());
  } catch (const std::exception& e) {
    return failed(TIGON_ERROR_INTERNAL, e.what());
  } catch (...) {
    return failed(TIGON_ERROR_INTERNAL, "tigon: something that is no std::exception was thrown");
  }
}

[[noreturn]] void refuse(error_code code, const char* call, const char* name, const std::string& came,
                         const std::string& expected) {
  tigon::detail::fail_argument(code, call, name, came, expected);
}

const c_api_kernel_table& chosen() {
  try {
    return c_api_kernels();
  } catch (const std::runtime_error& e) {  // of the choice, which names what there is
    throw no_instruction_set(e.what());
  }
}

template <class T>
constexpr std::int32_t dtype_of = std::same_as<T, float>          ? TIGON_F32
                                  : std::same_as<T, bfloat16>     ? TIGON_BF16
                                  : std::same_as<T, std::int32_t> ? TIGON_I32
                                                                  : TIGON_I64;

std::string dtype_text(std::int32_t dtype) {
  switch (dtype) {
    case TIGON_F32: return "f32";
    case TIGON_BF16: return "bf16";
    case TIGON_I32: return "i32";
    case TIGON_I64: return "i64";
    default: return "number " + std::to_string(dtype);
  }
}

/// The tensors of one call.
class tensors {
 public:
  explicit tensors(const char* call) : call_(call) {}

  template <class T>
  tigon::matrix_view<T> matrix(const char* name, const tigon_tensor* t) const {
    return as_matrix(array<T>(name, t), tigon::interop::array_names{call_, name});
  }
  template <class T>
  tigon::heads_view<T> heads(const char* name, const tigon_tensor* t) const {
    return as_heads(array<T>(name, t), tigon::interop::heads_axes::heads_first, {call_, name});
  }
  template <class T>
  std::span<T> elements(const char* name, const tigon_tensor* t) const {
    return as_span(array<T>(name, t), tigon::interop::array_names{call_, name});
  }
  template <class T>
  tigon::matrix_view<T> optional_matrix(const char* name, const tigon_tensor* t) const {
    return t != nullptr ? matrix<T>(name, t) : tigon::matrix_view<T>();
  }
  template <class T>
  std::span<T> optional_elements(const char* name, const tigon_tensor* t) const {
    return t != nullptr ? elements<T>(name, t) : std::span<T>();
  }

  /// Token ids or labels as i64; those that are i32 are copied.
  std::span<const std::int64_t> ids(const char* name, const tigon_tensor* t, tigon_context& context) const {
    if (t != nullptr && t->dtype == TIGON_I64) return elements<const std::int64_t>(name, t);
    if (t != nullptr && t->dtype != TIGON_I32)
      refuse(error_code::dtype, call_, name, "of dtype " + dtype_text(t->dtype), "i32 or i64");
    const std::span<const std::int32_t> narrow = elements<const std::int32_t>(name, t);
    context.ids.assign(narrow.begin(), narrow.end());
    return context.ids;
  }

  /// run(kernels, T) for the type of this tensor, which all of the call have.
  template <class Run>
  void by_type(const char* name, const tigon_tensor* t, Run run) const {
    switch (expect(name, t).dtype) {
      case TIGON_F32: return run(chosen().f32, float());
      case TIGON_BF16: return run(chosen().bf16, bfloat16());
      default: refuse(error_code::dtype, call_, name, "of dtype " + dtype_text(t->dtype), "f32 or bf16");
    }
  }

 private:
  const tigon_tensor& expect(const char* name, const tigon_tensor* t) const {
    if (t == nullptr) refuse(error_code::shape, call_, name, "left out", "a tensor");
    if (t->rank < 0 || t->rank > TIGON_MAX_RANK)
      refuse(error_code::shape, call_, name, "of rank " + std::to_string(t->rank),
             "from 0 to " + std::to_string(TIGON_MAX_RANK));
    return *t;
  }

  template <class T>
  tigon::interop::strided_array<T> array(const char* name, const tigon_tensor* t) const {
    expect(name, t);
    if (t->dtype != dtype_of<std::remove_const_t<T>>)
      refuse(error_code::dtype, call_, name, "of dtype " + dtype_text(t->dtype),
             dtype_text(dtype_of<std::remove_const_t<T>>));
    const auto rank = static_cast<std::size_t>(t->rank);
    const std::span shape(t->shape, rank), strides(t->strides, rank);
    const bool forgotten =
        rank != 0 && shape.back() > 1 && std::ranges::count(shape, 0) == 0 && std::ranges::count(strides, 0) == t->rank;
    if (forgotten)
      refuse(error_code::stride, call_, name, "of strides that are all 0",
             "those of its axes, as tigon_contiguous() sets them");
    return {static_cast<T*>(t->data), rank, t->shape, t->strides};
  }

  const char* call_;
};

/// run(context, arguments, tensors) behind the border, with pointers that are there.
template <class Arguments, class Run>
std::int32_t door(const char* call, tigon_context* context, const Arguments* arguments, Run run) noexcept {
  return guarded([&] {
    if (context == nullptr) refuse(error_code::shape, call, "context", "a null pointer", "a context");
    if (arguments == nullptr) refuse(error_code::shape, call, "arguments", "a null pointer", "a struct of arguments");
    run(*context, *arguments, tensors(call));
  });
}

template <class T>
std::span<const T> ones(tigon_context& context, std::size_t count) {
  if constexpr (std::same_as<T, float>) {
    context.ones.assign(count, 1.0f);
    return context.ones;
  } else {
    context.ones_bf16.assign(count, bfloat16(1.0f));
    return context.ones_bf16;
  }
}

template <class T>
c_api::linear_tensors<T> linear_of(const tigon_fused_linear_cross_entropy& a, const tensors& t, tigon_context& c) {
  return {t.matrix<const T>("x", a.x),
          t.matrix<const T>("w", a.w),
          t.optional_elements<const T>("bias", a.bias),
          t.ids("target", a.target, c),
          t.optional_matrix<T>("dx", a.dx),
          t.optional_matrix<T>("dw", a.dw),
          t.optional_elements<T>("dbias", a.dbias)};
}

template <class T>
c_api::attention_tensors<T> attention_of(const tigon_attention& a, const tensors& t) {
  return {t.heads<const T>("q", a.q),
          t.heads<const T>("k", a.k),
          t.heads<const T>("v", a.v),
          t.optional_elements<const std::int32_t>("cumulative_lengths", a.cumulative_lengths),
          t.optional_elements<const std::int32_t>("key_begins", a.key_begins),
          t.optional_elements<const std::int32_t>("key_ends", a.key_ends)};
}

std::int32_t rope(const char* call, bool backward, tigon_context* context, const tigon_rope* arguments) {
  return door(call, context, arguments, [=](tigon_context& c, const tigon_rope& a, const tensors& t) {
    t.by_type("q", a.q, [&]<class T>(const c_api::kernels<T>& k, T) {
      const bool both = a.k != nullptr;
      k.rope(t.heads<const T>("q", a.q), both ? t.heads<const T>("k", a.k) : c_api::in_heads<T>(),
             t.matrix<const float>("cos", a.cos), t.matrix<const float>("sin", a.sin), t.heads<T>("q_out", a.q_out),
             both ? t.heads<T>("k_out", a.k_out) : c_api::out_heads<T>(), a, backward, c.of_call);
    });
  });
}

/// x [rows, in], w [out, in] and y or dy [rows, out] fit together.
void expect_linear(const char* call, const char* y_name, const tigon::detail::extent& x, const tigon::detail::extent& w,
                   const tigon::detail::extent& y, tigon::view_use of_y) {
  const tigon::expects expect(call);
  expect.matrix("w", w, w.rows, x.cols, tigon::view_use::read);
  expect.matrix(y_name, y, x.rows, w.rows, of_y);
}

}  // namespace

extern "C" {

std::int32_t tigon_abi_version(void) { return TIGON_ABI_VERSION; }
const char* tigon_version(void) { return TIGON_VERSION_STRING; }

const char* tigon_instruction_set(void) {
  const char* name = "";
  guarded([&] {
    chosen();
    name = c_api_kernels_instruction_set();
  });
  return name;
}

const char* tigon_last_error(void) { return last_error; }

std::int32_t tigon_context_create(tigon_context** context, std::int64_t threads) {
  return guarded([&] {
    if (context == nullptr)
      refuse(error_code::shape, "context_create", "context", "a null pointer", "where it is to go");
    *context = nullptr;
    if (threads < 0) refuse(error_code::argument, "context_create", "threads", std::to_string(threads), "at least 0");
    chosen();
    *context = new tigon_context(threads == 0 ? tigon::detail::processors() : static_cast<std::size_t>(threads));
  });
}
void tigon_context_destroy(tigon_context* context) { delete context; }
std::int64_t tigon_context_threads(const tigon_context* context) {
  return context == nullptr ? 0 : static_cast<std::int64_t>(context->pool.workers());
}
std::int64_t tigon_context_scratch_bytes(const tigon_context* context) {
  return context == nullptr ? 0 : static_cast<std::int64_t>(context->scratch.high_water());
}

std::int32_t tigon_tensor_from_dlpack(const void* dl_tensor, tigon_tensor* tensor) {
  return guarded([&] {
    constexpr const char* call = "tensor_from_dlpack";
    if (dl_tensor == nullptr) refuse(error_code::shape, call, "dl_tensor", "a null pointer", "a DLTensor");
    if (tensor == nullptr) refuse(error_code::shape, call, "tensor", "a null pointer", "where it is to go");
    namespace interop = tigon::interop;
    const auto& from = *static_cast<const interop::dl_tensor*>(dl_tensor);
    if (from.ndim > TIGON_MAX_RANK)
      refuse(error_code::shape, call, "dl_tensor", "of rank " + std::to_string(from.ndim),
             "at most " + std::to_string(TIGON_MAX_RANK));
    tigon_tensor to{};
    const auto fill = [&]<class T>(T, tigon_dtype dtype) {
      const auto a = tigon::interop_detail::array_in<T>(from, {call, "dl_tensor"});
      to.data = a.data;
      to.dtype = dtype;
      to.rank = from.ndim;
      const auto axes = tigon::interop_detail::axes_of(a, {call, "dl_tensor"});
      const bool any = axes.check() != 0;
      for (std::size_t k = 0; k < a.rank; ++k) to.shape[k] = a.shape[k];
      for (std::size_t k = 0; any && k < a.rank; ++k) to.strides[k] = axes.stride(k);
    };
    if (interop::dlpack_holds<bfloat16>(from))
      fill(bfloat16(), TIGON_BF16);
    else if (interop::dlpack_holds<std::int32_t>(from))
      fill(std::int32_t(), TIGON_I32);
    else if (interop::dlpack_holds<std::int64_t>(from))
      fill(std::int64_t(), TIGON_I64);
    else
      fill(float(), TIGON_F32);
    *tensor = to;
  });
}

std::int32_t tigon_convert(const tigon_tensor* from, const tigon_tensor* to) {
  return guarded([&] {
    const tensors t("convert");
    const auto copy = [](auto x, auto y) {
      tigon::expects("convert").size("to", y.size(), x.size());
      using U = typename decltype(y)::element_type;
      for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<U>(static_cast<float>(x[i]));
    };
    if (from != nullptr && from->dtype == TIGON_BF16)
      copy(t.elements<const bfloat16>("from", from), t.elements<float>("to", to));
    else if (to != nullptr && to->dtype == TIGON_BF16)
      copy(t.elements<const float>("from", from), t.elements<bfloat16>("to", to));
    else
      copy(t.elements<const float>("from", from), t.elements<float>("to", to));
  });
}

std::int32_t tigon_embedding_forward(tigon_context* context, const tigon_embedding* arguments) {
  return door("embedding_forward", context, arguments,
              [](tigon_context& c, const tigon_embedding& a, const tensors& t) {
                t.by_type("weight", a.weight, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.embedding_forward(t.matrix<const T>("weight", a.weight), t.ids("ids", a.ids, c),
                                      t.matrix<T>("y", a.y), c.of_call);
                });
              });
}
std::int32_t tigon_embedding_backward(tigon_context* context, const tigon_embedding* arguments) {
  return door("embedding_backward", context, arguments,
              [](tigon_context& c, const tigon_embedding& a, const tensors& t) {
                t.by_type("dy", a.dy, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.embedding_backward(t.matrix<const T>("dy", a.dy), t.ids("ids", a.ids, c),
                                       t.matrix<T>("dweight", a.dweight), a.accumulate != 0, c.of_call);
                });
              });
}

std::int32_t tigon_rms_norm_forward(tigon_context* context, const tigon_rms_norm* arguments) {
  return door("rms_norm_forward", context, arguments, [](tigon_context& c, const tigon_rms_norm& a, const tensors& t) {
    t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
      k.rms_norm_forward(t.matrix<const T>("x", a.x), t.elements<const T>("w", a.w), t.matrix<T>("y", a.y),
                         t.elements<float>("rstd", a.rstd), a, c.of_call);
    });
  });
}
std::int32_t tigon_rms_norm_backward(tigon_context* context, const tigon_rms_norm* arguments) {
  return door("rms_norm_backward", context, arguments, [](tigon_context& c, const tigon_rms_norm& a, const tensors& t) {
    t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
      k.rms_norm_backward(t.matrix<const T>("dy", a.dy), t.matrix<const T>("x", a.x), t.elements<const T>("w", a.w),
                          t.elements<const float>("rstd", a.rstd), t.matrix<T>("dx", a.dx),
                          t.optional_elements<T>("dw", a.dw), a, c.of_call);
    });
  });
}

std::int32_t tigon_fused_add_rms_norm_forward(tigon_context* context, const tigon_fused_add_rms_norm* arguments) {
  return door("fused_add_rms_norm_forward", context, arguments,
              [](tigon_context& c, const tigon_fused_add_rms_norm& a, const tensors& t) {
                t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.fused_add_rms_norm_forward(t.matrix<const T>("x", a.x), t.matrix<const T>("r", a.r),
                                               t.elements<const T>("w", a.w), t.matrix<T>("y", a.y),
                                               t.matrix<T>("s", a.s), t.elements<float>("rstd", a.rstd), a, c.of_call);
                });
              });
}
std::int32_t tigon_fused_add_rms_norm_backward(tigon_context* context, const tigon_fused_add_rms_norm* arguments) {
  return door("fused_add_rms_norm_backward", context, arguments,
              [](tigon_context& c, const tigon_fused_add_rms_norm& a, const tensors& t) {
                t.by_type("s", a.s, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.fused_add_rms_norm_backward(t.optional_matrix<const T>("dy", a.dy),
                                                t.optional_matrix<const T>("ds", a.ds), t.matrix<const T>("s", a.s),
                                                t.elements<const T>("w", a.w), t.elements<const float>("rstd", a.rstd),
                                                t.matrix<T>("dx", a.dx), t.optional_elements<T>("dw", a.dw), a,
                                                c.of_call);
                });
              });
}

std::int32_t tigon_rope_tables_fill(tigon_context* context, const tigon_rope_tables* arguments) {
  return door("rope_tables_fill", context, arguments,
              [](tigon_context& c, const tigon_rope_tables& a, const tensors& t) {
                chosen().rope_tables(t.matrix<float>("cos", a.cos), t.matrix<float>("sin", a.sin), a.theta,
                                     a.first_position, c.of_call);
              });
}
std::int32_t tigon_rope_forward(tigon_context* context, const tigon_rope* arguments) {
  return rope("rope_forward", false, context, arguments);
}
std::int32_t tigon_rope_backward(tigon_context* context, const tigon_rope* arguments) {
  return rope("rope_backward", true, context, arguments);
}

std::int32_t tigon_attention_forward(tigon_context* context, const tigon_attention* arguments) {
  return door("attention_forward", context, arguments,
              [](tigon_context& c, const tigon_attention& a, const tensors& t) {
                t.by_type("q", a.q, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.attention_forward(attention_of<T>(a, t), t.heads<T>("o", a.o), t.elements<float>("lse", a.lse), a,
                                      c.of_call);
                });
              });
}
std::int32_t tigon_attention_backward(tigon_context* context, const tigon_attention* arguments) {
  return door(
      "attention_backward", context, arguments, [](tigon_context& c, const tigon_attention& a, const tensors& t) {
        t.by_type("q", a.q, [&]<class T>(const c_api::kernels<T>& k, T) {
          k.attention_backward(
              {attention_of<T>(a, t), t.heads<const T>("o", a.o), t.elements<const float>("lse", a.lse),
               t.heads<const T>("d_o", a.d_o), t.heads<T>("dq", a.dq), t.heads<T>("dk", a.dk), t.heads<T>("dv", a.dv)},
              a, c.of_call);
        });
      });
}

std::int32_t tigon_swiglu_forward(tigon_context* context, const tigon_swiglu* arguments) {
  return door("swiglu_forward", context, arguments, [](tigon_context& c, const tigon_swiglu& a, const tensors& t) {
    t.by_type("gate", a.gate, [&]<class T>(const c_api::kernels<T>& k, T) {
      k.swiglu_forward(t.matrix<const T>("gate", a.gate), t.matrix<const T>("up", a.up), t.matrix<T>("y", a.y),
                       c.of_call);
    });
  });
}
std::int32_t tigon_swiglu_backward(tigon_context* context, const tigon_swiglu* arguments) {
  return door("swiglu_backward", context, arguments, [](tigon_context& c, const tigon_swiglu& a, const tensors& t) {
    t.by_type("gate", a.gate, [&]<class T>(const c_api::kernels<T>& k, T) {
      k.swiglu_backward(t.matrix<const T>("dy", a.dy), t.matrix<const T>("gate", a.gate), t.matrix<const T>("up", a.up),
                        t.matrix<T>("dgate", a.dgate), t.matrix<T>("dup", a.dup), c.of_call);
    });
  });
}

std::int32_t tigon_gemm_forward(tigon_context* context, const tigon_gemm* arguments) {
  return door("gemm_forward", context, arguments, [](tigon_context& c, const tigon_gemm& a, const tensors& t) {
    t.by_type("a", a.a, [&]<class T>(const c_api::kernels<T>& k, T) {
      k.gemm_forward(t.matrix<const T>("a", a.a), t.matrix<const T>("b", a.b), t.matrix<T>("c", a.c),
                     t.optional_elements<const T>("bias", a.bias), a, c.of_call);
    });
  });
}
std::int32_t tigon_gemm_backward(tigon_context* context, const tigon_gemm* arguments) {
  return door("gemm_backward", context, arguments, [](tigon_context& c, const tigon_gemm& a, const tensors& t) {
    t.by_type("a", a.a, [&]<class T>(const c_api::kernels<T>& k, T) {
      k.gemm_backward(t.matrix<const T>("dc", a.dc), t.matrix<const T>("a", a.a), t.matrix<const T>("b", a.b),
                      t.optional_matrix<T>("da", a.da), t.optional_matrix<T>("db", a.db), a, c.of_call);
    });
  });
}

std::int32_t tigon_linear_forward(tigon_context* context, const tigon_linear* arguments) {
  return door("linear_forward", context, arguments, [](tigon_context& c, const tigon_linear& a, const tensors& t) {
    t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
      const auto x = t.matrix<const T>("x", a.x), w = t.matrix<const T>("w", a.w);
      const auto y = t.matrix<T>("y", a.y);
      const auto bias = t.optional_elements<const T>("bias", a.bias);
      expect_linear("linear_forward", "y", x, w, y, tigon::view_use::written);
      tigon_gemm product{};
      product.transpose_b = 1;
      k.gemm_forward(x, w, y, bias, product, c.of_call);
    });
  });
}
std::int32_t tigon_linear_backward(tigon_context* context, const tigon_linear* arguments) {
  return door("linear_backward", context, arguments, [](tigon_context& c, const tigon_linear& a, const tensors& t) {
    t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
      const auto x = t.matrix<const T>("x", a.x), w = t.matrix<const T>("w", a.w), dy = t.matrix<const T>("dy", a.dy);
      const auto dx = t.optional_matrix<T>("dx", a.dx), dw = t.optional_matrix<T>("dw", a.dw);
      const auto dbias = t.optional_elements<T>("dbias", a.dbias);
      expect_linear("linear_backward", "dy", x, w, dy, tigon::view_use::read);
      tigon::expects("linear_backward").size("dbias", dbias.size(), a.dbias != nullptr ? w.rows : 0);
      tigon_gemm products{};
      products.transpose_b = 1;
      products.da = a.dx;
      products.db = a.dw;
      products.accumulate_da = a.accumulate_dx;
      products.accumulate_db = products.accumulate = a.accumulate;
      if (a.dx != nullptr || a.dw != nullptr) k.gemm_backward(dy, x, w, dx, dw, products, c.of_call);
      products.transpose_b = 0;
      if (a.dbias != nullptr)  // a row of ones times dy
        k.gemm_forward({ones<T>(c, dy.rows).data(), 1, dy.rows}, dy, {dbias.data(), 1, dbias.size()}, {}, products,
                       c.of_call);
    });
  });
}

std::int32_t tigon_cross_entropy_forward(tigon_context* context, const tigon_cross_entropy* arguments) {
  return door("cross_entropy_forward", context, arguments,
              [](tigon_context& c, const tigon_cross_entropy& a, const tensors& t) {
                t.by_type("logits", a.logits, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.cross_entropy_forward(t.matrix<const T>("logits", a.logits), t.ids("target", a.target, c),
                                          t.elements<float>("loss", a.loss), t.optional_matrix<T>("dlogits", a.dlogits),
                                          a.options, c.of_call);
                });
              });
}

std::int32_t tigon_fused_linear_cross_entropy_forward(tigon_context* context,
                                                      const tigon_fused_linear_cross_entropy* arguments) {
  return door("fused_linear_cross_entropy_forward", context, arguments,
              [](tigon_context& c, const tigon_fused_linear_cross_entropy& a, const tensors& t) {
                t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.fused_linear_cross_entropy_forward(linear_of<T>(a, t, c), t.elements<float>("loss", a.loss), a,
                                                       c.of_call);
                });
              });
}
std::int32_t tigon_fused_linear_cross_entropy_backward(tigon_context* context,
                                                       const tigon_fused_linear_cross_entropy* arguments) {
  return door("fused_linear_cross_entropy_backward", context, arguments,
              [](tigon_context& c, const tigon_fused_linear_cross_entropy& a, const tensors& t) {
                t.by_type("x", a.x, [&]<class T>(const c_api::kernels<T>& k, T) {
                  k.fused_linear_cross_entropy_backward(linear_of<T>(a, t, c),
                                                        t.elements<const float>("upstream", a.upstream), a, c.of_call);
                });
              });
}

std::int32_t tigon_adamw_step(tigon_context* context, const tigon_adamw* arguments, double* norm) {
  return door("adamw_step", context, arguments, [=](tigon_context& c, const tigon_adamw& a, const tensors& t) {
    if (a.count < 0 || (a.count > 0 && a.parameters == nullptr))
      refuse(error_code::shape, "adamw_step", "parameters", std::to_string(a.count) + " without a list",
             "a list of at least 0");
    double of_call = 0;
    const auto step = [&]<class T>(const c_api::kernels<T>& k, T) {
      std::vector<c_api::parameter<T>> list;
      for (std::int64_t i = 0; i < a.count; ++i) {
        const tigon_parameter& p = a.parameters[i];
        c_api::parameter<T> to{t.elements<float>("w", p.w),
                               t.elements<const T>("g", p.g),
                               t.elements<float>("m", p.m),
                               t.elements<float>("v", p.v),
                               {},
                               p.decay};
        if (p.rounded != nullptr && std::same_as<T, float>)
          refuse(error_code::dtype, "adamw_step", "rounded", "given beside a gradient in f32", "a gradient in bf16");
        to.rounded = t.optional_elements<bfloat16>("rounded", p.rounded);
        list.push_back(to);
      }
      of_call = k.adamw(list, a, c.of_call);
    };
    if (a.count == 0)
      step(chosen().f32, float());
    else
      t.by_type("g", a.parameters[0].g, step);
    if (norm != nullptr) *norm = of_call;
  });
}

}  // extern "C"
