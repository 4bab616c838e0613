// PyTorch's tensors, by its stable ABI, as the arguments of kernels.hpp.
#ifndef TIGON_TORCH_TENSORS_HPP
#define TIGON_TORCH_TENSORS_HPP

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels.hpp"

#if !defined(TIGON_TORCH_CUDA)
#define TIGON_TORCH_CUDA 0
#endif
#if TIGON_TORCH_CUDA
#include <torch/csrc/stable/accelerator.h>
#endif

// The key of PyTorch's dispatcher under which the operators of this library are registered.
#if !defined(TIGON_TORCH_KEY)
#define TIGON_TORCH_KEY CPU
#endif

namespace tigon_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using maybe = std::optional<Tensor>;

[[noreturn]] inline void fail(const std::string& op, const std::string& sentence) {
  throw std::runtime_error("tigon: " + op + ": " + sentence);
}

inline std::string name_of(ScalarType t) {
  switch (t) {
    case ScalarType::Float: return "f32";
    case ScalarType::Double: return "f64";
    case ScalarType::BFloat16: return "bf16";
    case ScalarType::Half: return "f16";
    case ScalarType::Int: return "i32";
    case ScalarType::Long: return "i64";
    case ScalarType::Bool: return "bool";
    case ScalarType::Byte: return "u8";
    case ScalarType::Char: return "i8";
    case ScalarType::Short: return "i16";
    default: return "another element type";
  }
}

inline type type_of(const char* op, const char* name, const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return type::f32;
    case ScalarType::Double: return type::f64;
    case ScalarType::BFloat16: return type::bf16;
    case ScalarType::Half: return type::f16;
    case ScalarType::Int: return type::i32;
    case ScalarType::Long: return type::i64;
    default: break;
  }
  fail(op, std::string(name) + " is of " + name_of(t.scalar_type()) + "; expected f32, bf16, f16 or f64");
}

inline std::size_t size(int64_t n) { return static_cast<std::size_t>(n); }

