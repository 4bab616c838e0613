// Acme's device, and how a program finds it: metadata alone, no toolkit of acme's is included.
#ifndef ACME_CARD_HPP
#define ACME_CARD_HPP

#include <cstdlib>
#include <tigon/backend/device.hpp>

namespace acme {
inline namespace TIGON_ABI {

/// Bits of memory near a core of the card, 0 without a card. Acme's driver would say; here ACME_CARD_KIB does.
inline std::size_t card_memory_bits() {
  const char* const kib = std::getenv("ACME_CARD_KIB");
  return kib == nullptr ? 0 : std::strtoull(kib, nullptr, 10) * 8192;
}
inline bool card_found() { return card_memory_bits() != 0; }

}  // namespace TIGON_ABI

constexpr tigon::device card{"acme_card", card_found};

}  // namespace acme

#endif  // ACME_CARD_HPP
