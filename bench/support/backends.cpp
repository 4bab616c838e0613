#include "support/backends.hpp"

#include "support/machine.hpp"

namespace tigon_bench {
namespace {

template <class... B>
std::vector<backend_description> describe(backend_list<B...>) {
  return {{std::string(B::info.name), std::string(B::engine::name) + " lanes, target " + std::string(B::engine::target),
           B::engine::template lanes<float>::size}...};
}

}  // namespace

std::vector<backend_description> describe_backends() { return describe(all_backends{}); }

}  // namespace tigon_bench