/// The type of the sums over tensors like this one.
inline ScalarType wide(const Tensor& t) {
  return t.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline std::vector<int64_t> sizes(const Tensor& t) {
  const auto s = t.sizes();
  return std::vector<int64_t>(s.begin(), s.end());
}
inline std::string text(const std::vector<int64_t>& s) {
  std::string all;
  for (const int64_t n : s) all += (all.empty() ? "" : " x ") + std::to_string(n);
  return all.empty() ? "a number" : all;
}

/// Whether a tensor is where this library's kernels run, and the name of that place.
bool is_here(const Tensor& t);
#if TIGON_TORCH_CUDA
inline constexpr const char* place = "CUDA";
#else
inline constexpr const char* place = "the CPU";
#endif
inline void expect_here(const char* op, const char* name, const Tensor& t) {
  if (!is_here(t))
    fail(op, std::string(name) + " is on " +
                 (t.is_cpu()    ? "the CPU"
                  : t.is_cuda() ? "CUDA"
                                : "another device") +
                 "; expected " + place + ", as another tensor is");
}
/// What memory needs that was made here.
void prepare(const Tensor& made);

/// As many elements as the product of the sizes, contiguous.
Tensor make(const Tensor& like, std::vector<int64_t> s, std::optional<ScalarType> of = std::nullopt);
/// What an operator returns where there is nothing.
inline Tensor nothing(const Tensor& like) { return make(like, {0}); }

inline void expect_like(const char* op, const char* name, const Tensor& t, const char* other, const Tensor& like) {
  if (t.scalar_type() != like.scalar_type())
    fail(op, std::string(name) + " is of " + name_of(t.scalar_type()) + "; expected " + name_of(like.scalar_type()) +
                 ", as " + other);
  if (sizes(t) != sizes(like))
    fail(op, std::string(name) + " is " + text(sizes(t)) + "; expected " + text(sizes(like)) + ", as " + other);
}
/// The sizes of all dimensions but the last.
inline std::vector<int64_t> leading(const Tensor& t) {
  std::vector<int64_t> s = sizes(t);
  if (!s.empty()) s.pop_back();
  return s;
}
inline void expect_dims(const char* op, const char* name, const Tensor& t, int64_t dims) {
  if (t.dim() != dims)
    fail(op, std::string(name) + " has " + std::to_string(t.dim()) + " dimensions; expected " + std::to_string(dims));
}

/// Refuses integers.
type real_type_of(const char* op, const char* name, const Tensor& t);
/// All but the last dimension are rows. A tensor whose rows do not lie at one distance from one another is copied, into
/// `t` itself.
matrix rows_of(const char* op, const char* name, Tensor& t);
/// Of a tensor that was made here.
matrix rows_of(const Tensor& made);
/// The same of integers of this type.
integers integers_of(const char* op, const char* name, Tensor& t, ScalarType of);
integers integers_of(const Tensor& made);
/// The type that kernels take the parameters beside x in: on CUDA that of x, where all that are there have it, and
/// otherwise that of the sums.
ScalarType type_of_parameters(const Tensor& x, const maybe& w, const maybe& b = std::nullopt);
/// A vector in this type; what is not is converted. Without a tensor, without memory.
vector vector_in(ScalarType to, const char* op, const char* name, maybe& t, const Tensor& like);
inline vector wide_vector(const char* op, const char* name, maybe& t, const Tensor& like) {
  return vector_in(wide(like), op, name, t, like);
}
vector vector_of(const Tensor& made);
/// [batch, heads, seq_len, head_dim]. Copied where its elements do not lie one by one.
heads heads_of(const char* op, const char* name, Tensor& t);
heads heads_of(const Tensor& made);
/// Like torch.empty_like where that leaves the last dimension contiguous.
Tensor heads_like(const Tensor& t);
/// [batch, heads, seq_len, head_dim] in the memory order [batch, seq_len, heads, head_dim].
Tensor token_major(const Tensor& like, int64_t batch, int64_t heads, int64_t seq_len, int64_t head_dim);

/// What one call runs on: PyTorch's threads and memory, or the stream of a tensor's device and its memory. Scratch
/// memory of a CPU is kept for the next call of this thread, up to 32 MiB: of fresh memory every page costs its first
/// touch, and what was used a moment ago is still in the cache.
class call {
 public:
  explicit call(const Tensor& on);
  call(const call&) = delete;
  ~call();
  operator const host&() const { return host_; }

 private:
  void* scratch(std::size_t bytes);

  host host_;
#if TIGON_TORCH_CUDA
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  int capture_mode_ = 0;  // of the thread before the call
  Tensor on_;
#else
  bool has_kept_ = false;
#endif
  std::vector<Tensor> memory_;
};

/// Whether there are kernels for f16.
bool has_f16();
/// The kernels of an operator for an element type: of the instruction set that was wished for it, or of that which was
/// chosen at the first call.
const kernel_table& table(std::string_view op, type of);
/// Those for some element type that there are kernels for.
const kernel_table& any_table();
/// The same for operators that are not compiled for f16.
inline const kernel_table& wide_table(const char* op, type of) {
  if (of == type::f16) fail(op, "the first tensor is of f16; expected f32, bf16 or f64");
  return table(op, of);
}

#if TIGON_TORCH_CUDA
/// The names of the operators that TIGON_TORCH_IMPL has registered, with blanks between them.
inline std::string& registered() {
  static std::string names;
  return names;
}
#endif

}  // namespace tigon_torch

// Registers a function under its name, where there is a kernel for it in a group of the table. A CPU has all of them.
#if TIGON_TORCH_CUDA
#define TIGON_TORCH_IMPL(library, group, name)                                                      \
  if (tigon_torch::any_table().group != nullptr && tigon_torch::any_table().group->name != nullptr) \
  library.impl(#name, TORCH_BOX(&tigon_torch::name)),                                               \
      tigon_torch::registered() += (tigon_torch::registered().empty() ? "" : " ") + std::string(#name)
#else
#define TIGON_TORCH_IMPL(library, group, name) library.impl(#name, TORCH_BOX(&tigon_torch::name))
#endif

#endif  // TIGON_TORCH_TENSORS_HPP
