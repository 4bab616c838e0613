// The table of measurements: fifteen columns and a key that plots of other libraries understand, and beside them the
// rate, the limit of the same run, the fraction of it that was reached, the shape, and why a row has no numbers.
#ifndef TIGON_BENCH_SUPPORT_CSV_HPP
#define TIGON_BENCH_SUPPORT_CSV_HPP

#include <string>
#include <vector>

namespace tigon_bench {

struct csv_row {
  std::string kernel_name, kernel_provider, kernel_operation_mode;
  std::string metric_name, metric_unit;
  std::string x_name, x_label, x_value;
  double y_value_50 = 0, y_value_20 = 0, y_value_80 = 0;
  std::string extra_benchmark_config;  ///< a JSON object
  std::string gpu_name, timestamp, version;
  double gbytes_per_s = 0, gflops_per_s = 0, limit_ms = 0, fraction_of_limit = 0;
  std::string limit_kind, shape;
  std::string reason;  ///< empty where it was measured
};

enum class existing_row { keep, replace };

/// The file is read at the start and written after every row, so that a failure loses no earlier one.
class csv_file {
 public:
  /// Makes the folder. Throws std::runtime_error for a file that is no such table, or that cannot be written. One with
  /// the first columns alone is read, and gets the others when it is written.
  csv_file(std::string path, existing_row policy);

  /// Whether add() would keep a measured row that is there, with this key. A row with a reason holds nothing to keep.
  bool keeps(const csv_row& row) const;

  /// False: keeps(row), and nothing was written.
  bool add(const csv_row& row);

 private:
  using fields = std::vector<std::string>;
  const fields* with_key_of(const fields& row) const;
  void write() const;

  std::string path_;
  existing_row policy_;
  std::vector<fields> rows_;
};

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_CSV_HPP
