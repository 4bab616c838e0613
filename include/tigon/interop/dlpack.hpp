// Views of DLPack tensors, the exchange format of PyTorch, NumPy, JAX, TVM and others, and tensors of views. Nothing is
// copied, nobody's memory changes its owner.
//
// DLPack's own header is not needed. It may be included before this one, after it, or not at all: the functions here
// are templates over a struct with the fields of DLTensor, DLManagedTensor or DLManagedTensorVersioned, by name. For
// programs without that header, structs of the same fields in the same order are below (dl_tensor, ...): DLPack is a
// C interface between libraries that share no header, so a pointer to one is a pointer to the other.
//
//   void normalise(const DLTensor& x, const DLTensor& w, const DLTensor& y, std::span<float> rstd) {
//     using namespace tigon::interop;
//     tigon::rms_norm_forward(matrix_from_dlpack<const float>(x, "x"), span_from_dlpack<const float>(w, "w"),
//                             matrix_from_dlpack<float>(y, "y"), rstd);
//   }
//
// Ownership stays as DLPack has it: whoever holds a managed tensor calls its deleter once, when no view is used
// anymore. managed_dlpack() makes such a tensor of a view and of what owns its memory.
#ifndef TIGON_INTEROP_DLPACK_HPP
#define TIGON_INTEROP_DLPACK_HPP

#include <tigon/interop/strided.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace tigon::interop {

/// DLDevice, DLDataType, DLTensor, DLManagedTensor, DLPackVersion and DLManagedTensorVersioned, for programs that do
/// not include DLPack's header. The layout of version 1.
struct dl_device {
  std::int32_t device_type, device_id;
};
struct dl_data_type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct dl_tensor {
  void* data;
  dl_device device;
  std::int32_t ndim;
  dl_data_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct dl_managed_tensor {
  tigon::interop::dl_tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(dl_managed_tensor*);
};
struct dl_version {
  std::uint32_t major, minor;
};
struct dl_managed_tensor_versioned {
  dl_version version;
  void* manager_ctx;
  void (*deleter)(dl_managed_tensor_versioned*);
  std::uint64_t flags;
  tigon::interop::dl_tensor dl_tensor;
};

}  // namespace tigon::interop

