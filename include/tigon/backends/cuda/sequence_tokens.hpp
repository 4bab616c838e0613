// Tokens of sequences on a GPU: their list, which is of all rows, their log-probabilities, and the sums of a sequence.
#ifndef TIGON_BACKENDS_CUDA_SEQUENCE_TOKENS_HPP
#define TIGON_BACKENDS_CUDA_SEQUENCE_TOKENS_HPP

#include <tigon/backends/cuda/linear.hpp>
#include <tigon/backends/cuda/powers.hpp>
#include <tigon/backends/cuda/tokens.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/sequence/sequence_kernel.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// to's row to_row[i] = from's row from_row[i]; without an index row i.
template <class From, class T>
__global__ void __launch_bounds__(256)
    copy_rows(matrix_view<const From> from, const std::size_t* from_row, matrix_view<T> to, const std::size_t* to_row) {
  const std::size_t i = blockIdx.x;
  const From* const x = from.row(from_row == nullptr ? i : from_row[i]);
  T* const y = to.row(to_row == nullptr ? i : to_row[i]);
  for (std::size_t j = threadIdx.x; j < from.cols; j += blockDim.x) y[j] = static_cast<T>(x[j]);
}

/// row[i] = i
struct same_row {
  std::size_t* row;
  TIGON_DEVICE_INLINE void operator()(std::size_t i) const { row[i] = i; }
};

/// What the tokens of a call are listed from.
struct listed_labels {
  token_ids target, nll_target;  ///< nll_target may be empty
  std::int64_t ignored;
  std::size_t vocab;
  index_report* report;
  const char* op;

  /// The label of a row as a column: -1 where it does not count.
  TIGON_DEVICE_INLINE std::int64_t column(const token_ids& ids, std::size_t i) const {
    const std::int64_t t = ids(i / ids.cols, i % ids.cols);
    return t == ignored ? -1 : t < 0 || static_cast<std::uint64_t>(t) >= vocab ? out_of_range : t;
  }
  TIGON_DEVICE_INLINE void make_report(const token_ids& ids, const char* argument, double at) const {
    const auto i = static_cast<std::size_t>(at);
    report->make({op, argument, i, ids(i / ids.cols, i % ids.cols), vocab, ignored, true, 0});
  }
};
/// As sequence_tokens::list, of all rows; and how many tokens of the first half count for the nll. One block.
template <class A>
__global__ void __launch_bounds__(1024)
    list_tokens(tigon::detail::sequence_tokens<A> to, const __grid_constant__ listed_labels of, double* nll_count) {
  const std::size_t rows = to.sequences() * to.length, half = to.groups * to.length;
  const bool second = to.second_column != nullptr;
  double count[1] = {0}, wrong = -1, wrong_nll = -1;
  const auto note = [](double& first, std::int64_t column, std::size_t i) {
    if (column == out_of_range && (first < 0 || static_cast<double>(i) < first)) first = static_cast<double>(i);
  };
  for (std::size_t k = threadIdx.x; k < rows; k += blockDim.x) {
    const std::size_t s = k / to.length, i = to.first_row(s) + k % to.length;
    const std::int64_t one = of.column(of.target, i), two = second && i < half ? of.column(of.nll_target, i) : -1;
    note(wrong, one, i), note(wrong_nll, two, i);
    to.row[k] = i;
    to.column[k] = one == -1 ? two : one;
    if (second) to.second_column[k] = two == -1 ? one : two;
    if (i < half) count[0] += (second ? two : one) >= 0;
  }
  for (std::size_t s = threadIdx.x; s <= to.sequences(); s += blockDim.x) to.first[s] = s * to.length;
  group<0>::reduce<add>(count);
  wrong = first_wrong(wrong), wrong_nll = first_wrong(wrong_nll);
  if (threadIdx.x != 0) return;
  *nll_count = count[0];
  if (wrong >= 0)
    of.make_report(of.target, "target", wrong);
  else if (wrong_nll >= 0)
    of.make_report(of.nll_target, "nll_target", wrong_nll);
}

