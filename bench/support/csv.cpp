#include "support/csv.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "../../support/output_file.hpp"

namespace tigon_bench {
namespace {

constexpr std::array columns{"kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit",
                             "x_name", "x_label", "x_value", "y_value_50", "y_value_20", "y_value_80",
                             "extra_benchmark_config_str", "gpu_name", "timestamp", "liger_version",
                             // companions: append only
                             "gbytes_per_s", "gflops_per_s", "limit_ms", "fraction_of_limit", "limit_kind", "shape",
                             "reason"};
constexpr std::size_t shared_columns = 15, reason_column = columns.size() - 1;

// kernel_name, kernel_provider, mode, metric_name, x_name, x_value, configuration, gpu_name
constexpr std::array<std::size_t, 8> key_columns{0, 1, 2, 3, 5, 7, 11, 12};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
  std::string out = "\"";
  for (const char c : field) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::vector<std::vector<std::string>> parse(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool in_quotes = false, any = false;
  const auto end_row = [&] {
    if (!any) return;
    row.push_back(field);
    rows.push_back(row);
    row.clear(), field.clear(), any = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_quotes) {
      if (c != '"')
        field += c;
      else if (i + 1 < text.size() && text[i + 1] == '"')
        field += '"', ++i;
      else
        in_quotes = false;
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      any = true;
      if (c == '"')
        in_quotes = true;
      else if (c == ',')
        row.push_back(field), field.clear();
      else
        field += c;
    }
  }
  end_row();
  return rows;
}

std::vector<std::string> fields_of(const csv_row& r) {
  return {r.kernel_name,
          r.kernel_provider,
          r.kernel_operation_mode,
          r.metric_name,
          r.metric_unit,
          r.x_name,
          r.x_label,
          r.x_value,
          number(r.y_value_50),
          number(r.y_value_20),
          number(r.y_value_80),
          r.extra_benchmark_config,
          r.gpu_name,
          r.timestamp,
          r.version,
          number(r.gbytes_per_s),
          number(r.gflops_per_s),
          number(r.limit_ms),
          number(r.fraction_of_limit),
          r.limit_kind,
          r.shape,
          r.reason};
}

}  // namespace

csv_file::csv_file(std::string path, existing_row policy) : path_(std::move(path)), policy_(policy) {
  const std::filesystem::path target(path_);
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path());
  example::check_writable({"--csv", target});
  if (!std::filesystem::is_regular_file(target)) return;
  std::ifstream in(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  // What cannot be read would be replaced.
  if (!in) throw std::runtime_error(path_ + " cannot be read");
  rows_ = parse(text);
  if (rows_.empty()) return;
  const std::size_t width = rows_.front().size();
  if (width < shared_columns || width > columns.size() ||
      !std::equal(rows_.front().begin(), rows_.front().end(), columns.begin()))
    throw std::runtime_error(path_ + " has other columns than this program writes; name another file");
  rows_.erase(rows_.begin());
  for (fields& row : rows_) {
    if (row.size() != width)
      throw std::runtime_error(path_ + " has a row of " + std::to_string(row.size()) + " fields; expected " +
                               std::to_string(width));
    row.resize(columns.size());
  }
}

const csv_file::fields* csv_file::with_key_of(const fields& row) const {
  for (const fields& old : rows_)
    if (std::all_of(key_columns.begin(), key_columns.end(), [&](std::size_t k) { return old[k] == row[k]; }))
      return &old;
  return nullptr;
}

bool csv_file::keeps(const csv_row& row) const {
  const fields* const old = with_key_of(fields_of(row));
  return policy_ == existing_row::keep && old != nullptr && (*old)[reason_column].empty();
}

bool csv_file::add(const csv_row& r) {
  if (keeps(r)) return false;
  const fields row = fields_of(r);
  if (const fields* const old = with_key_of(row))
    rows_[static_cast<std::size_t>(old - rows_.data())] = row;
  else
    rows_.push_back(row);
  write();
  return true;
}

void csv_file::write() const {
  std::ostringstream out;
  const auto line = [&](const auto& values) {
    bool first = true;
    for (const auto& value : values) out << (first ? "" : ",") << quoted(value), first = false;
    out << '\n';
  };
  line(columns);
  for (const fields& row : rows_) line(row);
  // A reader, or an interrupted run, never meets half a table.
  example::replace_file(path_, out.view());
}

}  // namespace tigon_bench
