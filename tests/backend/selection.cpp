// Compiled under every row of the table in compile_fail/CMakeLists.txt, and never run: TIGON_DEVICE, TIGON_BACKEND and
// the flags choose TIGON_TESTS_CHOSEN.
#include <tigon/backend/select.hpp>

namespace tb = tigon::backends;
static_assert(std::same_as<tigon::default_backend, tb::TIGON_TESTS_CHOSEN>);
static_assert(tigon::backend<tigon::default_backend>);
static_assert(tigon::default_backend::info.devices.contains(tigon::device::TIGON_DEVICE));

// The rule once more, in the language instead of the preprocessor: the first registered backend that is a default on
// the device, and generic where there is none.
constexpr std::string_view first_default() {
  for (const auto& [info, found, needs] : tigon::registered_backends)
    if (found && info.default_devices.contains(tigon::device::TIGON_DEVICE)) return info.name;
  return "generic";
}
static_assert(TIGON_BACKEND_NAMED || tigon::default_backend::info.name == first_default());

// Every CPU of 64 bits has registers, whatever the flags are.
#if defined(__x86_64__) || defined(__aarch64__)
static_assert(tigon::default_backend::info.name == "generic" ||
              tigon::default_backend::engine::lanes<float>::size >= 4);
#endif
