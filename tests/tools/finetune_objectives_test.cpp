// Losses on answers and distillation, against what fixtures/finetune/make_objectives.py computed in f64.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/finetune/data.hpp"
#include "../../tools/finetune/objective.hpp"
#include "finetune_fixtures.hpp"

namespace {

using namespace example;
using nlohmann::json;
using ids_t = std::vector<std::int32_t>;

/// A case, with all that is drawn from its names.
class finetune_objectives : public testing::Test {
 protected:
  explicit finetune_objectives(const std::string& name = "llama")
      : of_(name),
        a_(read_architecture(config_reader::of_folder(of_.folder))),
        layout_(a_),
        weights_(of_.weights(a_, layout_)),
        expected_(json::parse(finetune::read_file(of_.folder.parent_path() / "objectives.json"))),
        folder_(std::filesystem::temp_directory_path() / ("tigon-finetune-objectives-" + std::to_string(getpid()))),
        ctx_(pool_, workspace_) {
    std::filesystem::remove_all(folder_);
  }
  ~finetune_objectives() override { std::filesystem::remove_all(folder_); }

  /// A folder with the architecture of a case and weights of other names.
  std::filesystem::path saved(const std::string& name, const std::string& before) const {
    const finetune_case of(name);
    const architecture a = read_architecture(config_reader::of_folder(of.folder));
    const weight_layout layout(a);
    const std::filesystem::path folder = folder_ / name;
    std::filesystem::create_directories(folder);
    save_model(of.folder, folder, layout, of.weights(a, layout, before), "f32");
    return folder;
  }

  struct result {
    double loss = 0;
    std::vector<float> gradients;
    preference_report report;
  };
  /// Of all units of the data, so many a pass.
  result run(const training_data& data, std::size_t units, const preference_options& preference,
             const distillation_options& distillation, bool recompute = false) {
    causal_model<float> model(a_, layout_, none_, {most_tokens, recompute}, ctx_);
    objective<float> of(preference, distillation, a_, most_tokens, ctx_);
    result out;
    out.gradients.assign(layout_.total, 5.0f);
    auto mode = tigon::gradient::overwrite;
    double terms = 0, alone = 0;
    for (const training_pass& pass : data.passes(units)) {
      out.loss += of(model, {weights_, weights_}, {out.gradients, {}, mode}, pass);
      mode = tigon::gradient::accumulate;
      terms += pass.terms();
      alone += of(model, {weights_, weights_}, {}, pass);
    }
    EXPECT_NEAR(alone, out.loss, 1e-6 * std::abs(out.loss));
    out.loss /= terms, out.report = of.take_report();
    for (float& g : out.gradients) g /= static_cast<float>(terms);
    return out;
  }

  void expect(const result& found, const json& wanted) const {
    SCOPED_TRACE(wanted.dump());
    const double loss = wanted["loss"], norm = wanted["norm"];
    EXPECT_NEAR(found.loss, loss, 5e-6 * loss);
    double square = 0;
    for (const weight_tensor& t : layout_.tensors)
      for (const float g : weight_layout::of(std::span(found.gradients), t)) square += std::pow(g, 2);
    EXPECT_NEAR(std::sqrt(square), norm, 2e-5 * norm);
    for (std::size_t k = 0; k < 3; ++k) {
      double along = 0;
      for (const weight_tensor& t : layout_.tensors) {
        const auto g = weight_layout::of(std::span(found.gradients), t);
        const std::vector<double> direction = of_.draw(t.name + ".direction" + std::to_string(k), t.size());
        for (std::size_t i = 0; i < g.size(); ++i) along += direction[i] * static_cast<double>(g[i]);
      }
      EXPECT_NEAR(along, wanted["slopes"][k].get<double>(), 2e-5 * norm) << k;
    }
  }

