// The driver of losses on sequences: what multiplies a token's gradient is known only after the whole sequence.
#ifndef TIGON_LOSSES_SEQUENCE_SEQUENCE_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_SEQUENCE_KERNEL_HPP

#include <tigon/losses/linear/scaled_program.hpp>
#include <tigon/losses/sequence/sequence_tokens.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// What a loss on sequences reads and writes. coefficients(begin, n) is called once for every group, with groups
/// [begin, begin + n) in order, when the log-probabilities of their tokens are known, and writes their u.
template <layer_types T>
struct sequence_call {
  linear_layer<T> head;
  linear_gradients<T> out;
  linear_layer<T> reference;  ///< without memory: none
  sequence_tokens<accumulator_t<T>> tokens;
  double temperature;
  function_ref<void(std::size_t, std::size_t)> coefficients;
  double softcap = 0;  ///< logits of both layers are softcap tanh(z / softcap); 0: z
};

/// What the kernels of losses on sequences have in common.
struct sequence_kernel {
  template <class T>
  using saved = saved_gradients<T>;

  /// A piece is as many groups as fit in a chunk, or one that does not. First come the log-probabilities of a piece,
  /// then u, then the gradients, from the last chunk to the first: only the last chunk's logits still exist, those of
  /// the others are computed again. So a group that fits takes three products, one that does not takes four.
  template <backend B, layer_types T>
  static void forward(const sequence_call<T>& call, context& ctx) {
    using A = accumulator_t<T>;
    using R = row_backend<B>;
    using rows_of_logits = kernel_for<op::selective_log_softmax, R>;
    const auto& t = call.tokens;
    const bool gradients = call.out.any(), reference = t.reference_logp != nullptr;
    const std::size_t vocab = call.head.w.rows,
                      chunk = chunk_rows<B, A>(call.head.x.rows, call.head.x.cols, vocab, ctx);
    workspace::frame frame(ctx.workspace());
    A* memory = frame.template take<A>(chunk * vocab);
    double* rest = frame.template take<double>(chunk);
    auto* large = frame.template take<std::int64_t>(chunk * most_large);
    const std::size_t chunks = gathered_linear<B, T>::most_chunks(call.head.x.rows, chunk);
    gathered_linear<B, T> policy(frame, call.head, call.out, chunk, chunk, chunks, ctx),
        other(frame, call.reference, {}, chunk, chunk, 0, ctx);
    if constexpr (host_memory<B>)  // elsewhere all rows are listed
      if (call.out.dx.data != nullptr)
        for_host_tasks<B>(ctx, t.sequences(), [&](std::size_t s, std::size_t) {
          clear_other_rows(call.out.dx, t.first_row(s), t.first_row(s) + t.length, t.row + t.first[s],
                           t.first[s + 1] - t.first[s]);
        });

    const scaled_logits how{call.temperature, call.softcap};
    const auto make_logps = [&](std::size_t k, std::size_t n) {
      const auto of = [&](gathered_linear<B, T>& rows, double* logp) {
        const matrix_view<A> z(memory, n, vocab);
        rows.logits(t.row + k, z);
        cap_logits<R, A>(z, call.softcap, ctx);
        if constexpr (host_memory<B>)
          rows_of_logits::template forward<R, A>(z, t.column + k, call.temperature, t.u + k, t.lse + k, ctx);
        if constexpr (!std::same_as<A, double> && host_memory<B>)
          split<R, A>(z, t.lse + k, call.temperature, rest, large, ctx);
        look_up<B>(rows, z, t.lse + k, how, {rest, large}, t.column + k, logp + k, ctx);
        return z;
      };
      if (reference) of(other, t.reference_logp);
      const matrix_view<A> z = of(policy, t.logp);
      if (t.second_column != nullptr)
        look_up<B>(policy, z, t.lse + k, how, {rest, large}, t.second_column + k, t.second_logp + k, ctx);
    };
    const auto make_gradients = [&](std::size_t k, std::size_t n, bool again) {
      const matrix_view<A> z(memory, n, vocab);
      const matrix_view<typename gathered_linear<B, T>::D> d = policy.gradient_of(z);
      if (again) policy.logits(t.row + k, z);
      selected_gradient<A> second;
      if (t.second_column != nullptr) second = {t.second_column + k, t.second_u + k};
      const selected_gradient<A> first{t.column + k, t.u + k};
      if (call.softcap == 0) {
        rows_of_logits::template backward<R, A>(z, t.lse + k, first, second, call.temperature, d, ctx);
      } else {
        using of_capped =
            std::conditional_t<host_memory<B>, kernel<op::selective_log_softmax, backends::generic>, rows_of_logits>;
        if (again) cap_logits<R, A>(z, call.softcap, ctx);
        of_capped::template backward_of_capped<R, A>(call.softcap, z, t.lse + k, {first, second}, call.temperature, d,
                                                     ctx);
      }
      policy.backward(t.row + k, d);
    };
    for (std::size_t group = 0, end; group < t.groups; group = end) {
      const std::size_t begin = t.template first_of_group<B>(group);
      const auto tokens_to = [&](std::size_t g) { return t.template first_of_group<B>(g) - begin; };
      for (end = group + 1; end < t.groups && tokens_to(end + 1) <= chunk;) ++end;
      const std::size_t tokens = tokens_to(end), parts = (tokens + chunk - 1) / chunk;
      const std::size_t even = parts == 0 ? 1 : (tokens + parts - 1) / parts;
      for_chunks(tokens, even, [&](std::size_t k, std::size_t n) { make_logps(begin + k, n); });
      call.coefficients(group, end - group);
      if (!gradients) continue;
      for (std::size_t c = parts; c-- > 0;)
        make_gradients(begin + c * even, std::min(even, tokens - c * even), c + 1 != parts);
    }
    policy.finish();
  }

