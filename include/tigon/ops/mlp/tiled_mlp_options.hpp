// The tag and options of tiled_mlp.
#ifndef TIGON_OPS_MLP_TILED_MLP_OPTIONS_HPP
#define TIGON_OPS_MLP_TILED_MLP_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/mlp/mlp_options.hpp>

#include <optional>

namespace tigon {

namespace op {
struct tiled_mlp {
  static constexpr std::string_view name = "tiled_mlp";
};
}  // namespace op

/// The contract is in ops/tiled_mlp.hpp.
template <class Gate = mlp_gate>
struct tiled_mlp_options_for {
  mlp_options_for<Gate> mlp = {};
  std::optional<std::size_t> shards = {};  ///< absent: ceil(tokens / hidden)
};
using tiled_mlp_options = tiled_mlp_options_for<>;

}  // namespace tigon

#endif  // TIGON_OPS_MLP_TILED_MLP_OPTIONS_HPP
