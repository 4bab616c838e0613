#include "golden.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tigon/core/element.hpp>

#include "../../support/safetensors.hpp"

namespace golden {
namespace {

using tigon::test::error_measure;

template <class T>
values widened(const example::tensor_view& view) {
  const std::vector<T> raw = view.values<T>();
  return values(raw.begin(), raw.end());
}

tensor read(const example::tensor_view& view) {
  using example::dtype;
  switch (view.type) {
    case dtype::f64: return {"f64", view.shape, widened<double>(view)};
    case dtype::f32: return {"f32", view.shape, widened<float>(view)};
    case dtype::bf16: return {"bf16", view.shape, widened<tigon::bfloat16>(view)};
    case dtype::f16: return {"f16", view.shape, widened<tigon::float16>(view)};
    case dtype::i64: return {"i64", view.shape, widened<std::int64_t>(view)};
    case dtype::i32: return {"i32", view.shape, widened<std::int32_t>(view)};
    case dtype::u8:
    case dtype::boolean: return {"u8", view.shape, widened<std::uint8_t>(view)};
  }
  throw std::runtime_error("a tensor of an unknown type");
}

double rounded(double value, const std::string& dtype) {
  const auto narrow = static_cast<float>(value);
  if (dtype == "f32") return narrow;
  if (dtype == "bf16") return static_cast<tigon::bfloat16>(narrow);
  if (dtype == "f16") return static_cast<tigon::float16>(narrow);
  return value;
}

void set_option(options& to, const std::string& name, const nlohmann::json& v) {
  if (v.is_boolean()) to.set(name, v.get<bool>());
  if (v.is_number()) to.set(name, v.get<double>());
  if (v.is_string()) to.set(name, v.get<std::string>());
  if (v.is_array())  // each under the name and its index: "mrope_section.0"
    for (std::size_t i = 0; i < v.size(); ++i) set_option(to, name + '.' + std::to_string(i), v[i]);
}

std::string key(const std::string& op, const std::string& name, const std::string& dtype, const std::string& tensor) {
  return op + ',' + name + ',' + dtype + ',' + tensor;
}

const tensor& found(const named_tensors& in, const problem& p, const char* what, std::string_view name) {
  const auto at = in.find(name);
  if (at == in.end())
    throw cannot_run("no " + std::string(what) + ' ' + std::string(name) + " in " + p.op + ' ' + p.name);
  return at->second;
}

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.3g", value);
  return buffer;
}

}  // namespace

results::results(std::initializer_list<entry> entries) {
  for (const entry& e : entries) emplace(e.name, e.numbers);
}

namespace {
template <class T>
const T* option(const std::map<std::string, options::value, std::less<>>& all, std::string_view name) {
  const auto found = all.find(name);
  return found == all.end() ? nullptr : std::get_if<T>(&found->second);
}
}  // namespace

bool options::has(std::string_view name) const { return values_.contains(name); }
double options::number(std::string_view name, double fallback) const {
  const auto* held = option<double>(values_, name);
  return held == nullptr ? fallback : *held;
}
bool options::flag(std::string_view name, bool fallback) const {
  const auto* held = option<bool>(values_, name);
  return held == nullptr ? fallback : *held;
}
std::string options::text(std::string_view name, std::string_view fallback) const {
  const auto* held = option<std::string>(values_, name);
  return held == nullptr ? std::string(fallback) : *held;
}

const tensor& problem::input(std::string_view n) const { return found(in, *this, "input", n); }
const tensor& problem::upstream(std::string_view n) const { return found(up, *this, "upstream gradient", n); }

folder::folder(std::filesystem::path path) : path_(std::move(path)) {
  if (!std::filesystem::is_directory(path_))
    throw std::runtime_error("golden folder " + path_.string() + " is not a folder");
  if (ops().empty()) throw std::runtime_error("golden folder " + path_.string() + " holds no .safetensors file");
  read_errors();
}

std::vector<std::string> folder::ops() const {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    if (entry.path().extension() == ".safetensors") out.push_back(entry.path().stem().string());
  std::ranges::sort(out);
  return out;
}

