// The registry against the types that it names, and the table of providers against the lists of overrides.
#include <gtest/gtest.h>

#include <algorithm>

#include "../../tools/tigon_info/all_backends.hpp"

namespace {

namespace tb = tigon::backends;

template <class B>
consteval const tigon::registered_backend& line_of() {
  for (const tigon::registered_backend& line : tigon::registered_backends)
    if (line.info.name == B::info.name) return line;
  throw "not registered";
}

template <class B>
consteval bool registered_as_it_says() {
  static_assert(line_of<B>().found);
  static_assert(line_of<B>().info.devices == B::info.devices);
  static_assert(line_of<B>().info.default_devices == B::info.default_devices);
  static_assert(std::same_as<typename B::self, B>, "a backend of the library may be derived from");
  return true;
}

TEST(Registry, SaysWhatTheTypesSay) {
  const auto check = []<class... B>(backend_list<B...>) { return (registered_as_it_says<B>() && ...); };
  static_assert(check(all_backends{}));
  constexpr auto found = std::ranges::count(tigon::registered_backends, true, &tigon::registered_backend::found);
  static_assert(found == all_backends::size);
  EXPECT_GE(all_backends::size, 2u) << "this build has generic and nothing else";
}

// As it stands in the sentences of static assertions.
constexpr std::string_view names_in_sentences =
#define TIGON_LINES_AS_TEXT
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_AS_TEXT
    "";

TEST(Registry, TheSentenceNamesEveryLine) {
  std::string sentence;
  for (const tigon::registered_backend& line : tigon::library_backends) {
    const auto& devices = line.info.devices;
    std::string of_line;
    for (const tigon::device& d : devices) of_line += (of_line.empty() ? "" : " and ") + std::string(d.name);
    sentence += std::string(line.info.name) + " (" + of_line + "), ";
  }
  EXPECT_EQ(names_in_sentences, sentence);
}

TEST(Registry, NamesWhatToInstall) {
  for (const auto& [info, found, needs] : tigon::registered_backends) {
    EXPECT_FALSE(needs.empty()) << info.name;
    if (found || needs.starts_with("AVX512") || needs.starts_with("AMX") || needs.starts_with("ARM's bf16") ||
        needs.starts_with("a compiler of CUDA C++; compile"))
      continue;
    EXPECT_NE(needs.find("; install lib"), needs.npos) << info.name;
  }
}

TEST(Registry, OptInBackendsAreNobodysDefault) {
  static_assert(tb::xsimd::info.default_devices.empty() && tb::eigen::info.default_devices.empty());
  static_assert(tb::generic::info.default_devices.empty());
#if TIGON_FOUND_dnnl
  static_assert(tb::onednn::info.default_devices.empty() && !std::same_as<tigon::default_backend, tb::onednn>);
#endif
  static_assert(!std::same_as<tigon::default_backend, tb::xsimd> && !std::same_as<tigon::default_backend, tb::eigen>);
}

/// The nearest backend on the chain that lists Op; the root, which has every operator, lists none.
template <class Op, class B>
consteval std::string_view lists() {
  if constexpr (std::is_void_v<tigon::parent_t<B>> || B::overrides::template contains<Op>)
    return B::info.name;
  else
    return lists<Op, tigon::parent_t<B>>();
}

TEST(Coverage, IsWhatTheListsOfOverridesSay) {
  const auto check = []<class... B, class... Op>(backend_list<B...>, tigon::op_list<Op...>) {
    std::size_t wrong = 0, line = 0;
    const auto row = [&]<class O>(O*) {
      std::size_t column = 0;
      const auto cell = [&](std::string_view expected) {
        wrong += coverage_here[line].op != O::name || coverage_here[line].providers[column++] != expected;
      };
      (cell(lists<O, B>()), ...);
      ++line;
    };
    (row(static_cast<Op*>(nullptr)), ...);
    return wrong;
  };
  static_assert(check(all_backends{}, tigon::all_ops{}) == 0);
  static_assert(coverage_here.size() == tigon::all_ops::size && tigon::all_ops::size >= 12);
}

TEST(Coverage, EveryBackendPassesTheAudit) {
  const auto audited = []<class... B>(backend_list<B...>) { return (tigon::audit<B>(tigon::all_ops{}) && ...); };
  static_assert(audited(all_backends{}));
}

struct my_npu : tb::ascend {
  static constexpr std::size_t tile_capacity_bits = 64 * 8192;
};
struct my_named_npu : tb::ascend {
  using parent = tb::ascend;
  static constexpr tigon::backend_info info{"my_named_npu", {tigon::device::npu}};
  static constexpr std::size_t vector_cores = 2;
};

TEST(Coverage, OfAChildIsItsParents) {
  constexpr auto table = tigon::coverage_table<tb::ascend, my_npu, my_named_npu>(tigon::all_ops{});
  for (const auto& [op, providers] : table) {
    EXPECT_EQ(providers[1], providers[0]) << op;
    EXPECT_EQ(providers[2], providers[0]) << op;
  }
  static_assert(std::same_as<tigon::provider_t<tigon::op::rms_norm, my_npu>, tb::ascend>);
  static_assert(std::same_as<tigon::provider_t<tigon::op::gemm, my_npu>, tb::highway>);
  static_assert(my_npu::tile_capacity_bits == 64 * 8192 && my_named_npu::vector_cores == 2);
  static_assert(tigon::audit<my_npu>(tigon::all_ops{}) && tigon::audit<my_named_npu>(tigon::all_ops{}));
}

TEST(Lookup, ByDevice) {
  using list = tigon::backend_list<tb::xsimd, tb::ascend, my_named_npu, tb::highway, tb::generic>;
  static_assert(std::same_as<tigon::backend_on<tigon::device::npu, list>, tb::ascend>);
  static_assert(std::same_as<tigon::backend_on<tigon::device::cpu, list>, tb::highway>);
  static_assert(std::is_void_v<tigon::backend_on<tigon::device::gpu, list>>);
  EXPECT_EQ(tigon::find_backend("npu")->info.name, "ascend");
  EXPECT_EQ(tigon::find_backend("gpu"), nullptr) << "g++ compiled this";
  static_assert(tigon::find_backend("npu", tigon::library_backends)->info.name == "ascend");
  constexpr tigon::registered_backend opt_in[] = {{{"one", {tigon::device::gpu}}, false, "a toolkit"},
                                                  {{"two", {tigon::device::gpu}}, true, "nothing"}};
  static_assert(tigon::find_backend("gpu", opt_in)->info.name == "two" && !tigon::find_backend("cpu", opt_in));
}

struct vendor_op {
  static constexpr std::string_view name = "vendor_op";
};

TEST(Coverage, LeavesTheCellOfAnotherVendorsOperatorEmpty) {
  static_assert(tigon::coverage<tb::generic>(tigon::op_list<vendor_op>{})[0].provider.empty());
}

}  // namespace
