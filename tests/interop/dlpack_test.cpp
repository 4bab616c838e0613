// Views of tensors that another library describes by DLPack, and tensors of views.
#include <tigon/interop/dlpack.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/throws.hpp"

// DLPack's own header after this library's, or its structs by their own names where it is not installed.
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#else
enum DLDeviceType : std::int32_t { kDLCPU = 1, kDLCUDA = 2 };
enum DLDataTypeCode { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLBfloat = 4U, kDLComplex = 5U, kDLBool = 6U };
struct DLDevice {
  DLDeviceType device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
#endif

namespace {

using namespace tigon;
using namespace tigon::interop;

constexpr DLDataType f32{kDLFloat, 32, 1}, bf16{kDLBfloat, 16, 1}, f16{kDLFloat, 16, 1}, i64{kDLInt, 64, 1};

/// A tensor over memory of its own; strides may be left out.
struct tensor {
  std::vector<std::int64_t> shape, strides;
  DLTensor dl_tensor{};

  tensor(void* data, DLDataType type, std::vector<std::int64_t> extents, std::vector<std::int64_t> steps = {})
      : shape(std::move(extents)), strides(std::move(steps)) {
    dl_tensor.data = data;
    dl_tensor.device = {kDLCPU, 0};
    dl_tensor.ndim = static_cast<std::int32_t>(shape.size());
    dl_tensor.dtype = type;
    dl_tensor.shape = shape.data();
    dl_tensor.strides = strides.empty() ? nullptr : strides.data();
  }
  tensor(const tensor&) = delete;
};

struct dlpack : testing::Test {
  alignas(64) float memory[256] = {};
  void* data() { return memory; }
  dlpack() {
    for (std::size_t i = 0; i < 256; ++i) memory[i] = static_cast<float>(i);
  }
};

template <class T>
void expect_matrix(matrix_view<T> m, const void* data, std::size_t rows, std::size_t cols, std::size_t row_stride) {
  EXPECT_EQ(m.data, data);
  EXPECT_EQ(m.rows, rows);
  EXPECT_EQ(m.cols, cols);
  EXPECT_EQ(m.row_stride, row_stride);
}

/// Every element of the view is the element of the same indices of the tensor; batch, heads and tokens are the axes b,
/// h and s of it.
void expect_heads(heads_view<const float> v, const tensor& t, std::size_t b, std::size_t h, std::size_t s) {
  ASSERT_EQ(v.batch, static_cast<std::size_t>(t.shape[b]));
  ASSERT_EQ(v.heads, static_cast<std::size_t>(t.shape[h]));
  ASSERT_EQ(v.seq_len, static_cast<std::size_t>(t.shape[s]));
  ASSERT_EQ(v.head_dim, static_cast<std::size_t>(t.shape[3]));
  const auto* base = static_cast<const float*>(t.dl_tensor.data);
  for (std::size_t i = 0; i < v.batch; ++i)
    for (std::size_t j = 0; j < v.heads; ++j)
      for (std::size_t k = 0; k < v.seq_len; ++k)
        EXPECT_EQ(v.at(i, j, k), base + static_cast<std::int64_t>(i) * t.strides[b] +
                                     static_cast<std::int64_t>(j) * t.strides[h] +
                                     static_cast<std::int64_t>(k) * t.strides[s]);
}

TEST_F(dlpack, elements_without_gaps_are_a_span) {
  EXPECT_EQ(span_from_dlpack<float>(tensor(data(), f32, {5})).size(), 5u);
  EXPECT_EQ(span_from_dlpack<float>(tensor(data(), f32, {5}, {1})).data(), memory);
  EXPECT_EQ(span_from_dlpack<const float>(tensor(data(), f32, {2, 3, 4})).size(), 24u);
  EXPECT_EQ(span_from_dlpack<float>(tensor(data(), f32, {2, 3}, {3, 1})).size(), 6u);
  EXPECT_EQ(span_from_dlpack<float>(tensor(data(), f32, {})).size(), 1u) << "a number, such as a loss";
  EXPECT_EQ(span_from_dlpack<float>(tensor(data(), f32, {1, 3, 1}, {77, 1, -5})).size(), 3u)
      << "strides of axes of one element are not read";
  static_assert(std::is_same_v<decltype(span_from_dlpack<const float>(DLTensor{})), std::span<const float>>);
}

TEST_F(dlpack, two_axes_are_a_matrix) {
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {3, 4})), memory, 3, 4, 4);
  expect_matrix(matrix_from_dlpack<const float>(tensor(data(), f32, {3, 4}, {9, 1})), memory, 3, 4, 9);
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {1, 4}, {-3, 1})), memory, 1, 4, 4);
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {3, 1}, {6, 0})), memory, 3, 1, 6);
}