namespace tigon::interop_detail {
inline namespace TIGON_ABI {

template <class D>
concept has_dl_fields = requires(const D& d) {
  d.data;
  d.device.device_type;
  d.ndim;
  d.dtype.code;
  d.dtype.bits;
  d.dtype.lanes;
  d.shape;
  d.strides;
  d.byte_offset;
};

// Numbers of DLPack's interface.
inline constexpr std::int32_t dl_cpu = 1;
inline constexpr std::uint32_t dl_major = 1;
inline constexpr std::uint64_t dl_read_only = 1;
enum dl_code : std::uint8_t { dl_int = 0, dl_uint = 1, dl_float = 2, dl_bfloat = 4 };

template <array_element T>
constexpr interop::dl_data_type dl_type_of() {
  constexpr std::uint8_t code = std::same_as<T, bfloat16>  ? dl_bfloat
                                : element<T>               ? dl_float
                                : std::same_as<T, uint8_t> ? dl_uint
                                                           : dl_int;
  return {code, static_cast<std::uint8_t>(8 * sizeof(T)), 1};
}

TIGON_NOINLINE inline std::string type_text(interop::dl_data_type t) {
  constexpr const char* names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  std::string text = t.code < std::size(names) ? names[t.code] : "type code " + std::to_string(t.code) + " of bits ";
  text += std::to_string(t.bits);
  return t.lanes == 1 ? text : text + " in " + std::to_string(t.lanes) + " lanes";
}

TIGON_NOINLINE inline std::string device_text(std::int64_t type) {
  const char* name = type == 2    ? " (CUDA)"
                     : type == 10 ? " (ROCm)"
                     : type == 8  ? " (Metal)"
                     : type == 14 ? " (oneAPI)"
                                  : "";
  return "on a device of type " + std::to_string(type) + name;
}

/// The tensor in any of DLPack's three structs.
template <class D>
const auto& tensor_in(const D& d) {
  if constexpr (requires { d.dl_tensor; })
    return d.dl_tensor;
  else
    return d;
}

template <class D>
consteval bool is_dlpack() {
  static_assert(has_dl_fields<std::remove_cvref_t<decltype(tensor_in(std::declval<const D&>()))>>,
                "tigon: this is no DLTensor, DLManagedTensor or DLManagedTensorVersioned, nor has it their fields");
  return true;
}

/// What every struct of DLPack says, checked once for all of them.
struct dl_facts {
  std::int64_t device_type, ndim;
  interop::dl_data_type type;
  std::uint64_t byte_offset;
  bool versioned, read_only;
  std::uint32_t major;
};

TIGON_NOINLINE inline void expect_facts(const dl_facts& is, interop::dl_data_type expected, bool writes,
                                        const array_names& names) {
  const auto refuse = [&](error_code code, const std::string& came, const std::string& wanted) {
    detail::fail_argument(code, names.function, names.array, came, wanted);
  };
  if (is.versioned && is.major != dl_major)
    refuse(error_code::argument, "of DLPack version " + std::to_string(is.major), "version 1");
  if (is.device_type != dl_cpu)
    refuse(error_code::argument, device_text(is.device_type), "memory of the CPU; move the tensor there");
  if (is.type.code != expected.code || is.type.bits != expected.bits || is.type.lanes != 1)
    refuse(error_code::dtype, "of type " + type_text(is.type), type_text(expected));
  if (is.ndim < 0) refuse(error_code::shape, "of rank " + std::to_string(is.ndim), "at least 0");
  if (writes && is.read_only)
    refuse(error_code::argument, "read-only", "memory that may be written, or a view of const elements");
}

/// Of a version whose structs are not known, the version alone is read.
template <class D>
dl_facts facts_of(const D& d) {
  dl_facts facts{};
  if constexpr (requires { d.version.major; }) {
    facts.versioned = true;
    facts.major = d.version.major;
    if (facts.major != dl_major) return facts;
    facts.read_only = (d.flags & dl_read_only) != 0;
  }
  const auto& t = tensor_in(d);
  facts.device_type = static_cast<std::int64_t>(t.device.device_type);
  facts.ndim = t.ndim;
  facts.type = {t.dtype.code, t.dtype.bits, t.dtype.lanes};
  facts.byte_offset = t.byte_offset;
  return facts;
}

/// A managed tensor, its shape and strides, and what keeps its memory.
template <class D, class Axes, class Owner>
struct managed_tensor {
  D tensor;
  Axes axes;
  Owner owner;
};

/// The tensor as an array of T.
template <class T, class D>
interop::strided_array<T> array_in(const D& d, const array_names& names) {
  static_assert(is_dlpack<D>());
  static_assert(array_element<std::remove_const_t<T>>,
                "tigon: tensors of DLPack are viewed as float, double, bfloat16, float16, int8, uint8, int32 or int64");
  const dl_facts facts = facts_of(d);
  expect_facts(facts, dl_type_of<std::remove_const_t<T>>(), !std::is_const_v<T>, names);
  const auto& t = tensor_in(d);
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  T* data =
      t.data == nullptr ? nullptr : reinterpret_cast<T*>(address + static_cast<std::uintptr_t>(facts.byte_offset));
  return {data, static_cast<std::size_t>(t.ndim), t.shape, t.strides};
}

}  // namespace TIGON_ABI
}  // namespace tigon::interop_detail