  /// The logits of a row whose probability is above 1 / most_large are large, the others its rest.
  static constexpr std::size_t most_large = 16;

  /// What happens to logits between a product and a softmax.
  struct scaled_logits {
    double temperature, softcap;
    double capped(double z) const { return softcap == 0 ? z : softcap * std::tanh(z / softcap); }
  };

  /// The result of split.
  struct split_rows {
    double* rest;
    std::int64_t* large;  ///< most_large a row
  };

  /// rest[i] = sum over the rest of row i of exp((z - top) / temperature), in two numbers of A; large: the columns of
  /// the large ones, then -1. A row that is not finite has none.
  template <backend B, class A>
  static void split(matrix_view<A> z, const lse_parts<A>* lse, double temperature, double* rest, std::int64_t* large,
                    context& ctx) {
    const A inverse = static_cast<A>(1 / temperature), width = static_cast<A>(temperature);
    const A share = math::log(static_cast<A>(most_large));
    for_rows<B, A>(ctx, z.rows, z.cols, [=] TIGON_FN(auto row) {
      const A top = lse[row.i].top, cut = top + width * (math::log1p(lse[row.i].rest) - share);
      const auto sum = row.reduce(
          reads(z), std::array<A, 2>{A(0), A(0)},
          [=](auto v) {
            const decltype(v) zero(A(0));
            return pack{select(v < decltype(v)(cut), exp_nonpositive((v - top) * inverse), zero), zero};
          },
          [](auto x, auto y) {  // the sum and what its rounding loses
            const auto s = x.v[0] + y.v[0], other = s - x.v[0];
            const auto lost = (x.v[0] - (s - other)) + (y.v[0] - other);
            return decltype(x){{s, (x.v[1] + y.v[1]) + lost}};
          });
      if (row.first()) rest[row.i] = static_cast<double>(sum[0]) + static_cast<double>(sum[1]);
      std::int64_t* found = large + row.i * most_large;
      std::size_t n = 0;
      constexpr std::size_t block = 512;
      for (std::size_t first = 0; first < row.cols; first += block) {
        const auto columns_of = row.part(first, std::min(block, row.cols - first));
        if (!(columns_of.max(reads(z), [](auto v) { return v; }) >= cut)) continue;
        for (std::size_t j = first; j < first + columns_of.cols && n < most_large; ++j)
          if (row.at(z, j) >= cut) {
            if (row.first()) found[n] = static_cast<std::int64_t>(j);
            ++n;
          }
      }
      for (; n < most_large; ++n)
        if (row.first()) found[n] = -1;
    });
  }

  /// Log-probabilities of one column a row, for sums and differences of many. The logits that weigh most are computed
  /// again in f64, which removes their rounding and that of the sum. Another backend makes lse as well.
  template <class B, class Rows, class A>
  static void look_up(const Rows& rows, matrix_view<A> z, lse_parts<A>* lse, scaled_logits how, split_rows of,
                      const std::int64_t* column, double* logp, context& ctx) {
    if constexpr (!host_memory<B>) {
      kernel_for<op::fused_linear_preference, B>::log_probabilities(rows, z, how.temperature, how.softcap, column, lse,
                                                                    logp, ctx);
    } else {
      const double temperature = how.temperature;
      for_host_tasks<B>(ctx, z.rows, [&, rest = of.rest, large = of.large](std::size_t i, std::size_t) {
        const std::size_t own_column = static_cast<std::size_t>(column[i]);
        const A own_logit = z.row(i)[own_column];
        logp[i] = lse[i].log_p(own_logit, temperature);
        if constexpr (std::same_as<A, double>) return;
        if (!std::isfinite(logp[i]) || !std::isfinite(lse[i].lse(temperature))) return;
        const double own = how.capped(rows.logit(i, own_column)), top = static_cast<double>(lse[i].top);
        double others = rest[i] * std::exp((top - own) / temperature);
        bool is_large = false;
        for (std::size_t n = 0; n < most_large && large[i * most_large + n] >= 0; ++n) {
          const auto j = static_cast<std::size_t>(large[i * most_large + n]);
          if (j == own_column)
            is_large = true;
          else
            others += std::exp((how.capped(rows.logit(i, j)) - own) / temperature);
        }
        if (others < std::numeric_limits<double>::max()) logp[i] = is_large ? -std::log1p(others) : -std::log(others);
      });
    }
  }

