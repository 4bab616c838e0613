// How each operator is cut into tiles: margins and numbers of live tiles as measured for the chip, grids and schedules.
// Reasons: docs/lab/ascend.md.
#ifndef TIGON_BACKENDS_ASCEND_RULES_HPP
#define TIGON_BACKENDS_ASCEND_RULES_HPP

#include <tigon/backend/tiling.hpp>

namespace tigon::op {
struct geglu;
struct swiglu;
struct rms_norm;
struct fused_add_rms_norm;
struct layer_norm;
struct rope;
struct softmax;
struct cross_entropy;
struct fused_linear_cross_entropy;
struct dyt;
struct poly_norm;
struct qwen2vl_mrope;
struct sparsemax;
struct attn_res;
struct embedding;
struct group_norm;
struct llama4_rope;
struct kl_div;
struct jsd;
struct tvd;
struct distillation;
struct grpo_loss;
struct moe_gather;
struct moe_scatter;
struct mhc_coeffs;
struct mhc_pre;
struct mhc_post_res;
}  // namespace tigon::op

namespace tigon::backends {
inline namespace TIGON_ABI {
struct ascend;
}
}  // namespace tigon::backends

namespace tigon {

template <class Op, tiling::pass P>
  requires(std::same_as<Op, op::geglu> || std::same_as<Op, op::swiglu>)
struct tile_rule<Op, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {P == tiling::pass::forward ? 3 : 6}, .floor = 256};
};

template <>
struct tile_rule<op::rms_norm, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {6}, .area = 2048, .most_rows = 2048, .programs = 2};
};
template <>
struct tile_rule<op::rms_norm, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}, .area = 2048, .most_rows = 2048, .programs = 2};
};

template <>
struct tile_rule<op::fused_add_rms_norm, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}, .area = 2048, .most_rows = 2048, .programs = 2};
};
template <>
struct tile_rule<op::fused_add_rms_norm, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {12}, .area = 2048, .most_rows = 2048, .programs = 2};
};

/// area_tiles: of a block of whole rows, which needs fewer of them than a block of columns.
template <>
struct tile_rule<op::layer_norm, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{
      .margin = {85, 100}, .tiles = {8}, .floor = 128, .area_tiles = {4}, .most_rows = 8, .programs = 4};
};
template <>
struct tile_rule<op::layer_norm, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{
      .margin = {85, 100}, .tiles = {10}, .floor = 128, .area_tiles = {8}, .most_rows = 8, .programs = 2};
};

/// In halves of heads, of which a pair is one element: 3 tiles of whole heads.
template <>
struct tile_rule<op::rope, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {6}, .most_rows = 1 << 16, .order = tiling::schedule::chunked};
};

template <tiling::pass P>
struct tile_rule<op::softmax, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {3}, .most_rows = 32};
};

template <>
struct tile_rule<op::cross_entropy, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}, .order = tiling::schedule::chunked};
};
template <>
struct tile_rule<op::cross_entropy, tiling::pass::plain_forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {5, 2}, .floor = 256, .order = tiling::schedule::chunked};
};
template <>
struct tile_rule<op::cross_entropy, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}, .order = tiling::schedule::chunked};
};

/// What is left to it beside products and cross entropy: scaling, sums of columns, rounding.
template <>
struct tile_rule<op::fused_linear_cross_entropy, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}};
};

template <>
struct tile_rule<op::dyt, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {4}, .area = 2048, .most_rows = 2048};
};
template <>
struct tile_rule<op::dyt, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}, .area = 2048, .most_rows = 2048};
};

/// most_rows: the sums of a row take more room than a few columns.
template <tiling::pass P>
struct tile_rule<op::poly_norm, P, backends::ascend> {
  static constexpr tiling::rule value{.margin = {80, 100},
                                      .tiles = {P == tiling::pass::forward ? 8 : 10},
                                      .area = 2048,
                                      .most_rows = P == tiling::pass::forward ? 256 : 128};
};

/// As rope.
template <>
struct tile_rule<op::qwen2vl_mrope, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {6}, .most_rows = 1 << 16, .order = tiling::schedule::chunked};
};

template <tiling::pass P>
struct tile_rule<op::sparsemax, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {P == tiling::pass::forward ? 12 : 8}};
};

template <>
struct tile_rule<op::attn_res, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.margin = {85, 100}, .tiles = {12}};
};
template <>
struct tile_rule<op::attn_res, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.margin = {85, 100}, .tiles = {16}, .programs = 2};
};

/// Backward holds five tiles where it keeps a compensated sum; the block is that of 3.2.
template <>
struct tile_rule<op::embedding, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.margin = {85, 100}, .tiles = {32, 10}, .programs = 2};
};
template <>
struct tile_rule<op::embedding, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.margin = {85, 100}, .tiles = {5}, .programs = 2};
};

template <tiling::pass P>
struct tile_rule<op::group_norm, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}, .programs = 2};
};

/// most_rows: heads of a block.
template <>
struct tile_rule<op::llama4_rope, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {20}, .most_rows = 1 << 16};
};

/// plain: with a teacher of logarithms, and with one upstream gradient for all. most_rows: of 128 columns and more.
template <>
struct tile_rule<op::kl_div, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {6}, .most_rows = 512};
};
template <>
struct tile_rule<op::kl_div, tiling::pass::plain_forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {3}, .most_rows = 512};
};
template <>
struct tile_rule<op::kl_div, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {3}};
};
template <>
struct tile_rule<op::kl_div, tiling::pass::plain_backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {5, 2}};
};

template <tiling::pass P>
struct tile_rule<op::jsd, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}};
};
/// As jsd.
template <>
struct tile_rule<op::distillation, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}};
};

template <tiling::pass P>
struct tile_rule<op::tvd, P, backends::ascend> {
  static constexpr tiling::rule value{.margin = {80, 100}, .tiles = {5}};
};

template <>
struct tile_rule<op::grpo_loss, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {4}};
};
template <>
struct tile_rule<op::grpo_loss, tiling::pass::backward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {8}};
};

template <>
struct tile_rule<op::moe_gather, tiling::pass::forward, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {2}};
};
template <tiling::pass P>
struct tile_rule<op::moe_scatter, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {P == tiling::pass::forward ? 3 : 4}};
};

/// Backward holds six tiles where it makes gradients of parameters, seven where it adds up dx.
template <tiling::pass P>
struct tile_rule<op::mhc_coeffs, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {P == tiling::pass::forward ? 4 : 8}, .area = 2048, .most_rows = 64};
};
template <tiling::pass P>
struct tile_rule<op::mhc_pre, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {P == tiling::pass::forward ? 7 : 8}};
};
/// Backward: 2 (n + 4) with four streams.
template <tiling::pass P>
struct tile_rule<op::mhc_post_res, P, backends::ascend> {
  static constexpr tiling::rule value{.tiles = {P == tiling::pass::forward ? 7 : 16}};
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_RULES_HPP
