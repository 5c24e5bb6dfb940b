// Groups every k consecutive microbatches of a loader into a pack.
//
// Example
//   FixedCountMicrobatchPacker packs(std::move(loader), {.microbatches_per_pack = 4});
//   while (auto pack = packs.next()) step(*pack);          // 103 microbatches: 25 packs, 26 unless drop_last
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"
#include "d9d/data/pack/pack_stream.h"

namespace d9d {

namespace detail {
template <class T>
inline constexpr bool kIsFilledOptional = false;
template <class Batch>
inline constexpr bool kIsFilledOptional<std::optional<Batch>> = true;

// copy_of_leaf() copies a tensor; check_unchanged() throws StateError if the tensor no longer has the values of the
// copy. This detects a collate that returns the same memory for each microbatch, so that all microbatches of a pack
// would have the values of the last one.
[[nodiscard]] at::Tensor copy_of_leaf(const at::Tensor& leaf);
void check_unchanged(const at::Tensor& copy, const at::Tensor& leaf);
}  // namespace detail

// next() returns std::optional<Batch>: one microbatch, or nullopt at the end.
template <class Loader>
concept HandsOutMicrobatches = detail::kIsFilledOptional<decltype(std::declval<Loader&>().next())>;

// size() returns std::optional<std::int64_t>: the number of microbatches from the start, or nullopt if endless.
template <class Loader>
concept KnowsSize = requires(const Loader& loader) {
  { loader.size() } -> std::same_as<std::optional<std::int64_t>>;
};

// Optional for a loader: microbatch_number() returns the number of the microbatch that next() returned last, as in
// PackStream::microbatch_numbers().
template <class Loader>
concept NumbersMicrobatches = requires(const Loader& loader) {
  { loader.microbatch_number() } -> std::same_as<std::int64_t>;
};

// The input of a packer: a DataLoader, or any class with these functions.
template <class Loader>
concept MicrobatchLoader = HandsOutMicrobatches<Loader> && KnowsSize<Loader> && SavesState<Loader>;

template <MicrobatchLoader Loader>
using MicrobatchOf = typename decltype(std::declval<Loader&>().next())::value_type;

struct PackerOptions {
  std::int64_t microbatches_per_pack = 1;
  bool drop_last = true;  // drop remaining microbatches that do not fill a pack; otherwise they form a smaller pack
};

template <MicrobatchLoader Loader>
class FixedCountMicrobatchPacker final : public PackStream<MicrobatchOf<Loader>> {
 public:
  using Batch = MicrobatchOf<Loader>;

  // Throws ConfigError unless microbatches_per_pack >= 1.
  FixedCountMicrobatchPacker(Loader loader, PackerOptions options)
      : loader_(std::move(loader)), options_(options), position_(loader_.state()) {
    D9D_CHECK(options.microbatches_per_pack >= 1, ConfigError,
              "[data::FixedCountMicrobatchPacker] expected microbatches_per_pack >= 1, got ",
              options.microbatches_per_pack, ". Raise the global batch size.");
  }

  void start() override {
    if constexpr (Starts<Loader>) loader_.start();
  }

  // If the loader throws, resets it to the end of the last pack and rethrows. Throws StateError if the first microbatch
  // of the first pack changes while the others of that pack are read.
  [[nodiscard]] std::optional<std::vector<Batch>> next() override {
    std::vector<Batch> pack;
    std::vector<at::Tensor> first;  // copies of the first microbatch of the first pack, taken when it was read
    numbers_.clear();
    try {
      while (std::ssize(pack) < options_.microbatches_per_pack) {
        std::optional<Batch> microbatch = loader_.next();
        if (!microbatch) break;
        pack.push_back(std::move(*microbatch));
        if constexpr (TensorTree<Batch>) {
          if (std::exchange(is_unchecked_, false)) {
            tree_for_each_leaf(pack.front(), [&](at::Tensor& leaf) { first.push_back(detail::copy_of_leaf(leaf)); });
          }
        }
        if constexpr (NumbersMicrobatches<Loader>) numbers_.push_back(loader_.microbatch_number());
      }
    } catch (...) {
      loader_.load_state(position_);
      throw;
    }
    if constexpr (TensorTree<Batch>) {
      auto copy = first.begin();
      if (!first.empty()) {
        tree_for_each_leaf(pack.front(), [&](at::Tensor& leaf) { detail::check_unchanged(*copy++, leaf); });
      }
    }
    const bool is_full = std::ssize(pack) == options_.microbatches_per_pack;
    if (pack.empty() || (!is_full && options_.drop_last)) return std::nullopt;
    position_ = loader_.state();
    return pack;
  }

  [[nodiscard]] std::vector<std::int64_t> microbatch_numbers() const override { return numbers_; }

  [[nodiscard]] DataDescription describe() const override {
    DataDescription packs{.line = cat("packs of ", counted(options_.microbatches_per_pack, "microbatch", "es"),
                                      ", one pack in each step of a rank")};
    if constexpr (Describes<Loader>) packs.inputs = {loader_.describe()};
    return packs;
  }

  [[nodiscard]] bool tells_of_long_waits() const override {
    if constexpr (requires { loader_.tells_of_long_waits(); }) return loader_.tells_of_long_waits();
    return false;
  }

  [[nodiscard]] std::optional<std::int64_t> total_steps() const override {
    const std::optional<std::int64_t> size = loader_.size();
    if (!size) return std::nullopt;
    const std::int64_t padding = options_.drop_last ? 0 : options_.microbatches_per_pack - 1;
    return (*size + padding) / options_.microbatches_per_pack;
  }

  [[nodiscard]] nlohmann::json state() const override { return position_; }
  void load_state(const nlohmann::json& state) override {
    loader_.load_state(state);
    position_ = state;
  }

 private:
  Loader loader_;
  PackerOptions options_;
  nlohmann::json position_;            // the loader's state after the last pack
  std::vector<std::int64_t> numbers_;  // microbatch numbers of the last pack
  bool is_unchecked_ = true;           // true until the first microbatch has been read
};

}  // namespace d9d
