// Under mpirun: what MPI's ranks compute has the bits of ranks that are threads, and a fault of one is the error of
// all.
#include <gtest/gtest.h>

#include <tigon/comm/mpi.hpp>
#include <tigon/comm/threads.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>
#include <tigon/ops/expert_parallel_moe.hpp>

#include <climits>
#include <numeric>
#include <string>
#include <vector>

#include "support/guarded.hpp"
#include "support/logit_loss.hpp"
#include "support/moe_problem.hpp"
#include "support/problem.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

// Data types that are alive, counted in the place of MPI's own functions.
static int datatypes = 0;
extern "C" {
int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype* made) {
  ++datatypes;
  return PMPI_Type_contiguous(count, old, made);
}
int MPI_Type_create_resized(MPI_Datatype old, MPI_Aint lower, MPI_Aint extent, MPI_Datatype* made) {
  ++datatypes;
  return PMPI_Type_create_resized(old, lower, extent, made);
}
int MPI_Type_free(MPI_Datatype* type) {
  --datatypes;
  return PMPI_Type_free(type);
}
}

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::communicator_ref, tigon::error_code;
using tigon::comm::mpi, tigon::comm::threads;
using options = tigon::vocab_parallel_cross_entropy_options;

static_assert(tigon::communicator<mpi>);

const mpi& world() {
  static const mpi c(MPI_COMM_WORLD);
  return c;
}

constexpr std::size_t rows = 6, vocab = 515;

/// Rank r of so many: forward and backward of its part, which is uneven and, of more than two ranks, empty for one.
template <class T>
std::vector<std::byte> bits_of_rank(communicator_ref c, options opt) {
  using A = tigon::accumulator_t<T>;
  const std::size_t r = c.rank(), ranks = c.size(), hole = ranks > 2 ? 1 : ranks;
  const auto end = [&](std::size_t rank) {
    return rank == 0 ? 0 : rank == ranks ? vocab : 100 + (vocab - 200) * (rank - 1 + (rank <= hole ? 1 : 0)) / ranks;
  };
  const std::size_t first = end(r), cols = end(r + 1) - first;
  const guarded_matrix<T> all = random_matrix<T>({rows, vocab}, 1, guard::behind, {0, 3});
  guarded_matrix<T> logits(rows, cols), dlogits(rows, cols);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) logits(i, j) = all(i, first + j);
  const auto target = random_labels(rows, vocab, opt.ignore_index, 2);
  const auto upstream = random_vector<A>(rows, 3);
  guarded<A> loss(rows), top(rows), rest(rows);
  const tigon::vocab_shard shard{first, vocab};
  tigon::vocab_parallel_cross_entropy_forward(c, logits.view(), shard, target, {loss, top, rest}, opt);
  tigon::vocab_parallel_cross_entropy_backward(logits, shard, target, upstream, {top, rest}, dlogits.view(), opt);
  return bits_of(loss, top, rest, dlogits);
}

template <class T>
void same_bits(options opt) {
  const auto mine = bits_of_rank<T>(world(), opt);
  std::vector<std::vector<std::byte>> by_threads(world().size());
  threads::run(world().size(), [&](const threads& c) { by_threads[c.rank()] = bits_of_rank<T>(c, opt); });
  EXPECT_EQ(mine, by_threads[world().rank()]);
  EXPECT_FALSE(mine.empty());
}

TEST(vocab_parallel_cross_entropy, has_the_bits_of_threads) {
  same_bits<float>({});
  same_bits<float>({.label_smoothing = 0.1});
  same_bits<bfloat16>({.label_smoothing = 0.1, .formula = tigon::smoothing_formula::megatron});
}

TEST(vocab_parallel_cross_entropy, a_bad_target_on_one_rank_is_the_error_of_all) {
  const std::size_t bad = world().size() - 1, cols = 4, r = world().rank();
  std::vector<std::int64_t> target{0, 1};
  if (r == bad) target[1] = 4711;
  guarded_matrix<float> logits(2, cols);
  guarded<float> loss(2), top(2), rest(2);
  EXPECT_TIGON_ERROR(tigon::vocab_parallel_cross_entropy_forward(
                         world(), logits.view(), {r * cols, world().size() * cols}, target, {loss, top, rest}),
                     index, "target[1] is 4711; expected at least 0 and below " + std::to_string(world().size() * cols),
                     loss, top, rest);
}

