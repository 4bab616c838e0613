// expect: tigon: attention_forward does not take these arguments; expected views
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/attention.hpp>
#include <vector>

void use(std::vector<float>& q, std::vector<float>& k, std::vector<float>& v, std::vector<float>& o,
         std::vector<float>& lse) {
#ifdef SHOULD_NOT_COMPILE
  const auto heads = [](std::vector<float>& t) -> std::vector<float>& { return t; };
#else
  const auto heads = [](std::vector<float>& t) { return tigon::heads_view<float>::of_heads(t.data(), 1, 2, 4, 8); };
#endif
  tigon::attention_forward(heads(q), heads(k), heads(v), heads(o), lse);
}
