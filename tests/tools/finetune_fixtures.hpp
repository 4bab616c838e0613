// What fixtures/finetune/make.py wrote, and the weights that it drew.
#ifndef TIGON_TESTS_EXAMPLES_FINETUNE_FIXTURES_HPP
#define TIGON_TESTS_EXAMPLES_FINETUNE_FIXTURES_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../tools/finetune/weights.hpp"

namespace example {

/// A folder of fixtures/finetune. `draw` and `weights` are the functions of make.py.
struct finetune_case {
  std::filesystem::path folder;
  safetensors_file expected;
  std::vector<std::int32_t> ids, targets, begins;
  std::vector<std::size_t> rows;
  std::vector<float> logits;
  double loss;

  explicit finetune_case(const std::string& name)
      : folder(std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune" / name),
        expected(safetensors_file::load(folder / "expected.safetensors")),
        ids(values<std::int32_t>("ids")),
        targets(values<std::int32_t>("targets")),
        begins(values<std::int32_t>("begins")),
        logits(values<float>("logits")),
        loss(values<double>("loss")[0]) {
    for (const std::int32_t row : values<std::int32_t>("rows")) rows.push_back(static_cast<std::size_t>(row));
  }

  template <class T>
  std::vector<T> values(const std::string& name) const {
    return expected.at(name).values<T>();
  }
  double counted_targets() const {
    double count = 0;
    for (const std::int32_t t : targets) count += t >= 0;
    return count;
  }

  static std::vector<double> draw(std::string_view name, std::size_t size) {
    std::uint64_t state = 0xcbf29ce484222325u;
    for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    std::vector<double> out(size);
    for (double& v : out) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      v = static_cast<double>(state >> 40) / static_cast<double>(1 << 23) - 1;
    }
    return out;
  }
  static void fill(std::string_view name, float size, std::span<float> to) {
    const std::vector<double> drawn = draw(name, to.size());
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(static_cast<double>(size) * drawn[i]);
  }
  /// Drawn from the tensors' names with `before` before them.
  static std::vector<float> weights(const architecture& a, const weight_layout& layout,
                                    const std::string& before = {}) {
    const bool gemma = a.model_type.starts_with("gemma");
    std::vector<float> flat(layout.total);
    for (const weight_tensor& t : layout.tensors) {
      const std::vector<double> drawn = draw(before + t.name, t.size());
      const bool norm = t.name.ends_with("norm.weight");
      const double size = norm || (gemma && t.name.find("embed_tokens") != std::string::npos) ? 0.25
                          : t.name.find(".gate.weight") != std::string::npos                  ? 0.9
                                                                                              : 0.35;
      const auto to = weight_layout::of(std::span(flat), t);
      for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<float>(size * drawn[i] + (norm && !gemma ? 1 : 0));
    }
    return flat;
  }

  /// The names of the file with gradients, and those of a layout.
  std::set<std::string> gradient_names() const {
    std::set<std::string> out;
    for (const auto& entry : expected.tensors()) {
      std::string name = entry.first;
      for (const char* const end : {".rows", ".cols"})
        if (name.ends_with(end)) name = name.substr(0, name.size() - 5);
      if (name.find('.') != std::string::npos) out.insert(name);
    }
    return out;
  }
  static std::set<std::string> names(const weight_layout& layout) {
    std::set<std::string> out;
    for (const weight_tensor& t : layout.tensors) out.insert(t.name);
    return out;
  }
  std::vector<float> gradient(const std::string& key) const { return values<float>(key); }

  /// scale * g as the file has it: whole, or by its products with two vectors.
  static std::map<std::string, std::vector<float>> sums(const weight_tensor& t, std::span<const float> g,
                                                        double scale) {
    std::map<std::string, std::vector<float>> out;
    if (!t.is_matrix) {
      for (const float v : g) out[t.name].push_back(static_cast<float>(scale * static_cast<double>(v)));
      return out;
    }
    const std::vector<double> u = draw(t.name + ".u", t.cols), v = draw(t.name + ".v", t.rows);
    std::vector<double> rows(t.rows), cols(t.cols);
    for (std::size_t i = 0; i < t.rows; ++i)
      for (std::size_t j = 0; j < t.cols; ++j) {
        const double x = scale * static_cast<double>(g[i * t.cols + j]);
        rows[i] += x * u[j], cols[j] += x * v[i];
      }
    for (const double x : rows) out[t.name + ".rows"].push_back(static_cast<float>(x));
    for (const double x : cols) out[t.name + ".cols"].push_back(static_cast<float>(x));
    return out;
  }
};

}  // namespace example
#endif
