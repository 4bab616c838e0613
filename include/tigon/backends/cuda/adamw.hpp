// AdamW on a GPU: a block for every task of the list, of which a launch takes as many parameters as its arguments hold.
// The norm of the gradients stays on the device.
#ifndef TIGON_BACKENDS_CUDA_ADAMW_HPP
#define TIGON_BACKENDS_CUDA_ADAMW_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/numbers.hpp>
#include <tigon/ops/optimizer/adamw_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Parameters of a list from number `before` on, and the first task of each.
template <class P>
struct adamw_part {
  static constexpr std::size_t most = 40;
  P parameters[most];
  unsigned first[most + 1];
  std::size_t count, before;

  struct task {
    unsigned parameter;
    std::size_t begin, size;
  };
  TIGON_DEVICE_INLINE task of(unsigned i) const {
    unsigned k = 0;
    while (k + 1 < count && first[k + 1] <= i) ++k;
    const std::size_t begin = (i - first[k]) * tigon::detail::adamw_task, rest = parameters[k].w.size() - begin;
    return {k, begin, rest < tigon::detail::adamw_task ? rest : tigon::detail::adamw_task};
  }
};
inline constexpr unsigned adamw_threads = 256;

/// partials[task] = the sum of the squares of its gradients.
template <class P>
__global__ void __launch_bounds__(adamw_threads)
    sum_squares_of_tasks(const __grid_constant__ adamw_part<P> list, double* partials) {
  using G = typename P::gradient_type;
  constexpr int N = static_cast<int>(access_bytes / sizeof(G));
  const auto task = list.of(blockIdx.x);
  const G* const g = list.parameters[task.parameter].g.data() + task.begin;
  double sum[1] = {0};
  std::size_t done = 0;
  if (reinterpret_cast<std::uintptr_t>(g) % access_bytes == 0) {
    done = task.size / N * N;
#pragma unroll 2
    for (std::size_t j = threadIdx.x * std::size_t{N}; j < done; j += adamw_threads * std::size_t{N}) {
      elements<N, G> e;
      e.load(g + j);
#pragma unroll
      for (int u = 0; u < N; ++u) sum[0] += e.template get<double>(u) * e.template get<double>(u);
    }
  }
  for (std::size_t j = done + threadIdx.x; j < task.size; j += adamw_threads)
    sum[0] += static_cast<double>(g[j]) * static_cast<double>(g[j]);
  group<0>::reduce<add>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum[0];
}
struct put_norm {
  double* to;
  double by;
  TIGON_DEVICE_INLINE void operator()(std::size_t, double sum) const { *to = by * std::sqrt(sum); }
};

/// What a step is made of beside its parameters. With a norm in memory its factor is made there; where that is not
/// finite, nothing may have to be written.
template <class A>
struct adamw_step {
  tigon::detail::adamw_factors<A> factors;
  const double* norm;
  double gradient_scale, max_norm;
  bool skips;
  std::uint64_t seed, step;
};