namespace tigon::interop {
inline namespace TIGON_ABI {

/// Whether the elements of a tensor are of type T. For a choice between types:
///   if (dlpack_holds<float>(x)) train<float>(...); else if (dlpack_holds<tigon::bfloat16>(x)) ...
template <class T, class D>
bool dlpack_holds(const D& tensor) {
  static_assert(interop_detail::is_dlpack<D>());
  const dl_data_type t = interop_detail::facts_of(tensor).type, wanted = interop_detail::dl_type_of<T>();
  return t.code == wanted.code && t.bits == wanted.bits && t.lanes == 1;
}

/// Views of a tensor of DLPack: its elements without gaps (weights, labels, a loss), a matrix, or heads of attention.
/// Which axes become what, and which strides a view can hold: as_span, as_matrix and as_heads of interop/strided.hpp.
///
/// Types      T: float, double, bfloat16, float16, std::int8_t, std::uint8_t, std::int32_t or std::int64_t; const T for
///            what is only read. The tensor has this type and no other, in one lane; nothing is converted. A tensor
///            whose `strides` is a null pointer has no gaps. byte_offset is added to `data`.
/// Throws     tigon::error, with `name` for the tensor: what strided.hpp throws; dtype (another type, or lanes);
///            argument (memory of another device than the CPU, a read-only tensor for a T that is not const, a version
///            of DLPack other than 1).
template <class T, class D>
std::span<T> span_from_dlpack(const D& tensor, std::string_view name = "tensor") {
  const array_names names{"span_from_dlpack", name};
  return as_span(interop_detail::array_in<T>(tensor, names), names);
}
template <class T, class D>
matrix_view<T> matrix_from_dlpack(const D& tensor, std::string_view name = "tensor") {
  const array_names names{"matrix_from_dlpack", name};
  return as_matrix(interop_detail::array_in<T>(tensor, names), names);
}
template <class T, class D>
heads_view<T> heads_from_dlpack(const D& tensor, heads_axes order = heads_axes::heads_first,
                                std::string_view name = "tensor") {
  const array_names names{"heads_from_dlpack", name};
  return as_heads(interop_detail::array_in<T>(tensor, names), order, names);
}

/// The way back: shape and strides of a view, to which tensor() points. Keep it as long as that tensor is used.
///
///   auto y_axes = tigon::interop::to_dlpack(y);
///   DLTensor t = y_axes.tensor<DLTensor>();
///
/// A tensor of const elements does not say so, because DLTensor cannot: who gets it must not write.
template <class T, std::size_t Rank>
struct dlpack_axes {
  T* data = nullptr;
  std::array<std::int64_t, Rank> shape{}, strides{};

  /// D: DLTensor or a struct with its fields.
  template <class D = dl_tensor>
  D tensor() {
    static_assert(interop_detail::has_dl_fields<D>, "tigon: a tensor() is a DLTensor, or has its fields");
    constexpr dl_data_type type = interop_detail::dl_type_of<std::remove_const_t<T>>();
    D t{};
    t.data = const_cast<std::remove_const_t<T>*>(data);
    t.device.device_type = static_cast<decltype(t.device.device_type)>(interop_detail::dl_cpu);
    t.device.device_id = 0;
    t.ndim = static_cast<std::int32_t>(Rank);
    t.dtype.code = type.code;
    t.dtype.bits = type.bits;
    t.dtype.lanes = type.lanes;
    t.shape = shape.data();
    t.strides = strides.data();
    t.byte_offset = 0;
    return t;
  }
};

template <class T>
dlpack_axes<T, 1> to_dlpack(std::span<T> s) {
  return {s.data(), {static_cast<std::int64_t>(s.size())}, {1}};
}
template <class T>
dlpack_axes<T, 1> to_dlpack(vector_view<T> v) {
  return {v.data, {static_cast<std::int64_t>(v.size)}, {1}};
}
template <class T>
dlpack_axes<T, 2> to_dlpack(matrix_view<T> m) {
  return {m.data,
          {static_cast<std::int64_t>(m.rows), static_cast<std::int64_t>(m.cols)},
          {static_cast<std::int64_t>(m.row_stride), 1}};
}
/// [batch, heads, seq_len, head_dim], whatever lies behind what in memory: the strides say it.
template <class T>
dlpack_axes<T, 4> to_dlpack(heads_view<T> h) {
  const auto i = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  return {h.data,
          {i(h.batch), i(h.heads), i(h.seq_len), i(h.head_dim)},
          {i(h.batch_stride), i(h.head_stride), i(h.seq_stride), 1}};
}

/// A managed tensor over a view, for a library that takes the memory over. `owner` is what keeps that memory, a
/// std::vector that is moved here or a std::shared_ptr; it is destroyed when the tensor's deleter is called.
///
///   std::vector<float> y(rows * cols);
///   const tigon::matrix_view<float> view(y.data(), rows, cols);
///   DLManagedTensorVersioned* t = managed_dlpack<DLManagedTensorVersioned>(view, std::move(y));
///
/// D          DLManagedTensor, DLManagedTensorVersioned, or a struct with its fields. The version is 1.0. A view of
///            const elements is read-only, which a DLManagedTensor cannot say: that does not compile.
template <class D = dl_managed_tensor_versioned, class View, class Owner>
D* managed_dlpack(View view, Owner owner) {
  using axes = decltype(to_dlpack(view));
  using held = interop_detail::managed_tensor<D, axes, Owner>;
  constexpr bool read_only = std::is_const_v<std::remove_pointer_t<decltype(axes::data)>>;
  static_assert(
      !read_only || requires(D& d) { d.flags; },
      "tigon: a DLManagedTensor cannot be read-only; take DLManagedTensorVersioned, or a view that is not const");
  held* const h = new held{{}, to_dlpack(view), static_cast<Owner&&>(owner)};
  h->tensor.dl_tensor = h->axes.template tensor<std::remove_cvref_t<decltype(h->tensor.dl_tensor)>>();
  h->tensor.manager_ctx = h;
  h->tensor.deleter = [](D* d) { delete static_cast<held*>(d->manager_ctx); };
  if constexpr (requires(D& d) { d.flags; }) {
    h->tensor.version.major = 1;
    h->tensor.flags = read_only ? interop_detail::dl_read_only : 0;
  }
  return &h->tensor;
}

}  // namespace TIGON_ABI
}  // namespace tigon::interop

#endif  // TIGON_INTEROP_DLPACK_HPP