  /// out = g * from, or dw and dbias with that added.
  template <backend B, layer_types T>
  static void backward(const saved_gradients<T>& from, accumulator_t<T> g, const linear_gradients<T>& out,
                       context& ctx) {
    using A = accumulator_t<T>;
    const auto scale = [&]<class E>(matrix_view<const E> x, matrix_view<E> to, bool add) {
      if (to.data == nullptr) return;
      const scaled_program<A> program{g};
      if (add)
        map_rows<B>(ctx, program, reads(x, to), writes(to));
      else
        map_rows<B>(ctx, program, reads(x), writes(to));
    };
    const bool add = out.mode == gradient::accumulate;
    scale(from.dx, out.dx, false);
    scale(from.dw, out.dw, add);
    scale(as_row(from.dbias), as_row(out.dbias), add);
  }
};

/// A loss by name is its base with a function.
template <class Base>
struct named_sequence_kernel {
  template <class T>
  using saved = saved_gradients<T>;

  template <backend B, layer_types T>
  static void forward(const sequence_call<T>& call, context& ctx) {
    kernel_for<Base, B>::template forward<B, T>(call, ctx);
  }
  template <backend B, layer_types T>
  static void backward(const saved_gradients<T>& from, accumulator_t<T> g, const linear_gradients<T>& out,
                       context& ctx) {
    kernel_for<Base, B>::template backward<B, T>(from, g, out, ctx);
  }
};

/// What a loss on sequences makes beside log-probabilities of one column a token.
struct sequence_makes {
  bool second;    ///< those of a second column
  parameters of;  ///< gradients of w and bias
  constexpr TIGON_INLINE sequence_makes(bool second_column, parameters trained = parameters::trained)
      : second(second_column), of(trained) {}
};

/// Bytes of workspace that a loss on `groups` groups of `ends` sequences takes for its tokens and its kernel, with all
/// gradients, or those of x alone, and biases; with a reference layer if reference_hidden is not 0.
template <class B, layer_types T>
std::size_t sequence_workspace(std::size_t groups, std::size_t ends, std::size_t length, std::size_t hidden,
                               std::size_t vocab, std::size_t reference_hidden, sequence_makes makes,
                               const context& ctx) {
  using A = accumulator_t<T>;
  const std::size_t chunk = chunk_rows<B, A>(workspace::product(groups, ends, length), hidden, vocab, ctx);
  std::size_t other = 0;
  if (reference_hidden != 0)
    other = workspace::bytes_for<A>(vocab) + workspace::bytes_for<input_t<T>>(chunk, reference_hidden);
  return sequence_tokens<A>::bytes(groups, ends, length, makes.second) + workspace::bytes_for<A>(chunk, vocab) +
         workspace::bytes_for<double>(chunk) + workspace::bytes_for<std::int64_t>(chunk, sequence_kernel::most_large) +
         other +
         gathered_linear_workspace<B, T>(workspace::product(groups, ends, length), hidden, vocab, chunk, ctx,
                                         reference_hidden == 0
                                             ? 0
                                             : gemm_workspace<B, input_t<T>, weight_t<T>, A>(
                                                   chunk, vocab, reference_hidden, ctx.executor().workers()),
                                         makes.of);
}

/// The same for tokens that have one column, or the factor of their sequence for both: another backend may keep the
/// gradients of long sequences.
template <class B, layer_types T>
std::size_t preference_workspace(std::size_t groups, std::size_t ends, std::size_t length, std::size_t hidden,
                                 std::size_t vocab, std::size_t reference_hidden, sequence_makes makes,
                                 const context& ctx) {
  const std::size_t bytes = sequence_workspace<B, T>(groups, ends, length, hidden, vocab, reference_hidden, makes, ctx);
  if constexpr (host_memory<B>)
    return bytes;
  else
    return std::max(bytes, sequence_tokens<accumulator_t<T>>::bytes(groups, ends, length, false) +
                               kernel_for<op::fused_linear_preference, B>::template bytes_of_long_sequences<B, T>(
                                   groups, ends, length, hidden, vocab, makes.of, ctx));
}