TEST_F(dlpack, leading_axes_are_rows_of_one_matrix) {
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {2, 3, 4})), memory, 6, 4, 4);
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {2, 3, 4}, {24, 8, 1})), memory, 6, 4, 8);
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {2, 1, 3, 4}, {24, 5, 8, 1})), memory, 6, 4, 8);
  expect_matrix(matrix_from_dlpack<float>(tensor(data(), f32, {5, 1, 4}, {10, 1, 1})), memory, 5, 4, 10);
}

TEST_F(dlpack, four_axes_are_heads_by_their_strides) {
  const tensor contiguous(data(), f32, {2, 3, 4, 5}, {60, 20, 5, 1}),
      transposed(data(), f32, {2, 3, 4, 5}, {60, 5, 15, 1}), gaps(data(), f32, {2, 3, 4, 5}, {100, 6, 24, 1});
  expect_heads(heads_from_dlpack<float>(contiguous), contiguous, 0, 1, 2);
  expect_heads(heads_from_dlpack<float>(transposed), transposed, 0, 1, 2);
  expect_heads(heads_from_dlpack<const float>(gaps), gaps, 0, 1, 2);
  expect_heads(heads_from_dlpack<float>(contiguous, heads_axes::tokens_first), contiguous, 0, 2, 1);
  const heads_view<float> without_strides = heads_from_dlpack<float>(tensor(data(), f32, {2, 3, 4, 5}));
  expect_heads(without_strides, contiguous, 0, 1, 2);
  const heads_view<float> one = heads_from_dlpack<float>(tensor(data(), f32, {3, 4, 5}));
  EXPECT_EQ(one.batch, 1u);
  EXPECT_EQ(one.at(0, 2, 3), memory + 2 * 20 + 3 * 5);
  const heads_view<float> tokens = heads_from_dlpack<float>(tensor(data(), f32, {4, 3, 5}), heads_axes::tokens_first);
  EXPECT_EQ(tokens.heads, 3u);
  EXPECT_EQ(tokens.at(0, 2, 3), memory + 3 * 15 + 2 * 5);
}

TEST_F(dlpack, expanded_tensors_are_read_by_strides_of_0) {
  const auto matrix = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    return matrix_from_dlpack<const float>(tensor(data(), f32, std::move(shape), std::move(strides)));
  };
  expect_matrix(matrix({3, 4}, {0, 1}), memory, 3, 4, 0);
  expect_matrix(matrix({2, 3, 4}, {0, 0, 1}), memory, 6, 4, 0);
  expect_matrix(matrix({2, 1, 4}, {0, 9, 1}), memory, 2, 4, 0);
  expect_matrix(matrix({3, 1}, {0, 0}), memory, 3, 1, 0);
  EXPECT_TIGON_ERROR(matrix({2, 3, 4}, {0, 4, 1}), stride, "of stride 0 along axis 0; expected 12, so that all rows");
  EXPECT_TIGON_ERROR(matrix({2, 3, 4}, {12, 0, 1}), stride, "of stride 12 along axis 0; expected 0, so that all rows");
  EXPECT_TIGON_ERROR(matrix({3, 4}, {0, 0}), stride, "of stride 0 along axis 1; expected 1");
  EXPECT_TIGON_ERROR(matrix({3, 4}, {2, 1}), stride, "of stride 2 along axis 0; expected at least its 4 columns");
  EXPECT_TIGON_ERROR(span_from_dlpack<const float>(tensor(data(), f32, {4}, {0})), stride, "of stride 0 along axis 0");
  const tensor heads(data(), f32, {2, 3, 4, 5}, {0, 0, 5, 1});
  expect_heads(heads_from_dlpack<const float>(heads), heads, 0, 1, 2);
}

