// What a device is: a name, and how a program finds out whether there is one. Vendors define their own.
#ifndef TIGON_BACKEND_DEVICE_HPP
#define TIGON_BACKEND_DEVICE_HPP

#include <tigon/config.hpp>

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace tigon {

namespace detail {
// Not constexpr and nowhere defined: a call in a constant expression is an error that shows the sentence, with and
// without exceptions.
void refuse(const char* sentence);
}  // namespace detail

/// A device of the library (cpu, npu, gpu), or one that a vendor defines in its own header:
///
///   constexpr tigon::device card{"acme_card", card_found};   // bool card_found(), constexpr or of run time
///
/// Two devices of one name are the same device. TIGON_DEVICE is compared by name, too.
class device {
 public:
  static const device cpu;  ///< always there
  static const device npu;  ///< modelled on the CPU (docs/ascend.md), so always there
  static const device gpu;  ///< a name alone; units that nvcc compiles ask CUDA whether there is one (gpu::found)

  std::string_view name;

  /// `found` is called at every query; a device without it is always there.
  consteval device(std::string_view n, bool (*found)() = nullptr) : device(n, true, found) {}

  /// Whether there is one. A constant expression if `found` is.
  constexpr TIGON_INLINE bool present() const { return found_ == nullptr ? assumed_ : found_(); }
  friend constexpr TIGON_INLINE bool operator==(const device& a, const device& b) { return a.name == b.name; }

 private:
  friend class device_set;
  constexpr device() = default;
  consteval device(std::string_view n, bool assumed, bool (*found)()) : name(n), assumed_(assumed), found_(found) {
    if (n.empty()) detail::refuse("tigon: a device needs a name");
  }

  bool assumed_ = false;
  bool (*found_)() = nullptr;
};

inline constexpr device device::cpu{"cpu"};
inline constexpr device device::npu{"npu"};
inline constexpr device device::gpu{"gpu", false, nullptr};

/// Up to eight devices, each once.
class device_set {
 public:
  static constexpr std::size_t most = 8;

  consteval device_set() {}  // nvcc takes {} for a device with private members otherwise
  consteval device_set(std::initializer_list<device> devices) {
    for (const device& d : devices) add(d);
  }
  constexpr TIGON_INLINE const device* begin() const { return at_; }
  constexpr TIGON_INLINE const device* end() const { return at_ + count_; }
  constexpr TIGON_INLINE bool empty() const { return count_ == 0; }
  constexpr TIGON_INLINE bool contains(std::string_view name) const {
    for (const device& d : *this)
      if (d.name == name) return true;
    return false;
  }
  constexpr TIGON_INLINE bool contains(const device& d) const { return contains(d.name); }
  constexpr TIGON_INLINE bool contains(const device_set& other) const {
    for (const device& d : other)
      if (!contains(d)) return false;
    return true;
  }
  /// Whether one of them is there.
  constexpr TIGON_INLINE bool present() const {
    for (const device& d : *this)
      if (d.present()) return true;
    return false;
  }
  /// The devices of both.
  friend consteval device_set operator&(const device_set& a, const device_set& b) {
    device_set both{};
    for (const device& d : a)
      if (b.contains(d)) both.add(d);
    return both;
  }
  friend constexpr TIGON_INLINE bool operator==(const device_set& a, const device_set& b) {
    return a.contains(b) && b.contains(a);
  }

 private:
  consteval void add(const device& d) {
    if (contains(d)) return;
    if (count_ == most) detail::refuse("tigon: a backend has eight devices at most");
    at_[count_++] = d;
  }

  device at_[most]{};
  std::size_t count_ = 0;
};

}  // namespace tigon

#endif  // TIGON_BACKEND_DEVICE_HPP