/// Both fused linear losses on rank r's classes, several chunks of them.
template <class T>
std::vector<std::byte> bits_of_linear_rank(communicator_ref c) {
  using A = tigon::accumulator_t<T>;
  const std::size_t r = c.rank(), ranks = c.size(), tokens = 24, hidden = 19, classes = 131;
  const std::size_t first = r == 0 ? 0 : 3 + (classes - 3) * r / ranks,
                    end = r + 1 == ranks ? classes : 3 + (classes - 3) * (r + 1) / ranks;
  const auto x = random_matrix<T>({tokens, hidden}, 1);
  const auto all = random_matrix<T>({classes, hidden}, 2, guard::behind, {.deviation = 0.4});
  const auto w = all.view().rows_from(first, end - first);
  const auto target = random_labels(tokens, classes, -100, 3);
  guarded_matrix<T> dx(tokens, hidden), dw(end - first, hidden), dx2(tokens, hidden), dw2(end - first, hidden);
  guarded<A> loss(1), nll(tokens), entropy(tokens);
  const auto g = random_vector<A>(tokens, 4);
  const tigon::linear_shard part{tigon::linear_layer<T>{x, w}, tigon::vocab_shard{first, classes}};
  tigon::workspace scratch;
  tigon::serial_executor executor;
  tigon::context ctx(executor, scratch);
  ctx.logit_rows(7);
  tigon::vocab_parallel_fused_linear_cross_entropy_forward(c, part, target, {loss}, {dx.view(), dw.view()},
                                                           {.loss = {.label_smoothing = 0.1}}, tigon::absent, ctx);
  tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward(c, part, target, {nll, entropy},
                                                                  {dx2.view(), dw2.view()}, {}, {g, g}, ctx);
  return bits_of(loss, dx, dw, nll, entropy, dx2, dw2);
}
template <class T>
void same_linear_bits() {
  const auto mine = bits_of_linear_rank<T>(world());
  std::vector<std::vector<std::byte>> by_threads(world().size());
  threads::run(world().size(), [&](const threads& c) { by_threads[c.rank()] = bits_of_linear_rank<T>(c); });
  EXPECT_EQ(mine, by_threads[world().rank()]);
  EXPECT_FALSE(mine.empty());
}

TEST(vocab_parallel_fused_linear, has_the_bits_of_threads) {
  same_linear_bits<float>();
  same_linear_bits<bfloat16>();
}

TEST(vocab_parallel_fused_linear, a_bad_target_on_one_rank_is_the_error_of_all) {
  const std::size_t bad = world().size() - 1, r = world().rank();
  std::vector<std::int64_t> target{0, 1};
  if (r == bad) target[1] = 4711;
  guarded_matrix<float> x(2, 3), w(4, 3), dx(2, 3);
  guarded<float> loss(1);
  const tigon::linear_shard part{tigon::linear_layer<float>{x, w}, tigon::vocab_shard{4 * r, 4 * world().size()}};
  EXPECT_TIGON_ERROR(
      tigon::vocab_parallel_fused_linear_cross_entropy_forward(world(), part, target, {loss}, {dx.view()}), index,
      "target[1] is 4711; expected at least 0 and below " + std::to_string(4 * world().size()), loss, dx);
}

TEST(expert_parallel_moe, has_the_bits_of_one_rank) {
  const std::size_t r = world().rank(), ranks = world().size();
  moe_problem<float> whole({6 * ranks, 2, 2 * ranks, 9, 7}), own({6, 2, 2, 9, 7});
  const auto rows_of_rank = [&](auto& to, const auto& from) {
    for (std::size_t i = 0; i < to.rows(); ++i)
      for (std::size_t j = 0; j < to.cols(); ++j) to(i, j) = from(r * to.rows() + i, j);
  };
  rows_of_rank(own.indices, whole.indices), rows_of_rank(own.weights, whole.weights);
  rows_of_rank(own.x, whole.x), rows_of_rank(own.dy, whole.dy);
  rows_of_rank(own.gate_up, whole.gate_up), rows_of_rank(own.down, whole.down);
  tigon::moe_forward_inference<usual_backend, float>(whole.x, whole.choices(), whole.experts(), whole.y.view());
  tigon::moe_backward_recompute<usual_backend, float>(whole.dy, whole.x, whole.choices(), whole.experts(), whole.all());
  tigon::expert_parallel_moe_forward<usual_backend, float>(world(), own.x, own.choices(), own.experts(), own.y.view());
  tigon::expert_parallel_moe_backward<usual_backend, float>(world(), own.dy, own.x, own.choices(), own.experts(),
                                                            own.all());
  moe_problem<float> wanted({6, 2, 2, 9, 7});
  rows_of_rank(wanted.y, whole.y), rows_of_rank(wanted.dx, whole.dx), rows_of_rank(wanted.dweights, whole.dweights);
  rows_of_rank(wanted.dgate_up, whole.dgate_up), rows_of_rank(wanted.ddown, whole.ddown);
  EXPECT_EQ(bits_of(own.y), bits_of(wanted.y));
  EXPECT_EQ(own.gradients(), wanted.gradients());
}

