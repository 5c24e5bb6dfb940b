// A pack is the microbatches of exactly one optimiser step on one rank; a pack stream is where the training loop gets
// them. It is the one boundary at which the position in the data is saved.
//
// Example: a stream written elsewhere needs no base class, only these four functions.
//   struct OnePack {
//     std::optional<std::vector<Batch>> next();                // nullopt: no data left
//     std::optional<std::int64_t> total_steps() const;         // packs in all from the start; nullopt: unknown,
//     endless nlohmann::json state() const; void load_state(const nlohmann::json& state);
//   };
//   std::unique_ptr<d9d::PackStream<Batch>> stream = d9d::as_pack_stream<Batch>(OnePack{});   // as_pack_stream.h
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

// Can be saved and continued: state() is the position after what next() last returned, cheap and a copy of its own.
template <class T>
concept SavesState = requires(T& source, const T& saved, const nlohmann::json& state) {
  { saved.state() } -> std::same_as<nlohmann::json>;
  { source.load_state(state) } -> std::same_as<void>;
};

// next() returns std::optional<std::vector<Batch>>: one step's microbatches, host tensors. Their number and shapes may
// differ from step to step; ranks that share a pipeline must get the same.
template <class Stream, class Batch>
concept HandsOutPacks = requires(Stream& stream) {
  { stream.next() } -> std::same_as<std::optional<std::vector<Batch>>>;
};

template <class Stream>
concept KnowsTotalSteps = requires(const Stream& stream) {
  { stream.total_steps() } -> std::same_as<std::optional<std::int64_t>>;
};

template <class Stream, class Batch>
concept MicrobatchPackStream = HandsOutPacks<Stream, Batch> && KnowsTotalSteps<Stream> && SavesState<Stream>;

// Knows the numbers of microbatches: PackStream::microbatch_numbers().
template <class T>
concept NumbersPacks = requires(const T& source) {
  { source.microbatch_numbers() } -> std::same_as<std::vector<std::int64_t>>;
};

// Can begin to read ahead before next() is called.
template <class T>
concept Starts = requires(T& source) {
  { source.start() } -> std::same_as<void>;
};

// The same as a base class: what the training loop owns.
template <class Batch>
class PackStream {
 public:
  PackStream() = default;
  PackStream(const PackStream&) = delete;
  PackStream& operator=(const PackStream&) = delete;
  virtual ~PackStream() = default;

  // Begins to read what next() will return first, where that is read ahead; next() begins it otherwise.
  virtual void start() {}
  [[nodiscard]] virtual std::optional<std::vector<Batch>> next() = 0;
  // Of each microbatch of the pack that next() last returned: its number among those of the step on all ranks, from 0
  // on. Random layers tell microbatches apart by it, so layouts that give a microbatch the same number draw the same.
  // Empty: the training loop deals numbers in turn, i * (data-parallel ranks) + (this rank), which differ for all
  // microbatches of a step however many each rank has.
  [[nodiscard]] virtual std::vector<std::int64_t> microbatch_numbers() const { return {}; }
  [[nodiscard]] virtual std::optional<std::int64_t> total_steps() const = 0;
  [[nodiscard]] virtual nlohmann::json state() const = 0;
  virtual void load_state(const nlohmann::json& state) = 0;
};

}  // namespace d9d
