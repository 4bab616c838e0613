// Devices that a vendor defines in its own header, found by the vendor's own functions, and backends looked up by them.
#include <gtest/gtest.h>

#include <string>
#include <tigon/backend/lookup.hpp>
#include <tigon/backends/generic/backend.hpp>

namespace {

using tigon::device;
namespace tb = tigon::backends;

bool plugged_in = false;
int asked = 0;
bool look() { return ++asked, plugged_in; }
constexpr bool always() { return true; }
constexpr bool never() { return false; }

constexpr device card{"card", look};            // known when the program runs
constexpr device built_in{"built_in", always};  // known while it compiles
constexpr device old_card{"old_card", never};

struct on_card : tb::generic {
  using parent = tb::generic;
  static constexpr tigon::backend_info info{"on_card", {card, device::cpu}, {card}};
};
struct on_built_in : tb::generic {
  using parent = tb::generic;
  static constexpr tigon::backend_info info{"on_built_in", {built_in}, {built_in}};
};
struct on_old_card : tb::generic {
  using parent = tb::generic;
  static constexpr tigon::backend_info info{"on_old_card", {old_card}, {old_card}};
};
struct opt_in : tb::generic {
  using parent = tb::generic;
  static constexpr tigon::backend_info info{"opt_in", {device::cpu}};
};

constexpr auto name_of = []<class B>() { return std::string(B::info.name); };

TEST(Device, IsItsName) {
  static_assert(card == device("card") && !(card == device::cpu));
  static_assert(device::cpu.present() && device::npu.present() && !device::gpu.present());
  static_assert(built_in.present() && !old_card.present());
  asked = 0;
  EXPECT_FALSE(card.present());
  plugged_in = true;
  EXPECT_TRUE(card.present());
  plugged_in = false;
  EXPECT_EQ(asked, 2);
}

TEST(DeviceSet, HoldsEachDeviceOnce) {
  constexpr tigon::device_set some{card, device::cpu, card};
  static_assert(some.end() - some.begin() == 2 && some.contains("card") && !some.contains(device::npu));
  static_assert(some == tigon::device_set{device::cpu, card} && !(some == tigon::device_set{card}));
  static_assert((some & tigon::device_set{device::npu, device::cpu}) == tigon::device_set{device::cpu});
  static_assert(some.contains(tigon::device_set{card}) && !tigon::device_set{card}.contains(some));
  static_assert(!tigon::device_set{device::gpu, old_card}.present());
  static_assert(tigon::device_set{device::gpu, built_in}.present());
}

TEST(Lookup, WhileCompiling) {
  using all = tigon::backend_list<opt_in, on_old_card, on_built_in, on_card>;
  static_assert(std::same_as<tigon::backend_on<card, all>, on_card>);
  static_assert(std::same_as<tigon::backend_on<built_in, all>, on_built_in>);
  static_assert(std::is_void_v<tigon::backend_on<device::cpu, all>>);
  static_assert(
      std::same_as<tigon::present_backend<tigon::backend_list<opt_in, on_old_card, on_built_in>>, on_built_in>);
  static_assert(std::is_void_v<tigon::present_backend<tigon::backend_list<opt_in, on_old_card>>>);
}

TEST(Lookup, WhenTheProgramRuns) {
  using all = tigon::backend_list<opt_in, on_old_card, on_card, on_built_in>;
  plugged_in = false;
  EXPECT_EQ(tigon::with_present_backend(all{}, name_of), "on_built_in");
  EXPECT_EQ(tigon::with_present_backend(all{}, "built_in", name_of), "on_built_in");
  plugged_in = true;
  EXPECT_EQ(tigon::with_present_backend(all{}, name_of), "on_card");
  EXPECT_EQ(tigon::with_present_backend(all{}, "card", name_of), "on_card");
  EXPECT_EQ(tigon::with_present_backend(all{}, "built_in", name_of), "on_built_in");
  plugged_in = false;
}

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const tigon::error& e) {
    EXPECT_EQ(e.code(), tigon::error_code::state);
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Lookup, SaysWhatThereIs) {
  using all = tigon::backend_list<opt_in, on_old_card, on_card>;
  plugged_in = false;
  EXPECT_EQ(
      refusal([] { tigon::with_present_backend(all{}, name_of); }),
      "tigon: no backend is a default on a device that is there; there are opt_in (opt-in), on_old_card (old_card), "
      "on_card (card)");
  EXPECT_EQ(refusal([] { tigon::with_present_backend(all{}, "card", name_of); }),
            "tigon: no backend is a default on device card, or it is not there; there are opt_in (opt-in), on_old_card "
            "(old_card), on_card (card)");
}

TEST(Registry, WithBackendsOfOnesOwn) {
  constexpr const auto& lines = tigon::registered_with(tigon::backend_list<on_card, tb::generic, opt_in>{});
  static_assert(lines.size() == 2 + std::size(tigon::library_backends));
  static_assert(lines[0].info.name == "on_card" && lines[1].info.name == "opt_in" && lines[2].info.name == "ascend");
  static_assert(tigon::find_backend("card", lines)->info.name == "on_card");
  static_assert(tigon::find_backend("card", tigon::library_backends) == nullptr);
}

}  // namespace
