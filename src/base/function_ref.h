// A borrowed callable: two words, no allocation. For arguments only; the callable must outlive the call.
#pragma once

#include <type_traits>
#include <utility>

namespace lasp {

template <class Signature>
class FunctionRef;

template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  FunctionRef() = default;
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
      FunctionRef(Callable &&callable)  // NOLINT(google-explicit-constructor): meant to be given a lambda
      : callable_(const_cast<void *>(static_cast<const void *>(&callable))),
        call_([](void *c, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable> *>(c))(std::forward<Arguments>(arguments)...);
        }) {}

  explicit operator bool() const { return call_ != nullptr; }
  Result operator()(Arguments... arguments) const {
    return call_(callable_, std::forward<Arguments>(arguments)...);
  }

 private:
  void *callable_ = nullptr;
  Result (*call_)(void *, Arguments...) = nullptr;
};

}  // namespace lasp