/// Elements j, ..., j + N - 1 of a task.
template <int N, bool Stochastic, bool Rounded, class P, class A>
TIGON_DEVICE_INLINE void update_elements(const P& p, const tigon::detail::adamw_factors<A>& factors,
                                         simd::random_key key, std::size_t begin, std::size_t j) {
  using V = simd::vec<simd::cuda, A>;
  const tigon::detail::adamw_program<A, typename P::weight, typename P::moment, Rounded, Stochastic> of{factors, key};
  const std::size_t at = begin + j;
  elements<N, typename P::gradient_type> g;
  elements<N, typename P::moment> m, v;
  elements<N, typename P::weight> w;
  g.load(p.g.data() + at), m.load(p.m.data() + at), v.load(p.v.data() + at), w.load(p.w.data() + at);
  A first[N], second[N], weight[N];
#pragma unroll
  for (int u = 0; u < N; ++u) {
    const V gv(g.template get<A>(u)), mv(m.template get<A>(u)), vv(v.template get<A>(u)), wv(w.template get<A>(u));
    const auto to = [&] {
      if constexpr (Stochastic)
        return of.map(gv, mv, vv, wv, V(static_cast<A>(j + static_cast<std::size_t>(u))));
      else
        return of.map(gv, mv, vv, wv);
    }();
    first[u] = to.v[0].r, second[u] = to.v[1].r, weight[u] = to.v[2].r;
    if constexpr (Rounded) {
      static_assert(sizeof(typename P::rounded_type) == 2);
      p.rounded.data()[at + static_cast<std::size_t>(u)] = as_element<typename P::rounded_type>(to.v[3].r);
    }
  }
  m.set_all(first), v.set_all(second), w.set_all(weight);
  m.store(p.m.data() + at), v.store(p.v.data() + at), w.store(p.w.data() + at);
}
template <bool Stochastic, bool Rounded, class P, class Task, class A>
TIGON_DEVICE_INLINE void update_task(const P& p, const Task& task, const tigon::detail::adamw_factors<A>& factors,
                                     simd::random_key key) {
  constexpr std::size_t least =
      std::min({sizeof(typename P::gradient_type), sizeof(typename P::moment), sizeof(typename P::weight)});
  constexpr int N = static_cast<int>(access_bytes / least);
  const auto aligned = [&](const auto* data) { return reinterpret_cast<std::uintptr_t>(data) % access_bytes == 0; };
  std::size_t done = 0;
  if (aligned(p.g.data()) && aligned(p.m.data()) && aligned(p.v.data()) && aligned(p.w.data())) {
    done = task.size / N * N;
    for (std::size_t j = threadIdx.x * std::size_t{N}; j < done; j += adamw_threads * std::size_t{N})
      update_elements<N, Stochastic, Rounded>(p, factors, key, task.begin, j);
  }
  for (std::size_t j = done + threadIdx.x; j < task.size; j += adamw_threads)
    update_elements<1, Stochastic, Rounded>(p, factors, key, task.begin, j);
}
template <bool Stochastic, class P, class A>
__global__ void __launch_bounds__(adamw_threads)
    update_tasks(const __grid_constant__ adamw_part<P> list, const __grid_constant__ adamw_step<A> of) {
  const auto task = list.of(blockIdx.x);
  const P& p = list.parameters[task.parameter];
  auto factors = of.factors.decayed_by(p.decay);
  if (of.norm != nullptr) {
    const double norm = *of.norm;
    if (of.skips && !(norm <= std::numeric_limits<double>::max())) return;
    factors.scale = tigon::detail::adamw_scale<A>(of.gradient_scale, of.max_norm, norm);
  }
  const auto key = simd::random_key_of(of.seed, of.step, list.before + task.parameter, task.begin);
  if constexpr (P::may_have_rounded)
    if (p.rounded.data() != nullptr) return update_task<Stochastic, true>(p, task, factors, key);
  update_task<Stochastic, false>(p, task, factors, key);
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::adamw, backends::cuda> {
  using forward_only = void;

  /// A step; with a norm that the caller knows, or with that of the gradients, if options need one.
  template <backend B, class P>
  static void forward(std::span<const P> list, const double* known, const adamw_options& opt, context& ctx) {
    using A = accumulator_t<typename P::weight>;
    workspace::frame frame(ctx.workspace());
    std::size_t tasks = 0;
    for (const P& p : list) tasks += detail::adamw_tasks_of(p.w.size());
    if (tasks == 0) return;
    double* norm = nullptr;
    if (known == nullptr && (opt.max_norm > 0 || opt.skip_non_finite)) {
      double* const partials = frame.template take<double>(tasks);
      // The memory of a CPU's list of tasks.
      norm = reinterpret_cast<double*>(frame.template take<std::size_t>(list.size() + 1));
      std::size_t before = 0;
      parts(list, [&](const gpu::adamw_part<P>& part, unsigned count) {
        gpu::launch(ctx, gpu::sum_squares_of_tasks<P>, count, gpu::adamw_threads, part, partials + before);
        before += count;
      });
      gpu::launch(ctx, gpu::add_up<gpu::number_of_vector, gpu::put_norm>, 1, gpu::threads_of_sum,
                  gpu::number_of_vector{partials}, tasks, gpu::put_norm{norm, std::fabs(opt.gradient_scale)});
    }
    const gpu::adamw_step<A> step{detail::adamw_factors<A>(opt, known != nullptr ? *known : 0),
                                  norm,
                                  opt.gradient_scale,
                                  opt.max_norm,
                                  opt.skip_non_finite,
                                  opt.seed,
                                  opt.step};
    parts(list, [&](const gpu::adamw_part<P>& part, unsigned count) {
      constexpr bool some_bf16 =
          std::same_as<typename P::weight, bfloat16> || std::same_as<typename P::moment, bfloat16>;
      if constexpr (some_bf16)
        if (opt.stochastic_rounding)
          return gpu::launch(ctx, gpu::update_tasks<true, P, A>, count, gpu::adamw_threads, part, step);
      gpu::launch(ctx, gpu::update_tasks<false, P, A>, count, gpu::adamw_threads, part, step);
    });
  }

 private:
  /// run(part, its tasks) for as many parameters at a time as arguments hold.
  template <class P, class Run>
  static void parts(std::span<const P> list, Run run) {
    for (std::size_t i = 0; i < list.size();) {
      gpu::adamw_part<P> part{};
      part.before = i;
      std::size_t tasks = 0;
      for (; i < list.size() && part.count < part.most; ++i, ++part.count) {
        part.parameters[part.count] = list[i];
        tasks += detail::adamw_tasks_of(list[i].w.size());
        part.first[part.count + 1] = gpu::blocks(tasks);
      }
      if (tasks != 0) run(part, gpu::blocks(tasks));
    }
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_ADAMW_HPP