  /// The pairs of the file, with the reference's log-probabilities.
  training_data pairs() {
    std::vector<sample> samples;
    for (const json& pair : expected_["preferences"]["pairs"])
      for (const char* const answer : {"chosen", "rejected"}) {
        ids_t ids = pair["prompt"];
        const ids_t end = pair[answer];
        const std::size_t masked = ids.size();
        ids.insert(ids.end(), end.begin(), end.end());
        samples.push_back(finetune::sample_of(ids, masked));
      }
    return with_reference({std::move(samples), true, most_tokens});
  }
  /// The answers with labels of the file, in groups of as many as a pass takes.
  training_data labelled(std::size_t group) {
    std::vector<finetune::labelled_answer> answers;
    std::vector<std::uint8_t> labels;
    for (const json& one : expected_["labelled"]["answers"]) {
      answers.push_back({one["prompt"], one["completion"], one["label"]});
      labels.push_back(one["label"].get<bool>());
    }
    return with_reference({finetune::with_others_answers(answers, group, most_tokens), true, most_tokens, labels});
  }
  training_data with_reference(training_data out) {
    frozen_model<float> reference(saved(of_.folder.filename(), "reference."), most_tokens, ctx_);
    model_operators<float> doors(ctx_, nullptr);
    out.set_reference(
        log_probabilities<float>(doors, out.samples(), {20, a_.logit_softcap},
                                 [&](const packed_documents& documents) { return reference.answer(documents); }));
    return out;
  }
  static preference_options options_of(const json& of) {
    preference_options out;
    for (const auto& [name, loss] : preference_names)
      if (of["name"] == name) out.loss = loss;
    out.beta = of["beta"], out.gamma = of.value("gamma", out.gamma);
    out.label_smoothing = of.value("label_smoothing", out.label_smoothing);
    if (of.contains("nll")) out.nll = of["nll"].get<double>();
    out.desirable_weight = of.value("desirable_weight", 1.0),
    out.undesirable_weight = of.value("undesirable_weight", 1.0);
    return out;
  }

  /// From a teacher of another case.
  void expect_distillation(const std::string& teacher) {
    std::vector<sample> samples;
    for (const json& document : expected_["distillation"]["documents"])
      samples.push_back(finetune::sample_of(document.get<ids_t>()));
    const training_data data(std::move(samples), false, most_tokens);
    distillation_options of;
    of.teacher = saved(teacher, "teacher.").string();
    for (const json& wanted : expected_["distillation"]["losses"]) {
      const std::string divergence = wanted["divergence"];
      of.beta = divergence == "kl" ? 0 : divergence == "jsd" ? 0.5 : 1;
      of.temperature = wanted["temperature"], of.hard = wanted["hard"];
      expect(run(data, 1, {}, of), wanted);
    }
    EXPECT_EQ(expected_["distillation"]["losses"].size(), 4u);
  }

