// A pack consists of the microbatches of exactly one optimiser step on one rank; the training loop gets packs from a
// pack stream. A job saves its position in the data only through this interface.
//
// Example: a stream of another library needs no base class, only these four functions.
//   struct OnePack {
//     std::optional<std::vector<Batch>> next();                // nullopt: no data left
//     std::optional<std::int64_t> total_steps() const;         // all packs from the start; nullopt: unknown or endless
//     nlohmann::json state() const;
//     void load_state(const nlohmann::json& state);
//   };
//   std::unique_ptr<d9d::PackStream<Batch>> stream = d9d::as_pack_stream<Batch>(OnePack{});   // as_pack_stream.h
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/data/description/data_description.h"

namespace d9d {

// A stream whose position can be saved: state() returns the position after the latest result of next(), as a copy that
// later calls do not change. state() must be cheap. A job saves one state for all ranks, so the state must be the same
// on each rank.
template <class T>
concept HasState = requires(const T& source) {
  { source.state() } -> std::same_as<nlohmann::json>;
};
template <class T>
concept LoadsState = requires(T& source, const nlohmann::json& state) {
  { source.load_state(state) } -> std::same_as<void>;
};
template <class T>
concept SavesState = HasState<T> && LoadsState<T>;

// next() returns std::optional<std::vector<Batch>>: the microbatches of one step, with tensors on the host. The number
// and shapes of microbatches may differ between steps; ranks that share a pipeline must get the same number and shapes.
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

// A stream that numbers the microbatches of a pack as AnyPackStream::microbatch_numbers() does.
template <class T>
concept NumbersPacks = requires(const T& source) {
  { source.microbatch_numbers() } -> std::same_as<std::vector<std::int64_t>>;
};

// A stream that can begin to prefetch before the first call of next().
template <class T>
concept Starts = requires(T& source) {
  { source.start() } -> std::same_as<void>;
};

// The members of a pack stream that do not depend on the type of its batches.
class AnyPackStream {
 public:
  AnyPackStream() = default;
  AnyPackStream(const AnyPackStream&) = delete;
  AnyPackStream& operator=(const AnyPackStream&) = delete;
  virtual ~AnyPackStream();

  // Begins to prefetch, if the stream prefetches. Without this call, the first next() begins to.
  virtual void start();
  // Returns a number for each microbatch in the pack that next() returned last, counted from 0 among the step's
  // microbatches on all ranks. Random layers use these numbers to distinguish microbatches, so layouts that give a
  // microbatch the same number draw the same random numbers. If the result is empty, the training loop gives microbatch
  // i the number i * (data-parallel ranks) + (this rank). These numbers are distinct within a step, even if ranks have
  // different numbers of microbatches.
  [[nodiscard]] virtual std::vector<std::int64_t> microbatch_numbers() const;
  // Returns whether next() itself logs long waits and names what it waits for. By default (false) the training loop
  // logs them, without details.
  [[nodiscard]] virtual bool tells_of_long_waits() const;
  // Describes what the stream reads and how; tree_lines() turns the result into text. By default one line without
  // details.
  [[nodiscard]] virtual DataDescription describe() const;
  [[nodiscard]] virtual std::optional<std::int64_t> total_steps() const = 0;
  [[nodiscard]] virtual nlohmann::json state() const = 0;
  virtual void load_state(const nlohmann::json& state) = 0;
};

// The base class of pack streams, through which the training loop owns and reads them.
template <class Batch>
class PackStream : public AnyPackStream {
 public:
  [[nodiscard]] virtual std::optional<std::vector<Batch>> next() = 0;
};

}  // namespace d9d
