// Wraps a pack stream of any type in a PackStream, the base class through which the training loop owns streams.
//
// Example
//   std::unique_ptr<PackStream<Batch>> stream = as_pack_stream<Batch>(TokenBudgetStream(path));
#pragma once

#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/data/pack/pack_stream.h"

namespace d9d {

namespace detail {

template <class Batch, MicrobatchPackStream<Batch> Stream>
[[nodiscard]] std::unique_ptr<PackStream<Batch>> own_pack_stream(Stream stream) {
  class Owner final : public PackStream<Batch> {
   public:
    explicit Owner(Stream inner) : inner_(std::move(inner)) {}
    void start() override {
      if constexpr (Starts<Stream>) inner_.start();
    }
    std::optional<std::vector<Batch>> next() override { return inner_.next(); }
    std::vector<std::int64_t> microbatch_numbers() const override {
      if constexpr (NumbersPacks<Stream>) return inner_.microbatch_numbers();
      return {};
    }
    DataDescription describe() const override {
      if constexpr (Describes<Stream>) return inner_.describe();
      return PackStream<Batch>::describe();
    }
    std::optional<std::int64_t> total_steps() const override { return inner_.total_steps(); }
    nlohmann::json state() const override { return inner_.state(); }
    void load_state(const nlohmann::json& state) override { inner_.load_state(state); }

   private:
    Stream inner_;
  };
  return std::make_unique<Owner>(std::move(stream));
}

}  // namespace detail

// Wraps a stream that satisfies MicrobatchPackStream<Batch>.
template <class Batch, class Stream>
[[nodiscard]] std::unique_ptr<PackStream<Batch>> as_pack_stream(Stream stream) {
  static_assert(HandsOutPacks<Stream, Batch>,
                "a pack stream needs the member `std::optional<std::vector<Batch>> next()`, with the Batch of "
                "as_pack_stream<Batch>");
  static_assert(KnowsTotalSteps<Stream>,
                "a pack stream needs the member `std::optional<std::int64_t> total_steps() const`");
  static_assert(HasState<Stream>, "a pack stream needs the member `nlohmann::json state() const`");
  static_assert(LoadsState<Stream>, "a pack stream needs the member `void load_state(const nlohmann::json& state)`");
  if constexpr (MicrobatchPackStream<Stream, Batch>) {
    return detail::own_pack_stream<Batch>(std::move(stream));
  } else {
    return nullptr;
  }
}

}  // namespace d9d
