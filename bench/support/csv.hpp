// The table of measurements: fifteen columns and a key that plots of other libraries understand, and beside them the
// rate, the limit of the same run, and the fraction of it that was reached.
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
  std::string limit_kind;
};

enum class existing_row { keep, replace };

/// The file is read at the start and written after every row, so that a failure loses no earlier one.
class csv_file {
 public:
  /// Throws std::runtime_error for a file that is no such table.
  csv_file(std::string path, existing_row policy);

  /// False: a row with this key was there, and it was kept.
  bool add(const csv_row& row);

 private:
  using fields = std::vector<std::string>;
  void write() const;

  std::string path_;
  existing_row policy_;
  std::vector<fields> rows_;
};

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_CSV_HPP
