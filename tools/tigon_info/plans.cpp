// The shapes are those of the operators: every door is named once, for a backend that notes which plans its loops read.
// Nothing of it is called, so that nothing of it is compiled to instructions.
#include "plans.hpp"

#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "noted_plans.hpp"
// What follows reads plans.
#include <tigon/tigon.hpp>

// clang-format off
#define TIGON_INFO_DOORS(X)                                                                    \
  X(embedding_forward, x, ids, y, {}, ctx)                                                     \
  X(embedding_backward, y, ids, x, {}, ctx)                                                    \
  X(rms_norm_forward, x, w, y, rstd, {}, ctx)                                                  \
  X(rms_norm_backward, dy, x, w, rstd, dx, dw, {}, ctx)                                        \
  X(fused_add_rms_norm_forward, x, r, w, y, dx, rstd, {}, ctx)                                 \
  X(fused_add_rms_norm_backward, dy, r, x, w, rstd, tigon::fused_add_rms_norm_gradients{dx, dw}, {}, ctx)     \
  X(modulated_rms_norm_forward, x, w, r, r, y, rstd, {}, ctx)                                  \
  X(modulated_rms_norm_backward, dy, x, w, r, rstd, tigon::modulated_rms_norm_gradients{dx, dw, y, r}, {}, ctx)\
  X(layer_norm_forward, x, w, w, y, mean, rstd, {}, ctx)                                       \
  X(layer_norm_backward, dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db}, {}, ctx)                    \
  X(group_norm_forward, x, w, w, y, mean, rstd, {}, ctx)                                       \
  X(group_norm_backward, dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db}, {}, ctx)                    \
  X(poly_norm_forward, x, w, w, y, rstd, {}, ctx)                                              \
  X(poly_norm_backward, dy, x, w, rstd, tigon::norm_gradients{dx, dw, db}, {}, ctx)                           \
  X(dyt_forward, x, w, w, w, y, {}, ctx)                                                       \
  X(dyt_backward, dy, x, w, w, tigon::dyt_gradients{dx, dw, db, db}, {}, ctx)                                 \
  X(swiglu_forward, x, r, y, {}, ctx)                                                          \
  X(swiglu_backward, dy, x, r, dx, y, {}, ctx)                                                 \
  X(swiglu_fused_forward, x, y, tigon::gate_layout::interleaved, {}, ctx)                      \
  X(swiglu_fused_backward, dy, x, dx, tigon::gate_layout::interleaved, {}, ctx)                \
  X(geglu_forward, x, r, y, {}, ctx)                                                           \
  X(geglu_backward, dy, x, r, dx, y, {}, ctx)                                                  \
  X(relu_squared_forward, x, y, {}, ctx)                                                       \
  X(relu_squared_backward, dy, x, dx, {}, ctx)                                                 \
  X(moe_router_forward, x, w, chosen, y, {}, ctx)                                              \
  X(moe_router_backward, y, x, chosen, dx, {}, ctx)                                            \
  X(rope_forward, q, q, x, x, q, q, {}, ctx)                                                   \
  X(rope_backward, q, q, x, x, q, q, {}, ctx)                                                  \
  X(llama4_rope_forward, q, q, x, q, q, {}, ctx)                                               \
  X(llama4_rope_backward, q, q, x, q, q, {}, ctx)                                              \
  X(qwen2vl_mrope_forward, q, q, x, x, q, q, {.sections = {}}, ctx)                            \
  X(qwen2vl_mrope_backward, q, q, x, x, q, q, {.sections = {}}, ctx)                           \
  X(qk_norm_rope_forward, {q, q}, tigon::qk_norm_weights{w, w}, tigon::rope_tables{x, x}, tigon::qk_heads{q, q}, {}, ctx) \
  X(qk_norm_rope_backward, {q, q}, {q, q}, tigon::qk_norm_weights{w, w}, tigon::rope_tables{x, x},                    \
    tigon::qk_norm_rope_gradients{q, q, dw, db}, {}, ctx)                                      \
  X(softmax_forward, x, y, {}, ctx)                                                            \
  X(softmax_backward, dy, y, dx, {}, ctx)                                                      \
  X(sparsemax_forward, x, y, {}, ctx)                                                          \
  X(sparsemax_backward, dy, y, dx, {}, ctx)                                                    \
  X(multi_token_attention_forward, q, q, tigon::absent, q, q, {}, ctx)                         \
  X(multi_token_attention_backward, q, q, q, tigon::multi_token_attention_gradients{q, q, {}}, {}, ctx)       \
  X(attn_res_forward, blocks, w, w, y, rstd, mean, {}, ctx)                                    \
  X(attn_res_backward, dy, blocks, w, w, {rstd, mean}, tigon::attn_res_gradients{blocks, dw, db}, {}, ctx)    \
  X(mhc_pre_forward, x, y, dx, ctx)                                                            \
  X(mhc_pre_backward, dy, x, r, tigon::mhc_pre_gradients<float>{dx, y}, {}, ctx)               \
  X(mhc_post_res_forward, x, r, y, y, dx, ctx)                                                 \
  X(mhc_post_res_backward, dy, x, r, y, y, tigon::mhc_post_res_gradients<float>{dx, x, x, x}, {}, ctx)        \
  X(mhc_coeffs_forward, x, tigon::mhc_weights{r, w, w}, {y, y, y}, {y, rstd, mean}, {}, ctx)  \
  X(mhc_coeffs_backward, {y, y, y}, x, tigon::mhc_weights{r, w, w}, {y, rstd, mean},          \
    tigon::mhc_coeffs_gradients{dx, r, dw, db}, {}, ctx)                                       \
  X(neighborhood_attention_forward, q, q, q, q, {x, loss}, {}, ctx)                            \
  X(neighborhood_attention_backward, q, q, q, q, {x, loss}, tigon::neighborhood_attention_gradients{q, q, q}, {}, ctx) \
  X(cross_entropy_forward, x, ids, loss, dx, {}, w, {}, ctx)                                   \
  X(cross_entropy_backward, y, loss, dx, ctx)                                                  \
  X(cross_entropy_tvd_forward, x, ids, r, {loss}, dx, {}, w, ctx)                              \
  X(cross_entropy_jsd_forward, x, ids, r, {loss}, dx, {}, w, ctx)                              \
  X(jsd_forward, x, r, loss, dx, {}, ids, ctx)                                                 \
  X(jsd_backward, y, loss, dx, ctx)                                                            \
  X(kl_div_forward, x, r, loss, dx, {}, ctx)                                                   \
  X(kl_div_backward, y, loss, dx, {}, ctx)                                                     \
  X(tvd_forward, x, r, loss, dx, {}, ids, ctx)                                                 \
  X(tvd_backward, x, r, loss, dx, {}, tigon::absent, ctx)                                      \
  X(selective_log_softmax_forward, x, targets, r, {}, tigon::absent, lse, ctx)                 \
  X(selective_log_softmax_backward, x, targets, lse, r, dx, {}, tigon::absent, ctx)            \
  X(grpo_loss_forward, x, {}, loss, lse, {}, {}, ctx)                                          \
  X(grpo_loss_backward, x, {}, lse, loss, dx, {}, ctx)                                         \
  X(vocab_parallel_cross_entropy_forward, alone, x, {}, ids, {loss, mean, rstd}, {}, ctx)      \
  X(vocab_parallel_cross_entropy_backward, x, {}, ids, loss, {mean, rstd}, dx, {}, ctx)        \
  X(adamw, list, {}, ctx)
