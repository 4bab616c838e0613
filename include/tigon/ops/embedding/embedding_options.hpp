// The tag and options of embedding.
#ifndef TIGON_OPS_EMBEDDING_EMBEDDING_OPTIONS_HPP
#define TIGON_OPS_EMBEDDING_EMBEDDING_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct embedding {
  static constexpr std::string_view name = "embedding";
};
}  // namespace op

/// The contract is in ops/embedding.hpp.
struct embedding_options {
  std::ptrdiff_t padding_index = -1;  ///< a token whose row is zero and gets no gradient; negative: none
  gradient dweight = gradient::overwrite;
};

}  // namespace tigon

#endif  // TIGON_OPS_EMBEDDING_EMBEDDING_OPTIONS_HPP
