// The rotary position embeddings that a config.json names.
#ifndef EXAMPLE_FINETUNE_ROTARY_CONFIG_HPP
#define EXAMPLE_FINETUNE_ROTARY_CONFIG_HPP

#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "config_reader.hpp"
#include "rotary.hpp"

namespace example {

/// One set of rotary parameters. `file` is the whole config.json, `part` its object with these parameters; `by_layer`
/// says that there is one for each type of layers. `theta` is what holds where `part` has no rope_theta.
class rotary_config {
 public:
  rotary_config(const config_reader& file, config_reader part, bool by_layer, std::size_t head_dim)
      : c_(file), r_(std::move(part)), by_layer_(by_layer), head_dim_(head_dim) {}

  rotary_scaling read(double theta) const {
    rotary_scaling out;
    out.theta = r_.contains("rope_theta") ? r_.number("rope_theta") : theta;
    if (!(out.theta > 1 && out.theta <= 1e300)) r_.fail("has a rope_theta that is not above 1");
    if (r_.number("partial_rotary_factor", c_.number("partial_rotary_factor", 1)) != 1)
      r_.fail("has a partial_rotary_factor, which this program does not know");
    if (!r_.has("rope_type") && !r_.has("type") && r_.has("factor"))
      r_.fail("has a factor, and no rope_type that it belongs to");
    const std::string type = r_.text("rope_type", r_.text("type", "default"));
    using enum rotary_scaling::kind;
    if (type == "default") return out;
    if (type == "linear") {
      out.type = linear, out.factor = factor();
    } else if (type == "dynamic") {
      out.type = dynamic, out.factor = factor(), out.original_positions = c_.size("max_position_embeddings");
      if (head_dim_ <= 2) c_.fail("has a head_dim of 2, for which there is no dynamic scaling");
    } else if (type == "llama3") {
      read_llama3(out);
    } else if (type == "yarn") {
      read_yarn(out);
    } else if (type == "longrope") {
      read_longrope(out);
    } else {
      r_.fail("has the rope scaling " + printable(type) + ", which this program does not know");
    }
    return out;
  }

 private:
  double factor() const {
    const double v = r_.number("factor");
    if (!(v >= 1)) r_.fail("has a factor below 1");
    return v;
  }
  /// In files of one set of parameters the number beside them comes first.
  std::size_t original_positions() const {
    constexpr const char* key = "original_max_position_embeddings";
    return !by_layer_ && c_.has(key) ? c_.size(key) : r_.size(key);
  }

  void read_llama3(rotary_scaling& out) const {
    out.type = rotary_scaling::kind::llama3, out.factor = factor(), out.original_positions = original_positions();
    out.low_freq_factor = r_.positive("low_freq_factor"), out.high_freq_factor = r_.positive("high_freq_factor");
    if (!(out.high_freq_factor > out.low_freq_factor))
      r_.fail("has a high_freq_factor that is not above its low_freq_factor");
  }

  void read_yarn(rotary_scaling& out) const {
    out.type = rotary_scaling::kind::yarn, out.factor = factor(), out.original_positions = original_positions();
    out.beta_fast = r_.positive("beta_fast", 32), out.beta_slow = r_.positive("beta_slow", 1);
    if (out.beta_fast < out.beta_slow) r_.fail("has a beta_fast below its beta_slow");
    out.attention_factor = r_.positive("attention_factor", 0);
    out.mscale = r_.number("mscale", 0), out.mscale_all_dim = r_.number("mscale_all_dim", 0);
    if (!(out.mscale >= 0 && out.mscale_all_dim >= 0)) r_.fail("has an mscale or mscale_all_dim below 0");
    out.truncate = r_.flag("truncate", true);
    // transformers looks for it beside the parameters of the types of layers, and so never finds it.
    if (by_layer_ && !out.truncate) r_.fail("has truncate for one type of layers, which this program does not know");
  }

  void read_longrope(rotary_scaling& out) const {
    out.type = rotary_scaling::kind::longrope, out.original_positions = original_positions();
    out.factor = r_.has("factor") ? factor()
                                  : static_cast<double>(c_.size("max_position_embeddings")) /
                                        static_cast<double>(out.original_positions);
    if (out.factor > 1 && out.original_positions == 1) r_.fail("has an original_max_position_embeddings of 1");
    out.attention_factor = r_.positive("attention_factor", 0);
    out.short_factors = factors("short_factor"), out.long_factors = factors("long_factor");
  }
  std::vector<double> factors(const char* key) const {
    std::vector<double> out = r_.numbers(key);
    if (out.size() != head_dim_ / 2)
      r_.fail(std::string("has a ") + key + " of " + std::to_string(out.size()) +
              " numbers; expected half of head_dim, " + std::to_string(head_dim_ / 2));
    for (const double v : out)
      if (!(v > 0 && v <= std::numeric_limits<float>::max()))
        r_.fail(std::string("has a number in ") + key + " that is not above 0");
    return out;
  }

  const config_reader& c_;
  config_reader r_;
  bool by_layer_;
  std::size_t head_dim_;
};

/// Of full attention and of local attention, which differ in gemma3_text alone.
inline std::pair<rotary_scaling, rotary_scaling> read_rotary(const config_reader& c, const std::string& model_type,
                                                             std::size_t head_dim) {
  const bool by_layer = model_type == "gemma3_text";
  const double theta = c.contains("rope_theta")              ? c.number("rope_theta")
                       : by_layer || model_type == "mixtral" ? 1e6
                                                             : 1e4;
  const auto none = [](const char* key) {
    return config_reader(nlohmann::json::object(), std::string("config.json, ") + key);
  };
  const auto has = [&](const char* key) { return c.has(key) && !c.at(key).empty(); };
  // Older files have rope_theta, and rope_scaling with the scaling alone.
  if (has("rope_scaling") && has("rope_parameters") && c.at("rope_scaling") != c.at("rope_parameters"))
    c.fail("has both rope_scaling and rope_parameters, and they differ");
  const char* const key = has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const config_reader all = has(key) ? c.part(key) : none(key);
  const bool nested = all.contains("full_attention") || all.contains("sliding_attention");
  if (!by_layer) {
    if (nested) all.fail("has parameters for types of layers, which " + model_type + " does not have");
    const rotary_scaling one = rotary_config(c, all, false, head_dim).read(theta);
    return {one, one};
  }
  const bool older = has("rope_scaling");
  if (has(key) && nested == older)
    all.fail(older ? "has parameters for types of layers; expected those of full attention alone"
                   : "has no parameters for types of layers, which gemma3_text needs");
  if (older && !all.has("rope_type")) all.fail("has no rope_type, without which gemma3_text has no scaling");
  const auto part = [&](const char* type) { return nested && all.has(type) ? all.part(type) : none(type); };
  return {rotary_config(c, older ? all : part("full_attention"), true, head_dim).read(theta),
          rotary_config(c, part("sliding_attention"), true, head_dim)
              .read(c.contains("rope_local_base_freq") ? c.number("rope_local_base_freq") : 1e4)};
}

}  // namespace example
#endif