// clang-format on

namespace {

enum class door {
#define TIGON_INFO_DOOR(name, ...) name,
  TIGON_INFO_DOORS(TIGON_INFO_DOOR)
#undef TIGON_INFO_DOOR
};
constexpr const char* door_names[] = {
#define TIGON_INFO_DOOR(name, ...) #name,
    TIGON_INFO_DOORS(TIGON_INFO_DOOR)
#undef TIGON_INFO_DOOR
};

template <door Door>
struct noting : tigon::default_backend {
  using parent = tigon::default_backend;
  static constexpr tigon::backend_info info{parent::info.name, parent::info.devices};
  using overrides = tigon::op_list<>;
  static constexpr int notes_plans_of = static_cast<int>(Door);
};

std::string counted(std::size_t n, const char* one, const char* many) {
  return n == 0 ? "" : ", " + std::to_string(n) + ' ' + (n == 1 ? one : many);
}

/// "map      2 matrices, 1 vector"
std::string of_shape(const tigon::row_shape& s) {
  const bool program = s.pass == tigon::row_pass::program;
  std::string text = counted(s.matrices, "matrix", "matrices") + counted(s.vectors, "vector", "vectors") +
                     counted(s.others, "other", "others");
  text += program ? counted(s.sums, "gradient", "gradients") : counted(s.sums, "sum", "sums");
  const char* const name = program ? "program" : s.pass == tigon::row_pass::map ? "map" : "reduce";
  if (program && s.outputs == 0) text += ", a function of a row";
  if (text.empty()) text = ", nothing";
  return std::string(name) + std::string(9 - std::strlen(name), ' ') + text.substr(2);
}

std::string of_plan(tigon::core cpu, const tigon::row_shape& s) {
  std::string text;
  const auto add = [&](bool holds, const std::string& words) { text += holds ? ", " + words : ""; };
  if (s.pass == tigon::row_pass::reduce) {
    const tigon::reduce_plan p = plan_reduce(cpu, s);
    add(p.prefetches, "prefetches the next rows");
    add(p.may_prefetch, "prefetches the next rows if they fit");
    add(p.prefetches_far, "prefetches 2 KiB ahead");
  } else if (s.pass == tigon::row_pass::map) {
    const tigon::map_plan p = plan_map(cpu, s);
    add(p.in_order, "loads in order");
    add(p.backwards, "from the end of a reduced row");
    add(p.serpentine, "every other reduced row from its end");
    add(p.leaves_contiguous && s.matrices != 0, "contiguous rows are left to the hardware");
  } else {
    const tigon::program_plan p = plan_program(cpu, s);
    add(p.order == tigon::row_order::lookahead, "reduces later rows while it maps");
    add(true, std::to_string(p.rows) + (p.rows == 1 ? " row" : " rows") + " at a time");
    add(p.prefetches, "both passes prefetch");
    add(p.reduce_writes && s.outputs > 1, "the reduction writes what it can");
    const bool groups = s.sums != 0 || s.reduction == tigon::reduction_kind::declared;
    add(groups && !p.prefetches, "groups of up to " + std::to_string(p.group_rows) + " rows and " +
                                     std::to_string(p.group_elements) + " elements");
    add(p.column_blocks, "blocks of columns");
  }
  return text.empty() ? "plain" : text.substr(2);
}

}  // namespace