TEST_F(dlpack, tensors_without_elements_are_empty_views) {
  expect_matrix(matrix_from_dlpack<float>(tensor(nullptr, f32, {0, 4})), nullptr, 0, 4, 4);
  expect_matrix(matrix_from_dlpack<float>(tensor(nullptr, f32, {2, 3, 0})), nullptr, 6, 0, 0);
  expect_matrix(matrix_from_dlpack<float>(tensor(nullptr, f32, {2, 0, 5}, {-1, 0, 7})), nullptr, 0, 5, 5);
  EXPECT_TRUE(span_from_dlpack<float>(tensor(nullptr, f32, {0})).empty());
  EXPECT_TRUE(span_from_dlpack<float>(tensor(nullptr, f32, {0, std::int64_t{1} << 62, 8})).empty());
  const heads_view<float> h = heads_from_dlpack<float>(tensor(nullptr, f32, {2, 3, 0, 5}));
  EXPECT_EQ(h.batch * h.heads, 6u);
  EXPECT_EQ(h.seq_len, 0u);
}

TEST_F(dlpack, byte_offset_is_added) {
  tensor t(data(), f32, {2, 3});
  t.dl_tensor.byte_offset = 5 * sizeof(float);
  expect_matrix(matrix_from_dlpack<float>(t), memory + 5, 2, 3, 3);
}

TEST_F(dlpack, types_are_those_of_the_tensor) {
  EXPECT_EQ(span_from_dlpack<bfloat16>(tensor(data(), bf16, {8})).size(), 8u);
  EXPECT_EQ(span_from_dlpack<float16>(tensor(data(), f16, {8})).size(), 8u);
  EXPECT_EQ(span_from_dlpack<double>(tensor(data(), {kDLFloat, 64, 1}, {8})).size(), 8u);
  EXPECT_EQ(span_from_dlpack<std::int64_t>(tensor(data(), i64, {8})).size(), 8u);
  EXPECT_EQ(span_from_dlpack<const std::int32_t>(tensor(data(), {kDLInt, 32, 1}, {8})).size(), 8u);
  EXPECT_EQ(span_from_dlpack<std::int8_t>(tensor(data(), {kDLInt, 8, 1}, {8})).size(), 8u);
  EXPECT_EQ(span_from_dlpack<std::uint8_t>(tensor(data(), {kDLUInt, 8, 1}, {8})).size(), 8u);
  const tensor t(data(), bf16, {8});
  EXPECT_TRUE(dlpack_holds<bfloat16>(t.dl_tensor));
  EXPECT_FALSE(dlpack_holds<float16>(t.dl_tensor));
  EXPECT_FALSE(dlpack_holds<float>(t.dl_tensor));
}

TEST_F(dlpack, managed_tensors_of_either_kind) {
  const tensor t(data(), f32, {3, 4});
  DLManagedTensor managed{};
  managed.dl_tensor = t.dl_tensor;
  expect_matrix(matrix_from_dlpack<float>(managed), memory, 3, 4, 4);
  DLManagedTensorVersioned versioned{};
  versioned.version = {1, 1};
  versioned.dl_tensor = t.dl_tensor;
  expect_matrix(matrix_from_dlpack<float>(versioned), memory, 3, 4, 4);
  versioned.flags = 1;  // read-only
  expect_matrix(matrix_from_dlpack<const float>(versioned), memory, 3, 4, 4);
  EXPECT_TIGON_ERROR(
      matrix_from_dlpack<float>(versioned, "w"), argument,
      "tigon: matrix_from_dlpack: w is read-only; expected memory that may be written, or a view of const "
      "elements");
  versioned.flags = 2;  // a copy: not asked about
  expect_matrix(matrix_from_dlpack<float>(versioned), memory, 3, 4, 4);
  versioned.version = {2, 0};
  EXPECT_TIGON_ERROR(matrix_from_dlpack<const float>(versioned), argument,
                     "tensor is of DLPack version 2; expected version 1");
  EXPECT_FALSE(dlpack_holds<float>(versioned)) << "fields of another version are not read";
}

