// The types of a task: BatchOf<Types> is Types::Batch, and so on. A missing type gives one compile error, which says
// what to add. Transfer, the tensors that a pipeline stage sends to the next one, is only needed for models of several
// stages.
#pragma once

#include <type_traits>

namespace d9d {

namespace detail {

// Stands for a missing type after its error, so that no further errors follow.
struct MissingType {
  MissingType() = default;
  template <class T>
  MissingType(const T&) {}  // NOLINT: accepts what the missing type would have been built from
};

template <class Types>
inline constexpr bool kLacksType = sizeof(Types) == 0;  // false, and depends on Types

template <class Types>
struct BatchOf {
  static_assert(kLacksType<Types>, "the Types of a task need `using Batch = ...;`: one collated microbatch");
  using Type = MissingType;
};
template <class Types>
requires requires { typename Types::Batch; }
struct BatchOf<Types> {
  using Type = typename Types::Batch;
};

template <class Types>
struct InputOf {
  static_assert(kLacksType<Types>, "the Types of a task need `using Input = ...;`: what enters the first stage");
  using Type = MissingType;
};
template <class Types>
requires requires { typename Types::Input; }
struct InputOf<Types> {
  using Type = typename Types::Input;
};

template <class Types>
struct SharedOf {
  static_assert(kLacksType<Types>,
                "the Types of a task need `using Shared = ...;`: what every stage gets (std::monostate: nothing)");
  using Type = MissingType;
};
template <class Types>
requires requires { typename Types::Shared; }
struct SharedOf<Types> {
  using Type = typename Types::Shared;
};

template <class Types>
struct OutputOf {
  static_assert(kLacksType<Types>,
                "the Types of a task need `using Output = ...;`: what forward of the last stage returns");
  using Type = MissingType;
};
template <class Types>
requires requires { typename Types::Output; }
struct OutputOf<Types> {
  using Type = typename Types::Output;
};

template <class Types>
struct StateOf {
  static_assert(kLacksType<Types>,
                "the Types of a task need `using State = ...;`: what is kept of a microbatch until its metrics are "
                "updated (std::monostate: nothing)");
  using Type = MissingType;
};
template <class Types>
requires requires { typename Types::State; }
struct StateOf<Types> {
  static_assert(!std::is_void_v<typename Types::State>,
                "Types::State must be a type with values: std::monostate if nothing is kept of a microbatch");
  using Type = std::conditional_t<std::is_void_v<typename Types::State>, MissingType, typename Types::State>;
};

struct NoTransfer {};

template <class Types>
struct TransferOf {
  using Type = NoTransfer;
};
template <class Types>
requires requires { typename Types::Transfer; }
struct TransferOf<Types> {
  using Type = typename Types::Transfer;
};

}  // namespace detail

template <class Types>
using BatchOf = typename detail::BatchOf<Types>::Type;
template <class Types>
using InputOf = typename detail::InputOf<Types>::Type;
template <class Types>
using SharedOf = typename detail::SharedOf<Types>::Type;
template <class Types>
using OutputOf = typename detail::OutputOf<Types>::Type;
template <class Types>
using StateOf = typename detail::StateOf<Types>::Type;
template <class Types>
using TransferOf = typename detail::TransferOf<Types>::Type;
template <class Types>
inline constexpr bool kHasTransfer = requires {
  typename Types::Transfer;
};

}  // namespace d9d
