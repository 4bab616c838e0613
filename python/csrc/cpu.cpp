// What a call on a CPU runs on: PyTorch's threads and memory, and the kernels of an instruction set.
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "tensors.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bf16_kernels_multi_arch.hpp"
#include "f16_kernels_multi_arch.hpp"
#include "f32_kernels_multi_arch.hpp"
#include "f64_kernels_multi_arch.hpp"
#include "row_kernels_multi_arch.hpp"

namespace tigon_torch {
namespace {

/// Large memory sits on huge pages where the system has them: a first touch is several times cheaper.
void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t huge = std::uintptr_t{2} << 20;
  if (bytes < 2 * huge) return;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (first + huge - 1) / huge * huge, end = (first + bytes) / huge * huge;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

constexpr const char* half_set = "x86-64-v3";
std::string name_of_instruction_set() { return bf16_kernels_instruction_set(); }

/// The table of a set or, of what is not compiled for it, of the widest one within it.
const kernel_table& within(const kernel_table* (*tables)(const char* set), const char* set) {
  const kernel_table* found = tables(set);
  if (found == nullptr) found = tables("x86-64-v4");
  if (found == nullptr) throw std::runtime_error("tigon_torch was built without some kernels for this CPU");
  return *found;
}
Tensor bytes_of(std::size_t n) {
  Tensor made = torch::stable::empty(std::vector<int64_t>{static_cast<int64_t>(n)}, ScalarType::Byte);
  prefer_huge_pages(made.data_ptr(), n);
  return made;
}
/// The scratch memory of a thread's calls. A call within another one has its own, and so has what is small.
struct kept_scratch {
  static constexpr std::size_t least_bytes = std::size_t{256} << 10, most_bytes = std::size_t{32} << 20;
  std::optional<Tensor> memory;
  std::size_t bytes = 0;
  bool taken = false;
};
thread_local kept_scratch kept;

/// Python's, over torch.distributed; set when it is imported.
int (*gather_bytes)(int64_t, const void*, std::size_t, void*) = nullptr;
int (*exchange_bytes)(int64_t, const void*, std::size_t, void*) = nullptr;
void set_communicator(int64_t all_gather, int64_t all_to_all) {
  gather_bytes = reinterpret_cast<decltype(gather_bytes)>(static_cast<std::intptr_t>(all_gather));
  exchange_bytes = reinterpret_cast<decltype(exchange_bytes)>(static_cast<std::intptr_t>(all_to_all));
}

kernel_table with_rows(kernel_table products, const char* set) {
  const kernel_table& rows = within(&row_kernels_for, set);
  products.norms = rows.norms, products.gates = rows.gates, products.rotary = rows.rotary,
  products.losses = rows.losses, products.optimizers = rows.optimizers;
  for (int i = 0; i < static_cast<int>(family::count); ++i)
    if (products.declared[i].count == 0) products.declared[i] = rows.declared[i];
  return products;
}

/// The kernels of an instruction set. f64 and f16 are compiled for one alone.
struct set_kernels {
  kernel_table f32, bf16;
  explicit set_kernels(const char* set)
      : f32(with_rows(within(&f32_kernels_for, set), set)), bf16(with_rows(*bf16_kernels_for(set), set)) {}
};
/// Made at the first call for each set, one of the library that this CPU has.
const set_kernels& kernels_of(const std::string& set) {
  static std::mutex mutex;
  static std::map<std::string, set_kernels> all;
  if (bf16_kernels_for(set.c_str()) == nullptr) throw std::runtime_error("tigon: use: there are no kernels of " + set);
  const std::lock_guard lock(mutex);
  return all.try_emplace(set, set.c_str()).first->second;
}

// Which operators run on another set than the one that was chosen for this CPU: "" stands for those that are not named.
// A call reads the map that it finds; a wish makes another one.
using wishes = std::map<std::string, const set_kernels*, std::less<>>;
std::atomic<const wishes*> wished = nullptr;

/// "" for all operators, or for no wish.
void use(std::string set, std::string op) {
  static std::mutex mutex;
  static std::deque<wishes> all;  // some call may still read each of them
  const std::lock_guard lock(mutex);
  wishes next = all.empty() ? wishes() : all.back();
  if (!set.empty())
    next[op] = &kernels_of(set);
  else
    next.erase(op);
  all.push_back(std::move(next));
  wished.store(all.back().empty() ? nullptr : &all.back());
}

const set_kernels& kernels_for(std::string_view op) {
  if (const wishes* const some = wished.load(); some != nullptr) {
    constexpr std::string_view ending = "_backward";
    if (op.ends_with(ending)) op.remove_suffix(ending.size());
    for (const std::string_view name : {op, std::string_view()})
      if (const auto found = some->find(name); found != some->end()) return *found->second;
  }
  static const set_kernels& chosen = kernels_of(bf16_kernels_instruction_set());
  return chosen;
}

/// The sets of the library that this CPU has.
std::string sets_of_cpu() {
  std::string all;
  for (const char* set : {TIGON_TORCH_SETS})
    if (bf16_kernels_for(set) != nullptr) all += (all.empty() ? "" : " ") + std::string(set);
  return all;
}
std::string sets_of_library() {
  std::string all;
  for (const char* set : {TIGON_TORCH_SETS}) all += (all.empty() ? "" : " ") + std::string(set);
  return all;
}

}  // namespace

void prepare(const Tensor& made) { prefer_huge_pages(made.data_ptr(), size(made.numel()) * made.element_size()); }
bool is_here(const Tensor& t) { return t.is_cpu(); }

bool has_f16() { return f16_kernels_for(half_set) != nullptr; }

call::call(const Tensor&) {
  host_.workers = std::max<std::size_t>(torch::stable::get_num_threads(), 1);
  host_.parallel = [](std::size_t count, void (*work)(void*, std::size_t), void* of) {
    torch::stable::parallel_for(0, static_cast<int64_t>(count), 1, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(of, static_cast<std::size_t>(i));
    });
  };
  host_.scratch = [](void* of, std::size_t bytes) { return static_cast<call*>(of)->scratch(bytes); };
  host_.memory = this;
  host_.all_gather = gather_bytes, host_.all_to_all = exchange_bytes;
}
call::~call() {
  if (has_kept_) kept.taken = false;
}