/// The structs for programs without DLPack's header lie in memory as those of the header do.
TEST_F(dlpack, own_structs_are_those_of_the_header) {
  static_assert(sizeof(dl_tensor) == sizeof(DLTensor) && sizeof(dl_managed_tensor) == sizeof(DLManagedTensor) &&
                sizeof(dl_managed_tensor_versioned) == sizeof(DLManagedTensorVersioned));
#define EXPECT_SAME_OFFSET(own, theirs, field) static_assert(offsetof(own, field) == offsetof(theirs, field))
  EXPECT_SAME_OFFSET(dl_tensor, DLTensor, device);
  EXPECT_SAME_OFFSET(dl_tensor, DLTensor, ndim);
  EXPECT_SAME_OFFSET(dl_tensor, DLTensor, dtype);
  EXPECT_SAME_OFFSET(dl_tensor, DLTensor, shape);
  EXPECT_SAME_OFFSET(dl_tensor, DLTensor, strides);
  EXPECT_SAME_OFFSET(dl_tensor, DLTensor, byte_offset);
  EXPECT_SAME_OFFSET(dl_managed_tensor, DLManagedTensor, deleter);
  EXPECT_SAME_OFFSET(dl_managed_tensor_versioned, DLManagedTensorVersioned, deleter);
  EXPECT_SAME_OFFSET(dl_managed_tensor_versioned, DLManagedTensorVersioned, flags);
  EXPECT_SAME_OFFSET(dl_managed_tensor_versioned, DLManagedTensorVersioned, dl_tensor);
  EXPECT_SAME_OFFSET(dl_data_type, DLDataType, lanes);
  std::int64_t shape[] = {3, 4};
  const dl_managed_tensor_versioned own{
      {1, 0}, nullptr, nullptr, 0, {data(), {1, 0}, 2, {2, 32, 1}, shape, nullptr, 4}};
  expect_matrix(matrix_from_dlpack<float>(own), memory + 1, 3, 4, 4);
}

TEST_F(dlpack, refuses_what_is_not_on_the_cpu) {
  tensor t(data(), f32, {3, 4});
  t.dl_tensor.device = {static_cast<DLDeviceType>(2), 1};
  EXPECT_TIGON_ERROR(
      matrix_from_dlpack<float>(t, "x"), argument,
      "tigon: matrix_from_dlpack: x is on a device of type 2 (CUDA); expected memory of the CPU; move the "
      "tensor there");
  for (const auto& [type, name] : {std::pair(8, "8 (Metal)"), {10, "10 (ROCm)"}, {14, "14 (oneAPI)"}}) {
    t.dl_tensor.device = {static_cast<DLDeviceType>(type), 0};
    EXPECT_TIGON_ERROR(span_from_dlpack<float>(t), argument, std::string("is on a device of type ") + name);
  }
  t.dl_tensor.device = {static_cast<DLDeviceType>(99), 0};
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(t), argument, "tensor is on a device of type 99; expected");
}

TEST_F(dlpack, refuses_other_types_and_lanes) {
  const auto refused = [&](DLDataType type, const char* sentence) {
    EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(data(), type, {4})), dtype, sentence);
  };
  refused(bf16, "span_from_dlpack: tensor is of type bfloat16; expected float32");
  refused({kDLFloat, 64, 1}, "of type float64; expected float32");
  refused({kDLInt, 32, 1}, "of type int32; expected float32");
  refused({kDLComplex, 64, 1}, "of type complex64; expected float32");
  refused({kDLBool, 8, 1}, "of type bool8; expected float32");
  refused({kDLFloat, 32, 4}, "of type float32 in 4 lanes; expected float32");
  refused({kDLFloat, 32, 0}, "of type float32 in 0 lanes; expected float32");
  refused({10, 8, 1}, "of type type code 10 of bits 8; expected float32");
  EXPECT_FALSE(dlpack_holds<float>(tensor(data(), {kDLFloat, 64, 1}, {4}).dl_tensor));
  EXPECT_FALSE(dlpack_holds<float>(tensor(data(), {kDLFloat, 32, 4}, {4}).dl_tensor));
  const auto as_bf16 = [&](DLDataType type, const char* sentence) {
    EXPECT_TIGON_ERROR(matrix_from_dlpack<bfloat16>(tensor(data(), type, {2, 2})), dtype, sentence);
  };
  as_bf16(f16, "of type float16; expected bfloat16");
  as_bf16({kDLUInt, 16, 1}, "of type uint16; expected bfloat16");
  EXPECT_TIGON_ERROR(span_from_dlpack<std::uint8_t>(tensor(data(), {kDLInt, 8, 1}, {4})), dtype,
                     "of type int8; expected uint8");
}

