// Golden fixtures: inputs, upstream gradients, a float64 reference and the results of Liger's kernels.
// tests/golden/README.md describes the files.
#ifndef TIGON_TESTS_SUPPORT_GOLDEN_HPP
#define TIGON_TESTS_SUPPORT_GOLDEN_HPP

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "measure.hpp"

namespace golden {

using values = std::vector<double>;

/// Numbers by name. Made out of line: every adapter names its results once for each backend and type.
struct results : std::map<std::string, values> {
  struct entry {
    std::string_view name;
    values numbers;
  };
  results() = default;
  results(std::initializer_list<entry> entries);
};

struct tensor {
  std::string dtype;  ///< f32, bf16, f64, i64, ...
  std::vector<std::size_t> shape;
  values data;  ///< exact: every type in use fits f64

  /// As a matrix of rows: everything but the last extent is counted together.
  std::size_t cols() const { return shape.empty() ? 1 : shape.back(); }
  std::size_t rows() const { return cols() == 0 ? 0 : data.size() / cols(); }
};

/// What a case holds besides tensors. A missing or null option is the fallback.
class options {
 public:
  using value = std::variant<bool, double, std::string>;
  void set(const std::string& name, value v) { values_[name] = std::move(v); }
  bool has(std::string_view name) const;
  double number(std::string_view name, double fallback = 0) const;
  bool flag(std::string_view name, bool fallback = false) const;
  std::string text(std::string_view name, std::string_view fallback = {}) const;

 private:
  std::map<std::string, value, std::less<>> values_;
};

using named_tensors = std::map<std::string, tensor, std::less<>>;

/// One case of one operator in one element type.
struct problem {
  std::string op, name, dtype;
  options opt;
  bool quirk = false;              ///< Liger is known to differ from the mathematics
  named_tensors in, up;            ///< inputs x, w, ...; upstream gradients of outputs y, ...
  named_tensors reference, liger;  ///< outputs y, ... and gradients d_x, ...

  const tensor& input(std::string_view tensor_name) const;
  const tensor& upstream(std::string_view tensor_name) const;
};

/// Thrown by an adapter that does not know how to run a case; the sentence is shown.
struct cannot_run : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Liger's error on a tensor, and the error of merely rounding the reference to the type in which Liger stores it.
struct liger_error {
  std::optional<tigon::test::error_measure> liger;  ///< none where Liger failed
  tigon::test::error_measure floor;
};

/// A folder of fixtures. Errors are one sentence each.
class folder {
 public:
  /// Throws unless there is at least one .safetensors file.
  explicit folder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> ops() const;  ///< sorted
  bool has(const std::string& op) const { return std::filesystem::exists(file_of(op)); }
  std::vector<problem> problems(const std::string& op) const;
  /// From liger_error.csv; where that has no such row, from the tensors themselves.
  liger_error error_of(const problem& p, const std::string& tensor_name) const;

 private:
  std::filesystem::path file_of(const std::string& op) const { return path_ / (op + ".safetensors"); }
  void read_errors();

  std::filesystem::path path_;
  std::map<std::string, liger_error> errors_;  ///< by op,case,dtype,tensor
};

/// The bar for one tensor: the largest of Liger's error, twice the rounding floor and a small constant of the type.
/// Relative L2 errors, or absolute ones where the reference is exactly zero.
struct verdict {
  bool passes;
  tigon::test::error_measure error;
  std::string sentence;  ///< numbers and bar
};
verdict judge(const problem& p, const std::string& tensor_name, const values& got, const liger_error& bar);

}  // namespace golden

#endif  // TIGON_TESTS_SUPPORT_GOLDEN_HPP