void folder::read_errors() {
  std::ifstream in(path_ / "liger_error.csv");
  std::string line, cell;
  if (!std::getline(in, line)) return;
  std::map<std::string, std::size_t> column;
  for (std::istringstream header(line); std::getline(header, cell, ',');) column.emplace(cell, column.size());
  for (const char* wanted : {"op", "case", "dtype", "tensor", "rel_l2", "max_abs", "floor_rel_l2", "floor_max_abs"})
    if (!column.contains(wanted))
      throw std::runtime_error((path_ / "liger_error.csv").string() + " has no column " + wanted);
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    for (std::istringstream row(line); std::getline(row, cell, ',');) cells.push_back(cell);
    if (cells.size() < column.size()) continue;
    const auto at = [&](const char* name) -> const std::string& { return cells[column[name]]; };
    const auto number = [&](const char* name) { return std::strtod(at(name).c_str(), nullptr); };
    errors_[key(at("op"), at("case"), at("dtype"), at("tensor"))] = {error_measure{number("rel_l2"), number("max_abs")},
                                                                     {number("floor_rel_l2"), number("floor_max_abs")}};
  }
}

std::vector<problem> folder::problems(const std::string& op) const {
  const auto file = example::safetensors_file::load(file_of(op));
  const auto cases = nlohmann::json::parse(file.meta("cases"), nullptr, /*allow_exceptions=*/false);
  if (!cases.is_object() || cases.empty()) file.fail("has no cases in its metadata");
  std::vector<problem> out;
  try {
    for (const auto& [name, entry] : cases.items())
      for (const std::string dtype : entry.at("dtypes")) {
        problem p;
        p.op = op, p.name = name, p.dtype = dtype;
        for (const auto& [option, value] : entry.at("options").items()) set_option(p.opt, option, value);
        p.quirk = p.opt.has("quirk");
        const auto take = [&](const std::string& kind, const std::string& n, named_tensors& into) {
          const std::string own = name + '.' + dtype + '.' + kind + '.' + n, common = name + '.' + kind + '.' + n;
          for (const std::string& candidate : {own, common})
            if (file.contains(candidate)) return void(into.emplace(n, read(file.at(candidate))));
        };
        const auto take_result = [&](const std::string& n) {
          take("ref", n, p.reference);
          take("liger", n, p.liger);
          if (!p.reference.contains(n)) file.fail("lacks the reference of " + key(op, name, dtype, n));
        };
        for (const std::string n : entry.at("inputs")) take("in", n, p.in);
        for (const std::string n : entry.at("upstream")) take("up", n, p.up);
        for (const std::string n : entry.at("outputs")) take_result(n);
        for (const std::string n : entry.at("grads")) take_result("d_" + n);
        out.push_back(std::move(p));
      }
  } catch (const nlohmann::json::exception& e) {
    file.fail("describes its cases in an unknown way: " + std::string(e.what()));
  }
  return out;
}

liger_error folder::error_of(const problem& p, const std::string& tensor_name) const {
  const auto known = errors_.find(key(p.op, p.name, p.dtype, tensor_name));
  if (known != errors_.end()) return known->second;
  const values& reference = p.reference.at(tensor_name).data;
  const auto liger = p.liger.find(tensor_name);
  values stored = reference;
  for (double& v : stored) v = rounded(v, liger == p.liger.end() ? p.dtype : liger->second.dtype);
  liger_error out{std::nullopt, tigon::test::measure(stored, reference)};
  if (liger != p.liger.end()) out.liger = tigon::test::measure(liger->second.data, reference);
  return out;
}

verdict judge(const problem& p, const std::string& tensor_name, const values& got, const liger_error& bar) {
  const values& reference = p.reference.at(tensor_name).data;
  const error_measure error = tigon::test::measure(got, reference);
  const error_measure liger = bar.liger && !p.quirk ? *bar.liger : error_measure{};
  const bool relative = std::isfinite(error.rel_l2) && std::ranges::any_of(reference, [](double r) { return r != 0; });
  const double least = relative ? (p.dtype == "f32" ? 2.4e-7 : 4e-3) : 1e-12;
  const double came = relative ? error.rel_l2 : error.max_abs;
  const double theirs = relative ? liger.rel_l2 : liger.max_abs;
  const double floor = relative ? bar.floor.rel_l2 : bar.floor.max_abs;
  constexpr double printed = 1 + 1e-5;  // liger_error.csv has six digits
  const double limit =
      tigon::test::error_scale * std::max({std::isfinite(theirs) ? theirs * printed : 0, 2 * floor * printed, least});
  return {came <= limit, error,
          p.op + ' ' + p.name + ' ' + p.dtype + ' ' + tensor_name + ": " + (relative ? "rel_l2 " : "max_abs ") +
              text(came) + ", at most " + text(limit) + " (Liger " +
              (p.quirk     ? "does not count"
               : bar.liger ? text(theirs)
                           : "failed") +
              ", floor " + text(floor) + ')'};
}

}  // namespace golden