// Inline and never called: see above.
inline void name_every_door(tigon::matrix_view<float> x, tigon::heads_view<float> q, tigon::blocks_view<float> blocks,
                            std::span<float> w, std::span<const std::int32_t> ids,
                            tigon::matrix_view<const std::int32_t> targets, std::span<tigon::lse_parts<float>> lse,
                            tigon::matrix_view<std::int32_t> chosen, tigon::comm::serial& alone,
                            std::span<const tigon::adamw_parameter<float>> list, tigon::context& ctx) {
  const auto r = x, y = x, dx = x, dy = x;
  const auto dw = w, db = w, mean = w, rstd = w, loss = w;
#define TIGON_INFO_DOOR(name, ...) tigon::name<noting<door::name>>(__VA_ARGS__);
  TIGON_INFO_DOORS(TIGON_INFO_DOOR)
#undef TIGON_INFO_DOOR
}

void print_plans() {
  using B = tigon::default_backend;
  std::printf("row kernels in f32 on core %s, %zu lanes\n", B::row.cpu.name.data(),
              tigon::simd::vec<typename B::engine, float>::size);
  std::set<std::string> lines[std::size(door_names)];
  for (const auto& [by, shape] : noted_shapes()) {
    std::string line = of_shape(shape);
    line.resize(std::max<std::size_t>(line.size() + 2, 52), ' ');
    lines[by].insert(line + of_plan(B::row.cpu, shape));
  }
  for (std::size_t d = 0; d < std::size(door_names); ++d) {
    std::printf("  %s\n", door_names[d]);
    for (const std::string& line : lines[d]) std::printf("    %s\n", line.c_str());
  }
}
