// What this build of tigon chooses, and why: devices, backends, lanes, capacities, and who provides which operator.
//   tigon_info           everything
//   tigon_info --table   the table operator x backend alone, as it stands in docs/backends.md
//   tigon_info --plans   how the row kernels of every operator are scheduled on the core, and products cut, alone
#include <cstdio>
#include <cstring>
#include <string>

#include <tigon/backend/capacity.hpp>
#include <tigon/simd/tile_registers.hpp>

#include "all_backends.hpp"
#include "plans.hpp"

namespace {

std::string names(const tigon::device_set& set) {
  std::string s;
  for (const tigon::device& d : set) {
    s += (s.empty() ? "" : " and ") + std::string(d.name);
    if (!d.present()) s += " (not there)";
  }
  return s.empty() ? "none" : s;
}

template <class B>
void print_chain() {
  std::printf("%s", B::info.name.data());
  if constexpr (!std::is_void_v<tigon::parent_t<B>>) {
    std::printf(" -> ");
    print_chain<tigon::parent_t<B>>();
  }
}

template <class B>
void print_numbers(const char* indent) {
  using E = typename B::engine;
  std::printf("%sengine      %s, target %s, %zu lanes of f32, %zu of f64\n", indent, E::name.data(), E::target.data(),
              tigon::simd::vec<E, float>::size, tigon::simd::vec<E, double>::size);
  std::printf("%scapacities  tiles of %zu KiB a core", indent, tigon::tile_capacity_of<B> / 8192);
  if constexpr (requires { B::vector_cores; }) std::printf(", %zu vector cores", tigon::vector_cores_of<B>);
  std::printf(", %zu MiB of logits at a time, %zu rows of scores, tasks of %zu elements\n", B::chunk.logits_bytes >> 20,
              B::attention.query_rows, B::row.task_elements);
  std::printf("%skernels     ", indent);
  print_chain<B>();
  std::puts("");
}

template <class... B>
void print_if_named(std::string_view name, backend_list<B...>) {
  ((name == B::info.name ? print_numbers<B>("    ") : void()), ...);
}

template <class... B>
void print_table(backend_list<B...>) {
  static constexpr auto coverage = tigon::coverage_table<B...>(tigon::all_ops{});
  std::printf("| operator |");
  (std::printf(" %s |", B::info.name.data()), ...);
  std::printf("\n|---|");
  for (std::size_t i = 0; i < sizeof...(B); ++i) std::printf("---|");
  std::puts("");
  for (const auto& [op, providers] : coverage) {
    std::printf("| %s |", op.data());
    for (const std::string_view provider : providers) std::printf(" %s |", provider.empty() ? "-" : provider.data());
    std::puts("");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--table") == 0) {
    print_table(all_backends{});
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--plans") == 0) {
    print_plans();
    print_product_plans();
    return 0;
  }
  if (argc != 1) {
    std::fprintf(stderr, "usage: tigon_info [--table | --plans]\n");
    return 2;
  }
  using B = tigon::default_backend;
  std::printf("tigon %s, instruction set %s\n", TIGON_VERSION_STRING, TIGON_STRING(TIGON_TARGET));
  std::printf("core        %s (TIGON_CORE; there are intel, zen4, zen5 and other)\n", tigon::this_core.name.data());
  std::printf("device      %s (TIGON_DEVICE; there are cpu, gpu and npu, and those of your own backends)\n",
              TIGON_STRING(TIGON_DEVICE));
  std::printf("backend     %s: %s\n", B::info.name.data(), tigon::default_backend_reason.data());
  print_numbers<B>("");
  const std::string_view missing = tigon::simd::tile_registers_missing();
  std::printf("tiles       %s\n",
              missing.empty() ? "permitted to this process" : ("not usable: " + std::string(missing)).c_str());

  std::puts("\nregistered, in order of preference");
  for (const auto& [info, found, needs] : tigon::registered_backends) {
    std::printf("  %-12s on %s, default on %s", info.name.data(), names(info.devices).c_str(),
                names(info.default_devices).c_str());
    if (found) {
      std::puts("");
      print_if_named(info.name, shown_backends{});
    } else {
      std::printf("\n    not here    needs %s\n", needs.data());
    }
  }

  std::puts("\nwho provides what");
  print_table(shown_backends{});
  std::puts("");
  print_plans();
  print_product_plans();
}