TEST_F(dlpack, refuses_shapes) {
  EXPECT_TIGON_ERROR(matrix_from_dlpack<float>(tensor(data(), f32, {12})), shape,
                     "tensor is of rank 1; expected at least 2: rows and, innermost, columns");
  EXPECT_TIGON_ERROR(matrix_from_dlpack<float>(tensor(data(), f32, {})), shape, "of rank 0; expected at least 2");
  EXPECT_TIGON_ERROR(heads_from_dlpack<float>(tensor(data(), f32, {2, 3}), heads_axes::heads_first, "q"), shape,
                     "tigon: heads_from_dlpack: q is of rank 2; expected 4, or 3 for one sequence");
  EXPECT_TIGON_ERROR(heads_from_dlpack<float>(tensor(data(), f32, {1, 2, 3, 4, 5})), shape, "of rank 5; expected 4");
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(data(), f32, {3, -1})), shape,
                     "of shape [3, -1]; expected extents of at least 0");
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(nullptr, f32, {3, 2})), shape,
                     "tensor is a null pointer; expected elements of shape [3, 2]");
  EXPECT_TIGON_ERROR(matrix_from_dlpack<float>(tensor(data(), f32, {std::int64_t{1} << 40, std::int64_t{1} << 40})),
                     shape, "of shape [1099511627776, 1099511627776]; expected no more elements than memory has");
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(data(), f32, {std::int64_t{1} << 61})), shape,
                     "expected no more elements than memory has");
  EXPECT_TIGON_ERROR(matrix_from_dlpack<float>(tensor(nullptr, f32, {std::int64_t{1} << 40, std::int64_t{1} << 40, 0})),
                     shape, "expected no more elements than memory has");
  tensor negative(data(), f32, {3});
  negative.dl_tensor.ndim = -1;
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(negative), shape, "of rank -1; expected at least 0");
  tensor shapeless(data(), f32, {3});
  shapeless.dl_tensor.shape = nullptr;
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(shapeless), shape, "without a shape; expected an extent for every axis");
}

TEST_F(dlpack, refuses_strides_that_a_view_cannot_hold) {
  const auto matrix = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides, const char* sentence) {
    EXPECT_TIGON_ERROR(matrix_from_dlpack<float>(tensor(data(), f32, std::move(shape), std::move(strides))), stride,
                       sentence);
  };
  matrix({3, 4}, {4, 2}, "of stride 2 along axis 1; expected 1: the elements of a row are adjacent; copy the array");
  matrix({3, 4}, {1, 3}, "of stride 3 along axis 1; expected 1");
  matrix({3, 4}, {4, -1}, "of stride -1 along axis 1; expected 1");
  matrix({3, 4}, {4, 0}, "of stride 0 along axis 1; expected 1");
  matrix({3, 4}, {-4, 1}, "of stride -4 along axis 0; expected at least 0: no view goes backwards; copy the array");
  matrix({3, 4}, {0, 1}, "of stride 0 along axis 0; expected at least its 4 columns; copy the array");
  matrix({3, 4}, {3, 1}, "of stride 3 along axis 0; expected at least its 4 columns");
  matrix({2, 3, 4}, {13, 4, 1},
         "of stride 13 along axis 0; expected 12, so that all rows have one distance; copy the array");
  matrix({2, 3, 4}, {4, 8, 1}, "of stride 4 along axis 0; expected 24, so that");
  matrix({3, 4}, {std::int64_t{1} << 62, 1},
         "of stride 4611686018427387904 along axis 0; expected no more elements than memory has");
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(data(), f32, {4}, {2})), stride,
                     "of stride 2 along axis 0; expected 1: elements without gaps; copy the array");
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(data(), f32, {4}, {-1})), stride, "of stride -1 along axis 0");
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(tensor(data(), f32, {3, 4}, {5, 1})), stride,
                     "of stride 5 along axis 0; expected 4: elements without gaps");
  EXPECT_TIGON_ERROR(heads_from_dlpack<float>(tensor(data(), f32, {2, 3, 4, 5}, {60, 20, -5, 1})), stride,
                     "of stride -5 along axis 2; expected at least 0");
  EXPECT_TIGON_ERROR(heads_from_dlpack<float>(tensor(data(), f32, {2, 3, 4, 5}, {60, 20, 1, 4})), stride,
                     "of stride 4 along axis 3; expected 1");
}

