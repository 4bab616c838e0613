// The call of an operator of one declaration: tensors become the operands that its kernel takes.
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "layers.hpp"

namespace tigon_torch {
namespace {

using operators = std::unordered_map<std::string_view, const declared_operator*>;

/// Those that there are.
operators operators_of(const kernel_table& kernels) {
  operators all;
  for (const declared_operators& some : kernels.declared)
    for (std::size_t i = 0; i < some.count; ++i)
      if (some.first[i].run != nullptr) all.emplace(some.first[i].name, &some.first[i]);
  return all;
}
/// Made at the first call for each table.
const operators& operators_in(const kernel_table& kernels) {
  static std::shared_mutex mutex;
  static std::unordered_map<const kernel_table*, operators> all;  // whose elements stay where they are
  {
    const std::shared_lock lock(mutex);
    if (const auto found = all.find(&kernels); found != all.end()) return found->second;
  }
  const std::unique_lock lock(mutex);
  return all.try_emplace(&kernels, operators_of(kernels)).first->second;
}
[[noreturn]] void fail_without(const std::string& name) {
  throw std::runtime_error("tigon: " + name + ": the library was built without it");
}
/// The operator of that name in a table, or null.
const declared_operator* find(const kernel_table& kernels, const std::string& name) {
  const operators& all = operators_in(kernels);
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}
/// The operator of that name of some element type.
const declared_operator& any_operator(const std::string& name) {
  const declared_operator* const found = find(any_table(), name);
  if (found == nullptr) fail_without(name);
  return *found;
}
/// The operator of that name and the type in which it is computed: f32 for what is not compiled for f16.
std::pair<const declared_operator*, ScalarType> operator_for(const std::string& name, ScalarType of) {
  if (of == ScalarType::Half && has_f16())
    if (const declared_operator* const found = find(table(name, type::f16), name)) return {found, of};
  const type computed = of == ScalarType::Double ? type::f64 : of == ScalarType::BFloat16 ? type::bf16 : type::f32;
  const declared_operator* const found = find(table(name, computed), name);
  if (found == nullptr) fail_without(name);
  return {found, of == ScalarType::Half ? ScalarType::Float : of};
}

/// The words of a text, for messages.
std::string word(const std::string& text, std::size_t number) {
  std::size_t begin = 0;
  for (; number != 0 && begin != std::string::npos; --number) begin = text.find(' ', begin) + 1;
  return text.substr(begin, text.find(' ', begin) - begin);
}

bool has_element_type_of_first(char kind) { return kind == 'm' || kind == 'h' || kind == 'c'; }

/// Of an operand, where the first one is computed in such a type.
ScalarType element_type(char kind, ScalarType computed) {
  if (kind == 'i') return ScalarType::Long;
  if (kind == 'v' || kind == 'w') return computed == ScalarType::Double ? computed : ScalarType::Float;
  return computed;
}

/// Into the type in which it is computed, where the first one is of `first`. A parameter may have any type but f64, an
/// operand that goes by rows that of the first, or what it is computed in.
void convert(const std::string& op, const std::string& name, char kind, Tensor& t, ScalarType first, ScalarType to) {
  const ScalarType came = t.scalar_type();
  if (kind == 'i') return make_ids(op.c_str(), name.c_str(), t);
  real_type_of(op.c_str(), name.c_str(), t);
  const bool loses = kind != 'n' && came == ScalarType::Double && to != ScalarType::Double;
  if (has_element_type_of_first(kind) ? came != first && came != to : loses)
    fail(op, name + " is of " + name_of(came) + "; expected " + name_of(first));
  if (came != to) t = torch::stable::to(t, to);
}

operand operand_of(const std::string& op, const std::string& name, char kind, Tensor& t) {
  operand o;
  if (kind == 'w' && t.dim() == 0) return {t.data_ptr(), type_of(op.c_str(), name.c_str(), t), {1, 1}, {1}};
  if (kind == 'm' || kind == 'w') {
    const matrix m = rows_of(op.c_str(), name.c_str(), t);
    return {m.data, m.of, {m.rows, m.cols}, {m.stride}};
  }
  if (kind == 'h') {
    const heads h = heads_of(op.c_str(), name.c_str(), t);
    return {h.data, h.of, {h.batch, h.heads, h.seq_len, h.head_dim}, {h.batch_stride, h.head_stride, h.seq_stride}};
  }
  if (!t.is_contiguous()) t = torch::stable::contiguous(t);
  o.data = t.data_ptr(), o.of = type_of(op.c_str(), name.c_str(), t);
  if (kind != 'c') {
    o.sizes[0] = size(t.numel());
    return o;
  }
  expect_dims(op.c_str(), name.c_str(), t, 3);
  for (int d = 0; d < 3; ++d) o.sizes[d] = size(t.size(d));
  return o;
}

/// A tensor of a call, which is where all of them are.
const Tensor& one_of(const std::string& op, const std::vector<maybe>& tensors) {
  for (const maybe& t : tensors)
    if (t) return *t;
  fail(op, "no tensor came; expected at least one");
}

/// Of the first operand that decides it.
ScalarType first_type(const char* kinds, const std::vector<maybe>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i] && has_element_type_of_first(kinds[i])) return tensors[i]->scalar_type();
  return ScalarType::Float;
}

/// Runs the kernel of that name. The first `read` tensors are read, the others written; names has a word for each of
/// those that are read.
void run_kernel(std::string op, std::string names, int64_t read, std::vector<maybe> tensors,
                std::vector<double> numbers) {
  const char* kinds = any_operator(op).kinds;
  const ScalarType first = first_type(kinds, tensors);
  const auto [kernel, computed] = operator_for(op, first);
  if (std::string_view(kinds).size() != tensors.size() || kernel->numbers != numbers.size())
    fail(op, std::to_string(tensors.size()) + " tensors and " + std::to_string(numbers.size()) +
                 " numbers came; expected " + kinds + " and " + std::to_string(kernel->numbers));
  std::vector<operand> operands(tensors.size());
  std::vector<std::pair<Tensor, Tensor>> copied;  // what is written elsewhere first: in another type, or row by row
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]) continue;
    Tensor& t = *tensors[i];
    const bool reads = i < size(read);
    const std::string name = reads ? word(names, i) : "result";
    const ScalarType to = element_type(kinds[i], computed);
    const Tensor came = t;
    if (reads)
      convert(op, name, kinds[i], t, first, to);
    else if (t.scalar_type() != to)
      t = torch::stable::to(t, to);  // with its numbers: a kernel in place reads them, or leaves them as they are
    operands[i] = operand_of(op, name, kinds[i], t);
    if (!reads && t.data_ptr() != came.data_ptr()) copied.emplace_back(came, t);
  }
  kernel->run(call(one_of(op, tensors)), operands.data(), numbers.data());
  for (auto& [to, from] : copied) torch::stable::copy_(to, from);
}

}  // namespace
}  // namespace tigon_torch

#if !TIGON_TORCH_CUDA
STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def("run_kernel(str op, str names, int read, Tensor?[] tensors, float[] numbers) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(tigon, TIGON_TORCH_KEY, m) { m.impl("run_kernel", TORCH_BOX(&tigon_torch::run_kernel)); }