/// Sums of the logits of sequences, which need no logits: the sum over rows of x times that over rows of w. In f64.
template <class B, layer_types T>
class logit_sums {
 public:
  logit_sums(workspace::frame& frame, const linear_layer<T>& head, context& ctx)
      : head_(head),
        ctx_(ctx),
        of_x_(frame.template take<double>(head.x.cols)),
        of_w_(frame.template take<double>(head.x.cols)) {
    column_sums(head.w, of_w_);
    for (std::size_t j = 0; j < head.bias.size(); ++j) bias_ += number(head.bias.data()[j]);
  }
  /// Adds the logits of rows [begin, begin + n) to `sum`.
  void add(std::size_t begin, std::size_t n, double& sum) const {
    column_sums(head_.x.rows_from(begin, n), of_x_);
    for (std::size_t h = 0; h < head_.x.cols; ++h) sum += of_x_[h] * of_w_[h];
    sum += static_cast<double>(n) * bias_;
  }
  static std::size_t bytes(std::size_t hidden) { return 2 * workspace::bytes_for<double>(hidden); }

 private:
  template <element E>
  static double number(E v) {
    return static_cast<double>(static_cast<accumulator_t<T>>(v));
  }
  template <element E>
  void column_sums(matrix_view<const E> m, double* to) const {
    constexpr std::size_t width = 256;
    for_host_tasks<B>(ctx_, (m.cols + width - 1) / width, [&](std::size_t task, std::size_t) {
      const std::size_t first = task * width, end = std::min(m.cols, first + width);
      std::fill(to + first, to + end, 0.0);
      for (std::size_t i = 0; i < m.rows; ++i)
        for (std::size_t h = first; h < end; ++h) to[h] += number(m.row(i)[h]);
    });
  }

  linear_layer<T> head_;
  context& ctx_;
  double *of_x_, *of_w_, bias_ = 0;
};

/// Bytes of it, and of what another backend takes in its place; and of sums of its own over so many sequences or pairs.
template <class B, layer_types T>
std::size_t bytes_of_logit_sums(std::size_t hidden) {
  if constexpr (host_memory<B>)
    return logit_sums<B, T>::bytes(hidden);
  else
    return kernel_for<op::fused_linear_preference, B>::bytes_of_logit_sums(hidden);
}
template <class B>
constexpr std::size_t sums_of_sequences(std::size_t count) {
  if constexpr (host_memory<B>)
    return 0;
  else
    return kernel_for<op::fused_linear_preference, B>::bytes_of_sums(count);
}

/// Declares gradients that are an earlier call's times a number, and checks them; a saved one whose product is not
/// wanted may be of any shape.
template <layer_types T>
void check_scaled_gradients(std::string_view op, const saved_gradients<T>& saved, const linear_gradients<T>& out) {
  arguments args(op);
  const auto from = [&](std::string_view name, extent m, extent to) {
    args.in(name, m, to.data != nullptr ? to.rows : m.rows, to.data != nullptr ? to.cols : m.cols);
  };
  from("saved_dx", saved.dx, out.dx);
  from("saved_dw", saved.dw, out.dw);
  from("saved_dbias", as_row(saved.dbias), as_row(out.dbias));
  args.optional_out("dbias", out.dbias, out.dbias.size()).may_be("saved_dbias");
  args.optional_out("dw", out.dw, out.dw.rows, out.dw.cols).may_be("saved_dw");
  args.optional_out("dx", out.dx, out.dx.rows, out.dx.cols).may_be("saved_dx");
  args.check();
}

}  // namespace TIGON_ABI
}  // namespace detail

/// The gradients of a loss on sequences for another upstream gradient than the one they were made for:
///
///   dx = upstream saved.dx,   dw = upstream saved.dw,   dbias = upstream saved.dbias
///
/// Op names the loss, for example op::fused_linear_dpo. dw and dbias are added to with gradient::accumulate; a gradient
/// without memory is not made. Each may be the saved gradient itself, or share nothing with anything. Throws
/// tigon::error: shape, stride, alias; before the first write.
template <class Op, class B = default_backend, class T>
void fused_linear_backward(const saved_gradients<T>& saved, std::type_identity_t<accumulator_t<T>> upstream,
                           const std::type_identity_t<linear_gradients<T>>& out, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::check_scaled_gradients("fused_linear_backward", saved, out);
  kernel_for<Op, B>::template backward<B, T>(saved, upstream, out, ctx);
}

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_SEQUENCE_KERNEL_HPP