void* call::scratch(std::size_t bytes) {
  if (bytes < kept_scratch::least_bytes || bytes > kept_scratch::most_bytes || kept.taken) {
    memory_.push_back(bytes_of(bytes));
    return memory_.back().data_ptr();
  }
  if (bytes > kept.bytes) {
    kept.memory.reset();  // before there is more
    kept.bytes = 0;
    kept.memory = bytes_of(bytes);
    kept.bytes = bytes;
  }
  kept.taken = has_kept_ = true;
  return kept.memory->data_ptr();
}

const kernel_table& table(std::string_view op, type of) {
  if (of == type::f64) {
    static const kernel_table& wide = f64_kernels();
    return wide;
  }
  if (of == type::f16) {
    const kernel_table* half = f16_kernels_for(half_set);
    if (half == nullptr) throw std::runtime_error("tigon: f16 needs a CPU with AVX2 and F16C; convert to f32");
    return *half;
  }
  return of == type::bf16 ? kernels_for(op).bf16 : kernels_for(op).f32;
}
const kernel_table& any_table() { return table("", type::f32); }

}  // namespace tigon_torch

STABLE_TORCH_LIBRARY(tigon, m) {
  m.def("instruction_set() -> str");
  m.def("instruction_sets_of_cpu() -> str");
  m.def("instruction_sets_of_library() -> str");
  m.def("use(str set, str op) -> ()");
  m.def("has_f16() -> bool");
  m.def("set_communicator(int all_gather, int all_to_all) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(tigon, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&tigon_torch::name_of_instruction_set));
  m.impl("instruction_sets_of_cpu", TORCH_BOX(&tigon_torch::sets_of_cpu));
  m.impl("instruction_sets_of_library", TORCH_BOX(&tigon_torch::sets_of_library));
  m.impl("use", TORCH_BOX(&tigon_torch::use));
  m.impl("has_f16", TORCH_BOX(&tigon_torch::has_f16));
  m.impl("set_communicator", TORCH_BOX(&tigon_torch::set_communicator));
}