TEST(mpi, gathers_in_the_order_of_ranks_and_in_any_number_of_pieces) {
  const std::size_t r = world().rank(), ranks = world().size();
  for (const std::size_t most : {std::size_t{3}, std::size_t{64}, std::size_t{400}, std::size_t{INT_MAX}})
    for (const std::size_t n : {0u, 1u, 100u}) {
      guarded<std::int32_t> mine(n), all(n * ranks);
      std::iota(mine.begin(), mine.end(), static_cast<std::int32_t>(r * n));
      tigon::comm::all_gather<std::int32_t>(mpi(MPI_COMM_WORLD, most), mine, std::span(all));
      for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::int32_t>(i)) << most;
      EXPECT_EQ(datatypes, 0);
    }
}

TEST(mpi, reduces_in_the_order_of_ranks) {
  const float values[] = {1e8f, 1, -1e8f, 1};
  float wanted = 3;
  for (std::size_t r = 0; r < world().size(); ++r) wanted += values[r % 4];
  std::vector<float> mine(7, values[world().rank() % 4]), into(7, 3), scratch(2 * world().size());
  tigon::comm::reduce_in_rank_order<float>(world(), mine, std::span(into), scratch, std::plus<>());
  EXPECT_EQ(into, std::vector<float>(7, wanted));
}

TEST(mpi, works_on_a_part_of_the_ranks) {
  MPI_Comm half = MPI_COMM_NULL;
  const int r = static_cast<int>(world().rank());
  ASSERT_EQ(MPI_Comm_split(MPI_COMM_WORLD, r % 2, -r, &half), MPI_SUCCESS);
  const mpi c(half);
  std::vector<int> all(c.size());
  tigon::comm::all_gather<int>(c, std::vector{r}, std::span(all));
  for (std::size_t i = 0; i + 1 < all.size(); ++i) EXPECT_EQ(all[i], all[i + 1] + 2);
  MPI_Comm_free(&half);
}

TEST(mpi, errors_of_mpi_are_errors_of_tigon) {
  EXPECT_TIGON_ERROR(mpi(MPI_COMM_NULL), argument, "comm::mpi: comm is MPI_COMM_NULL; expected a communicator");
  EXPECT_TIGON_ERROR(mpi(MPI_COMM_WORLD, 0), argument, "comm::mpi: most is 0; expected from 1 to");
  EXPECT_TIGON_ERROR(mpi(MPI_COMM_WORLD, std::size_t{INT_MAX} + 1), argument, "comm::mpi: most is 2147483648");
  EXPECT_TIGON_ERROR(mpi::check("MPI_Allgather", MPI_ERR_TRUNCATE), state,
                     "comm::mpi: MPI_Allgather: MPI_ERR_TRUNCATE");
  mpi::check("MPI_Allgather", MPI_SUCCESS);
  // The caller's handler, which would end the program, is neither called nor replaced. MPI_IN_PLACE is no place to
  // receive at.
  const std::vector<std::byte> mine(8);
  EXPECT_TIGON_ERROR(world().all_gather(mine, {static_cast<std::byte*>(MPI_IN_PLACE), 8 * world().size()}), state,
                     "comm::mpi: MPI_Allgather: MPI_ERR_ARG");
  EXPECT_EQ(datatypes, 0) << "a failed call leaves data types behind";
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  EXPECT_EQ(handler, MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) testing::GTEST_FLAG(brief) = true;  // one report, and all failures
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}