TEST_F(dlpack, refuses_elements_that_are_not_aligned) {
  tensor t(data(), f32, {4});
  t.dl_tensor.byte_offset = 2;
  EXPECT_TIGON_ERROR(
      span_from_dlpack<float>(t), argument,
      "tensor is at an address that is no multiple of 4; expected elements that are aligned for their type");
  tensor halves(data(), bf16, {4});
  halves.dl_tensor.byte_offset = 2;
  EXPECT_EQ(span_from_dlpack<bfloat16>(halves).size(), 4u);
  halves.dl_tensor.byte_offset = 1;
  EXPECT_TIGON_ERROR(span_from_dlpack<bfloat16>(halves), argument, "no multiple of 2");
}

TEST_F(dlpack, a_view_goes_there_and_back) {
  const matrix_view<float> m(memory + 3, 4, 5, 9);
  auto of_m = to_dlpack(m);
  const DLTensor t = of_m.tensor<DLTensor>();
  EXPECT_EQ(t.device.device_type, kDLCPU);
  EXPECT_EQ(t.ndim, 2);
  EXPECT_EQ(t.byte_offset, 0u);
  expect_matrix(matrix_from_dlpack<float>(t), memory + 3, 4, 5, 9);

  const heads_view<float> h = heads_view<float>::of_tokens(memory, 2, 3, 4, 5);
  auto of_h = to_dlpack(h);
  const heads_view<float> back = heads_from_dlpack<float>(of_h.tensor());
  EXPECT_EQ(back.at(1, 2, 1), h.at(1, 2, 1));
  EXPECT_EQ(back.heads, 4u);

  auto of_const = to_dlpack(vector_view<const float>{memory + 7, 6});
  EXPECT_EQ(span_from_dlpack<const float>(of_const.tensor<DLTensor>()).data(), memory + 7);
  std::vector<bfloat16> halves(4);
  auto of_halves = to_dlpack(std::span(halves));
  EXPECT_TRUE(dlpack_holds<bfloat16>(of_halves.tensor<DLTensor>()));
  EXPECT_EQ(span_from_dlpack<bfloat16>(of_halves.tensor<DLTensor>()).size(), 4u);
  auto empty = to_dlpack(matrix_view<float>(nullptr, 0, 5));
  expect_matrix(matrix_from_dlpack<float>(empty.tensor()), nullptr, 0, 5, 5);
}

/// Counts what is alive of an owner of memory.
struct counted {
  std::vector<float> memory;
  std::shared_ptr<int> alive;
};

template <class D>
D* managed(std::shared_ptr<int> alive) {
  counted owner{std::vector<float>(3 * 8, 1.5f), std::move(alive)};
  const matrix_view<float> view(owner.memory.data(), 3, 5, 8);
  return managed_dlpack<D>(view, std::move(owner));
}

TEST(dlpack_managed, tensors_keep_their_owner_until_the_deleter) {
  const auto check = [](auto* t, const std::shared_ptr<int>& alive) {
    EXPECT_EQ(alive.use_count(), 2);
    const auto m = matrix_from_dlpack<const float>(*t);
    EXPECT_EQ(m.rows, 3u);
    EXPECT_EQ(m.cols, 5u);
    EXPECT_EQ(m.row_stride, 8u);
    EXPECT_EQ(m.row(2)[4], 1.5f);
    t->deleter(t);
    EXPECT_EQ(alive.use_count(), 1);
  };
  const auto alive = std::make_shared<int>(0);
  check(managed<DLManagedTensor>(alive), alive);
  check(managed<DLManagedTensorVersioned>(alive), alive);
  check(managed<dl_managed_tensor_versioned>(alive), alive);
}

TEST(dlpack_managed, tensors_of_const_elements_are_read_only) {
  const auto shared = std::make_shared<std::vector<float>>(6, 2.0f);
  auto* t = managed_dlpack<DLManagedTensorVersioned>(vector_view<const float>{shared->data(), 6}, shared);
  EXPECT_EQ(t->version.major, 1u);
  EXPECT_EQ(span_from_dlpack<const float>(*t)[5], 2.0f);
  EXPECT_TIGON_ERROR(span_from_dlpack<float>(*t), argument, "read-only");
  t->deleter(t);
  EXPECT_EQ(shared.use_count(), 1);
}

}  // namespace