/// A layer's rows, w and bias, of which single logits are made in f64.
template <class X, class W, class A>
struct exact_logits {
  matrix_view<const X> x;
  matrix_view<const W> w;
  const W* bias;
  double temperature, softcap;

  /// z.temperature of row i at a column, by all threads of the block.
  TIGON_DEVICE_INLINE double operator()(std::size_t i, std::size_t column) const {
    const auto number = [](auto v) { return static_cast<double>(static_cast<A>(v)); };
    double sum[1] = {0};
    for (std::size_t h = threadIdx.x; h < x.cols; h += blockDim.x)
      sum[0] += number(x.row(i)[h]) * number(w.row(column)[h]);
    group<0>::reduce<add>(sum);
    const double z = bias == nullptr ? sum[0] : sum[0] + number(bias[column]);
    return softcap == 0 ? z : softcap * math::tanh(z / softcap);
  }
};
/// Threads of a block that has a row of logits, and the columns that it finds to weigh most in it.
inline constexpr unsigned logp_threads = 512;
template <class T>
struct found_in_row {
  static constexpr unsigned most = static_cast<unsigned>(tigon::detail::sequence_kernel::most_large);
  unsigned count;
  T of[most];

  /// Of one thread, before the others come.
  TIGON_DEVICE_INLINE void clear() { count = 0; }
  /// Whether there was room.
  TIGON_DEVICE_INLINE bool put(T one) {
    const unsigned at = atomicAdd(&count, 1u);
    if (at < most) of[at] = one;
    return at < most;
  }
  TIGON_DEVICE_INLINE unsigned size() const { return count < most ? count : most; }
  /// In ascending order, whoever came first. All threads of the block come here.
  TIGON_DEVICE_INLINE void sort() {
    __syncthreads();
    if (threadIdx.x == 0)
      for (unsigned a = 1; a < size(); ++a)
        for (unsigned b = a; b > 0 && of[b] < of[b - 1]; --b) {
          const T other = of[b];
          of[b] = of[b - 1], of[b - 1] = other;
        }
    __syncthreads();
  }
};

/// A row of logits in front of a softmax, of which a block takes sums in f64 of e^((v - reference) / temperature).
template <int N, class A>
struct row_of_powers {
  row_in_memory<N, A> row;
  tempered_powers<exponentials::centred, A> powers;
  double temperature;
  A reference, top, own_top;  ///< own: of the columns of this thread
  double own_sum, sum;

  /// In one pass, below the logit of a column; or in two where the sum might overflow.
  TIGON_DEVICE_INLINE void make(A logit) {
    pass(logit);
    if (top - reference > A(40) * static_cast<A>(temperature)) pass(top);
  }
  /// The sum of all columns but those above `cut`, which are found. Only threads that have one read theirs again, all
  /// threads with them.
  TIGON_DEVICE_INLINE double rest(A cut, found_in_row<unsigned>& owners, found_in_row<std::int64_t>& large) const {
    if (threadIdx.x == 0) owners.clear(), large.clear();
    __syncthreads();
    double sum_of[1] = {own_top >= cut && owners.put(threadIdx.x) ? 0 : own_sum};
    owners.sort();
    for (unsigned o = 0; o < owners.size(); ++o) {
      const std::size_t step = std::size_t{blockDim.x} * N;
      for (std::size_t j = owners.of[o] * std::size_t{N} + threadIdx.x * step; j < row.cols; j += blockDim.x * step) {
        elements<N, A> e;
        e.load(row.row + j);
        A some(0);
        numbers_of<A>(e, [&](int u, A v) {
          if (!(v >= cut && large.put(static_cast<std::int64_t>(j) + u))) some += powers.of(v - reference);
        });
        sum_of[0] += static_cast<double>(some);
      }
    }
    large.sort();
    group<0>::reduce<add>(sum_of);
    return sum_of[0];
  }

