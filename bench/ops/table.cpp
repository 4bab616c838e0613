#include "ops/table.hpp"

namespace tigon_bench {

const std::vector<op_entry>& ops() {
  static const std::vector<op_entry> all{stream_copy(), rms_norm()};
  return all;
}

}  // namespace tigon_bench
