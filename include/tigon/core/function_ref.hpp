// A callable as a parameter of functions that are no templates over it.
#ifndef TIGON_CORE_FUNCTION_REF_HPP
#define TIGON_CORE_FUNCTION_REF_HPP

#include <tigon/config.hpp>

#include <concepts>
#include <memory>
#include <type_traits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// A reference to a callable, an object or a function; an object has to live as long as the call it is passed to.
template <class F>
class function_ref;
template <class R, class... Args>
class function_ref<R(Args...)> {
 public:
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, function_ref>)
  function_ref(F&& f) {  // NOLINT: converts on purpose
    using callable = std::remove_reference_t<F>;
    if constexpr (std::is_function_v<callable>) {
      of_.function = reinterpret_cast<void (*)()>(&f);
      call_ = [](target of, Args... args) -> R { return reinterpret_cast<callable*>(of.function)(args...); };
    } else {
      of_.object = const_cast<void*>(static_cast<const void*>(std::addressof(f)));
      call_ = [](target of, Args... args) -> R { return (*static_cast<callable*>(of.object))(args...); };
    }
  }
  R operator()(Args... args) const { return call_(of_, args...); }

 private:
  union target {
    void* object;
    void (*function)();
  };
  target of_;
  R (*call_)(target, Args...);
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_CORE_FUNCTION_REF_HPP
