// Reads a pack stream as microbatches of a task. PackReader hides the types of the task; TypedPackReader<Types> is the
// only implementation.
//
// Example
//   const std::unique_ptr<PackReader> packs = binding.build_packs(context, config, events);
//   while (const auto pack = packs->next()) ...        // the microbatches of a step, with their tensors on the device
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "d9d/data/pack/prefetched_packs.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/task/task.h"

namespace d9d {

class PackReader {
 public:
  PackReader() = default;
  virtual ~PackReader();
  PackReader(const PackReader&) = delete;
  PackReader& operator=(const PackReader&) = delete;

  // Returns the next pack of the stream, with its tensors on the device; nullopt at the end of the data.
  [[nodiscard]] std::optional<MicrobatchPack> next();
  // Returns the pack that next() will return; null at the end of the data.
  [[nodiscard]] const MicrobatchPack* peek();
  // Continues at a position that stream().state() has returned.
  void rewind(const nlohmann::json& position);
  // Returns the number of microbatches of the pack after the one that next() returned last, if a thread has read it
  // already. Does not wait.
  [[nodiscard]] virtual std::optional<std::size_t> num_next() const = 0;
  // The stream itself; its state() is the position after the pack that was read last.
  [[nodiscard]] virtual AnyPackStream& stream() = 0;

 private:
  [[nodiscard]] virtual std::optional<MicrobatchPack> read() = 0;

  std::optional<MicrobatchPack> peeked_;
};

// The packs of each evaluation set, by the names of trainer.evaluation.
using EvaluationPacks = std::map<std::string, std::unique_ptr<PackReader>>;

// Task: TrainTask<Types> or InferenceTask<Types>.
template <class Types, class Task = TrainTask<Types>>
class TypedPackReader final : public PackReader {
 public:
  // task: borrowed.
  TypedPackReader(Task& task, std::unique_ptr<PackStream<BatchOf<Types>>> packs, const PrefetchOptions& options)
      : task_(task), stream_(std::move(packs), options) {}

  [[nodiscard]] std::optional<std::size_t> num_next() const override { return stream_.num_next(); }
  [[nodiscard]] PackStream<BatchOf<Types>>& stream() override { return stream_; }

 private:
  std::optional<MicrobatchPack> read() override {
    auto batches = stream_.next();
    if (!batches) return std::nullopt;
    MicrobatchPack pack;
    for (auto& batch : *batches) pack.push_back(std::make_unique<Microbatch<Types, Task>>(task_, std::move(batch)));
    return pack;
  }

  Task& task_;
  PrefetchedPacks<BatchOf<Types>> stream_;
};

}  // namespace d9d
