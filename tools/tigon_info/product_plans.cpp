// How operators that are made of products cut their work, for one layer and head of a model.
#include <tigon/tigon.hpp>

#include <cstdio>
#include <string>
#include <string_view>

#include "plans.hpp"

namespace {

using B = tigon::default_backend;
using std::size_t;

constexpr size_t tokens = 4096, hidden = 4096, intermediate = 14336, vocab = 128256;  // llama_3_8b
constexpr size_t experts = 8, choices = 2;
using tile = tigon::int2::tile_shape<tigon::simd::vec<B::engine, float>::size>;

void print_cut(const char* types, const tigon::gemm_cut& cut) {
  std::printf("    %-10s tiles of %zu x %zu sums, blocks of %zu terms", types, cut.tile_rows, cut.tile_cols, cut.depth);
  if (cut.packed_depth != 0)
    std::printf(", %zu %s packed for all tasks %zu terms deep, tasks of %zu x %zu", cut.shared,
                cut.shares_a ? "rows" : "columns", cut.packed_depth, cut.shares_a ? cut.segment : cut.part,
                cut.shares_a ? cut.part : cut.segment);
  std::puts("");
}

template <class T>
void print_product(const char* types) {
  using K = tigon::kernel_for<tigon::op::gemm, B>;
  if constexpr (requires { K::template cut_of<B, T, T, float>(tokens, vocab, hidden); }) {
    constexpr tigon::gemm_cut cut = K::template cut_of<B, T, T, float>(tokens, vocab, hidden);
    print_cut(types, cut);
  } else {
    std::printf("    %-10s as its library cuts it\n", types);
  }
}

/// Rows of logits of a chunk, of `heads` layers, within the bytes of B::chunk or with the least rows that it names.
template <class A>
constexpr size_t rows_of_chunk(size_t heads, bool least) {
  const tigon::chunk_tuning by = least ? B::chunk : tigon::detail::chunk_within_bytes<B>();
  return tigon::detail::chunk_rows(by, heads * sizeof(A), tokens, hidden, vocab);
}
void print_chunk(std::string_view op, size_t heads = 1, bool least = false) {
  const size_t f32 = rows_of_chunk<float>(heads, least), f64 = rows_of_chunk<double>(heads, least);
  std::printf("  %s\n    chunks of %zu rows of logits, in f64 %zu", op.data(), f32, f64);
  if (least && tigon::detail::streams<B>(vocab)) std::printf(", in tiles of %zu columns", B::chunk.cols);
  std::puts("");
}

template <class T>
void print_mlp(const char* type) {
  using A = tigon::accumulator_t<T>;
  if constexpr (std::same_as<T, A>) {
    std::printf("    %-10s forward and backward whole", type);
  } else {
    constexpr tigon::detail::mlp_block block = tigon::detail::largest_block<B, A>(tokens, intermediate);
    std::printf("    %-10s blocks of %zu x %zu sums", type, block.rows, block.cols);
  }
  std::printf("; inference by %zu tokens\n", tigon::detail::inference_rows<B, T>(tokens, intermediate));
}

}  // namespace

void print_product_plans() {
  std::printf("operators with products, %zu tokens, hidden %zu, intermediate %zu, vocabulary %zu\n", tokens, hidden,
              intermediate, vocab);
  std::puts("  gemm");
  print_product<float>("f32");
  print_product<tigon::bfloat16>("bf16");
  std::printf("  attention\n    tiles of %zu rows by %zu keys; keys are packed for %zu tiles at a time\n",
              B::attention.query_rows, B::attention.key_block, B::attention.query_tiles);
  std::puts("  neighborhood_attention_layer\n    as gemm, layer_norm and neighborhood_attention");
  std::printf("  matmul_int8_int2\n    tiles of %zu x %zu sums\n", tile::rows, tile::cols);
  std::puts("  mlp");
  print_mlp<float>("f32");
  print_mlp<tigon::bfloat16>("bf16");
  std::printf("  tiled_mlp\n    shards of %zu tokens, each as mlp\n",
              tigon::detail::shard_rows(tokens, hidden, std::nullopt));
  std::puts("  moe_routing\n    one pass over the choices, in one task");
  for (const std::string_view op : {tigon::op::moe_gather::name, tigon::op::moe_scatter::name})
    std::printf("  %s\n    rows of a chunk of moe or expert_parallel_moe\n", op.data());
  const size_t pairs = tigon::detail::chunk_rows<B, float>({tokens, choices, experts, hidden, intermediate});
  for (const std::string_view op : {tigon::op::moe::name, tigon::op::expert_parallel_moe::name})
    std::printf("  %s\n    chunks of %zu choices of one of %zu experts, %zu choices a token\n", op.data(), pairs,
                experts, choices);
  print_chunk(tigon::op::fused_linear_cross_entropy::name, 1, true);
  print_chunk(tigon::op::fused_linear_scaled_cross_entropy::name);
  print_chunk(tigon::op::scaled_cross_entropy::name);                                // of that loss's logits
  print_chunk(tigon::op::vocab_parallel_fused_linear_cross_entropy::name, 1, true);  // of one rank
  print_chunk(tigon::op::vocab_parallel_fused_linear_scaled_cross_entropy::name);
  print_chunk(tigon::op::selective_logprob::name);
  print_chunk(tigon::op::fused_linear_grpo::name);
  for (const std::string_view op :
       {tigon::op::fused_linear_preference::name, tigon::op::fused_linear_dpo::name, tigon::op::fused_linear_orpo::name,
        tigon::op::fused_linear_cpo::name, tigon::op::fused_linear_simpo::name,
        tigon::op::fused_linear_unpaired_preference::name, tigon::op::fused_linear_kto::name})
    print_chunk(op);
  for (const std::string_view op :
       {tigon::op::distillation::name, tigon::op::fused_linear_distillation::name, tigon::op::fused_linear_jsd::name,
        tigon::op::fused_linear_jsd_distillation::name, tigon::op::fused_linear_cosine_distillation::name})
    print_chunk(op, 2);
  print_chunk(tigon::op::fused_linear_kl_div::name);
}
