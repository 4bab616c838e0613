#include "multi_token_attention.hpp"

namespace golden::adapters {

// The same calls: each case says by an option whether it is sparse.
struct sparse_multi_token_attention : multi_token_attention {
  using op = tigon::op::multi_token_attention;
};

}  // namespace golden::adapters
