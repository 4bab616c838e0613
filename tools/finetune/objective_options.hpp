// What may be learned beside the next token: preferences between answers, and a teacher's probabilities.
#ifndef EXAMPLE_FINETUNE_OBJECTIVE_OPTIONS_HPP
#define EXAMPLE_FINETUNE_OBJECTIVE_OPTIONS_HPP

#include <optional>
#include <string>
#include <utility>

namespace example {

/// Losses on a chosen and a rejected answer to one prompt: those of fused_linear_dpo.hpp, and three without a
/// reference. kto: on single answers that are liked or not.
enum class preference_loss {
  none,
  sigmoid,
  hinge,
  ipo,
  exo_pair,
  nca_pair,
  robust,
  bco_pair,
  sppo_hard,
  apo_zero,
  apo_down,
  discopop,
  simpo,
  cpo,
  orpo,
  kto
};

inline constexpr std::pair<const char*, preference_loss> preference_names[] = {
    {"dpo", preference_loss::sigmoid},
    {"hinge", preference_loss::hinge},
    {"ipo", preference_loss::ipo},
    {"exo_pair", preference_loss::exo_pair},
    {"nca_pair", preference_loss::nca_pair},
    {"robust", preference_loss::robust},
    {"bco_pair", preference_loss::bco_pair},
    {"sppo_hard", preference_loss::sppo_hard},
    {"apo_zero", preference_loss::apo_zero},
    {"apo_down", preference_loss::apo_down},
    {"discopop", preference_loss::discopop},
    {"simpo", preference_loss::simpo},
    {"cpo", preference_loss::cpo},
    {"orpo", preference_loss::orpo},
    {"kto", preference_loss::kto}};

struct preference_options {
  preference_loss loss = preference_loss::none;
  double beta = 0.1;
  double gamma = 0.5;  ///< SimPO's margin
  double label_smoothing = 0;
  std::optional<double> nll;                            ///< weight of the cross entropy of the chosen answers
  double desirable_weight = 1, undesirable_weight = 1;  ///< of kto

  bool paired() const { return loss != preference_loss::none && loss != preference_loss::kto; }

  bool has_reference() const {
    return loss != preference_loss::none && loss != preference_loss::simpo && loss != preference_loss::cpo &&
           loss != preference_loss::orpo;
  }
  /// By default as their papers have it: 1 for CPO and ORPO, else 0.
  double nll_weight() const {
    return nll.value_or(loss == preference_loss::cpo || loss == preference_loss::orpo ? 1 : 0);
  }
};

/// hard * cross entropy + (1 - hard) * temperature^2 * divergence (Hinton, Vinyals and Dean, 2015).
struct distillation_options {
  std::string teacher;  ///< its folder; empty: none
  double beta = 0;      ///< 0: KL(teacher || student), 1: KL(student || teacher), between: Jensen-Shannon
  double temperature = 1;
  double hard = 0.5;

  double soft() const { return (1 - hard) * temperature * temperature; }
};

}  // namespace example
#endif