  static constexpr std::size_t most_tokens = 96;
  finetune_case of_;
  architecture a_;
  weight_layout layout_;
  lora_layout none_;
  std::vector<float> weights_;
  json expected_;
  std::filesystem::path folder_;
  tigon::thread_pool pool_{2};
  tigon::workspace workspace_;
  tigon::context ctx_;
};

TEST_F(finetune_objectives, preferences_are_those_of_pytorch) {
  const training_data data = pairs();
  std::size_t seen = 0;
  for (const json& wanted : expected_["preferences"]["losses"]) {
    expect(run(data, 3, options_of(wanted), {}), wanted);
    ++seen;
  }
  EXPECT_EQ(seen, 16u);
}

TEST_F(finetune_objectives, pairs_may_come_one_by_one) {
  const training_data data = pairs();
  const json& wanted = expected_["preferences"]["losses"][0];
  const result apart = run(data, 1, options_of(wanted), {}, true), together = run(data, 3, options_of(wanted), {});
  expect(apart, wanted);
  // Each pass is computed twice: with its gradients, and without.
  EXPECT_EQ(together.report.pairs, 6);
  EXPECT_EQ(apart.report.pairs, 6);
  EXPECT_EQ(apart.report.won, together.report.won);
  EXPECT_NEAR(apart.report.margin, together.report.margin, 1e-4);
}

TEST_F(finetune_objectives, ranks_share_what_the_reference_says) {
  const training_data data = pairs();
  frozen_model<float> reference(saved("llama", "reference."), most_tokens, ctx_);
  model_operators<float> doors(ctx_, nullptr);
  const auto part = [&](share_of_windows share) {
    std::size_t asked = 0;
    const auto answer = [&](const packed_documents& documents) {
      asked += documents.ids.size();
      return reference.answer(documents);
    };
    return std::pair(log_probabilities<float>(doors, data.samples(), {20}, answer, share), asked);
  };
  const auto [whole, all] = part({});
  const auto [first, of_first] = part({0, 2});
  const auto [second, of_second] = part({1, 2});
  EXPECT_EQ(of_first + of_second, all);
  EXPECT_GT(std::min(of_first, of_second), all / 4);
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (std::size_t k = 0; k < whole[i].size(); ++k)
      EXPECT_EQ(first[i][k] + second[i][k], whole[i][k]) << i << ' ' << k;
}

TEST_F(finetune_objectives, kto_is_that_of_trl) {
  const json& of = expected_["labelled"];
  const training_data data = labelled(2);
  double kl = 0, margin = 0, won = 0;
  const auto& answers = of["answers"];
  for (std::size_t i = 0; i < answers.size(); ++i) {
    kl += of["kl"][i / 2].get<double>(), margin += of["margins"][i].get<double>();
    won += of["margins"][i].get<double>() > 0;
  }
  for (const json& wanted : of["losses"]) {
    const result found = run(data, 2, options_of(wanted), {});
    expect(found, wanted);
    // Each pass is computed twice: with its gradients, and without.
    EXPECT_EQ(found.report.pairs, 2 * static_cast<double>(answers.size()));
    EXPECT_EQ(found.report.won, 2 * won);
    EXPECT_NEAR(found.report.margin, 2 * margin, 1e-4);
    EXPECT_NEAR(found.report.kl, 2 * kl, 1e-4);
  }
  EXPECT_EQ(of["losses"].size(), 2u);
}

/// Logits that are capped: sections of the same names, below another.
class finetune_objectives_capped : public finetune_objectives {
 protected:
  finetune_objectives_capped() : finetune_objectives("gemma2") { expected_ = json(expected_["capped"]); }
};

TEST_F(finetune_objectives_capped, preferences_are_those_of_pytorch) {
  ASSERT_GT(a_.logit_softcap, 0);
  const training_data data = pairs();
  for (const json& wanted : expected_["preferences"]["losses"]) expect(run(data, 3, options_of(wanted), {}), wanted);
  EXPECT_EQ(expected_["preferences"]["losses"].size(), 7u);
}

TEST_F(finetune_objectives_capped, kto_is_that_of_trl) {
  const training_data data = labelled(2);
  for (const json& wanted : expected_["labelled"]["losses"]) expect(run(data, 2, options_of(wanted), {}), wanted);
  EXPECT_EQ(expected_["labelled"]["losses"].size(), 2u);
}

TEST_F(finetune_objectives, distillation_is_that_of_pytorch) { expect_distillation("qwen3"); }

TEST_F(finetune_objectives_capped, distillation_is_that_of_pytorch) { expect_distillation("gemma2"); }

TEST_F(finetune_objectives, what_does_not_fit_is_refused) {
  const auto refusal = [](const auto& fn) -> std::string {
    try {
      fn();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing";
  };
  distillation_options of;
  of.teacher = saved("qwen3", "").string();
  architecture larger = a_;
  larger.vocab = 97;
  EXPECT_NE(
      refusal([&] { objective<float>({}, of, larger, 8, ctx_); }).find("a vocabulary of 96, and the model one of 97"),
      std::string::npos);
}

}  // namespace