 private:
  TIGON_DEVICE_INLINE void pass(A below) {
    reference = below;
    own_top = std::numeric_limits<A>::lowest(), own_sum = 0;
    row.each([&](unsigned, const auto& e) {
      A some(0);
      numbers_of<A>(e, [&](int, A v) {
        own_top = larger::join(v, own_top);
        some += powers.of(v - reference);
      });
      own_sum += static_cast<double>(some);
    });
    A tops[1] = {own_top};
    double sums[1] = {own_sum};
    group<0>::reduce<larger>(tops);
    group<0>::reduce<add>(sums);
    top = tops[0], sum = sums[0];
  }
};

/// The log-sum-exp of rows, and log-probabilities of one column a row, in one pass: the logits that weigh most are
/// computed again in f64, which removes their rounding and that of the sum. A block a row, of which it reads N columns
/// at a time.
template <int N, class X, class W, class A>
__global__ void __launch_bounds__(logp_threads)
    exact_log_probabilities(matrix_view<const A> z, const __grid_constant__ exact_logits<X, W, A> exact,
                            const std::int64_t* column, lse_parts<A>* lse, double* logp) {
  __shared__ found_in_row<unsigned> owners;
  __shared__ found_in_row<std::int64_t> large;
  const std::size_t i = blockIdx.x;
  const std::int64_t own_column = column[i];
  if (own_column < 0) {
    if (threadIdx.x != 0) return;
    lse[i] = {};
    logp[i] = own_column == out_of_range ? std::numeric_limits<double>::quiet_NaN() : 0;
    return;
  }
  const double temperature = exact.temperature;
  const A own_logit = z.row(i)[own_column];
  row_of_powers<N, A> row{{z.row(i), static_cast<unsigned>(z.cols)}, {temperature}, temperature};
  row.make(own_logit);
  const double reference = static_cast<double>(row.reference);
  const A cut = static_cast<A>(reference + temperature * (math::log(row.sum / owners.most)));
  const double rest = row.rest(cut, owners, large);
  // The parts of the log-sum-exp: without the largest logit's own 1, which would cancel where it is large.
  const double top = static_cast<double>(row.top);
  double below = rest * math::exp((reference - top) / temperature);
  bool with_top = true;
  for (unsigned a = 0; a < large.size(); ++a) {
    const A v = z.row(i)[large.of[a]];
    if (with_top && v == row.top)
      with_top = false;
    else
      below += math::exp((static_cast<double>(v) - top) / temperature);
  }
  const lse_parts<A> parts{row.top, static_cast<A>(with_top ? below - 1 : below)};
  if (threadIdx.x == 0) lse[i] = parts;
  const double plain = parts.log_p(own_logit, temperature);
  const auto finite = [](double v) { return v - v == 0; };
  if (std::is_same_v<A, double> || !finite(plain) || !finite(parts.lse(temperature))) {
    if (threadIdx.x == 0) logp[i] = plain;
    return;
  }
  const double own = exact(i, static_cast<std::size_t>(own_column));
  double others = rest * math::exp((reference - own) / temperature);
  bool is_large = false;
  for (unsigned a = 0; a < large.size(); ++a) {
    if (large.of[a] == own_column)
      is_large = true;
    else
      others += math::exp((exact(i, static_cast<std::size_t>(large.of[a])) - own) / temperature);
  }
  if (threadIdx.x == 0)
    logp[i] = !(others < std::numeric_limits<double>::max()) ? plain
              : is_large                                     ? -math::log1p(others)
                                                             : -math::log(others);
}

/// The sums of a sequence's tokens. All threads of the block come here.
template <class A>
TIGON_DEVICE_INLINE tigon::detail::sequence_logp score_of(const tigon::detail::sequence_scores<A>& score,
                                                          std::size_t s) {
  tigon::detail::sequence_sums own;
  const std::size_t length = score.tokens.length;
  for (std::size_t t = threadIdx.x; t < length; t += blockDim.x) score.add(s * length + t, own);
  double sum[3] = {own.logp, own.difference, own.count};
  group<0>::reduce<add>(sum);
  return score.score(s, {sum[0], sum[1], sum[2]});
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_SEQUENCE_TOKENS_HPP
