#include "d9d/model_state/convert_model_state.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/export_plan.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/model_state/io/thread_queue.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
using Values = std::map<std::string, at::Tensor>;

// A file that several threads write: open from its first unit to its last.
class SharedShard {
 public:
  SharedShard(fs::path path, const ExportShard& shard)
      : path_(std::move(path)), shard_(shard), num_left_(shard.units.size()) {}

  void write(const Values& values) {
    SafetensorsWriter& writer = opened();
    for (const auto& [name, tensor] : values) writer.write(name, tensor);
    const std::scoped_lock lock(mutex_);
    if (--num_left_ > 0) return;
    writer_->commit();
    writer_.reset();
  }

 private:
  SafetensorsWriter& opened() {
    const std::scoped_lock lock(mutex_);
    if (!writer_) writer_.emplace(path_, shard_.tensors);
    return *writer_;
  }

  const fs::path path_;
  const ExportShard& shard_;
  std::mutex mutex_;  // guards the members below; different tensors are written without it
  std::optional<SafetensorsWriter> writer_;
  std::size_t num_left_;
};

// A unit with the file that it goes to.
struct Task {
  const ExportUnit* unit;
  SharedShard* shard;
};

Values values_of(const ExportUnit& unit, const SourceGroup& group) {
  Values values;
  if (!group.mapped.calls.empty()) {
    const std::set<std::string> wanted(unit.outputs.begin(), unit.outputs.end());
    for (const auto& [name, output] : read_group(group, wanted)) values.emplace(name, output.local);
    return values;
  }
  const std::string& name = unit.outputs[0];
  const MappedTensor& output = group.mapped.outputs.at(name);
  const at::Tensor tensor = at::empty(output.spec.shape, output.spec.dtype);
  std::vector<BoxRead> reads;
  add_reads(output, whole_box(output.spec.shape), tensor, group.inputs, reads);
  (void)read_boxes(reads, {.num_threads = 1});
  values.emplace(name, tensor);
  return values;
}

// Counts the tensors written, and reports progress.
class Counter {
 public:
  Counter(const std::vector<ExportShard>& shards, const std::function<void(const ConvertProgress&)>& tell)
      : tell_(tell) {
    for (const ExportShard& shard : shards) {
      progress_.num_tensors += shard.tensors.size();
      for (const TensorSource& tensor : shard.tensors) progress_.num_bytes += num_bytes(tensor);
    }
    add({});
  }
  void add(const Values& written) {
    const std::scoped_lock lock(mutex_);
    progress_.num_written += written.size();
    for (const auto& [name, tensor] : written) progress_.bytes_written += static_cast<std::int64_t>(tensor.nbytes());
    if (tell_) tell_(progress_);
  }

 private:
  const std::function<void(const ConvertProgress&)>& tell_;
  std::mutex mutex_;
  ConvertProgress progress_;
};

}  // namespace

std::vector<std::string> convert_model_state(const fs::path& folder, const StateMapper& mapper,
                                             const NamedTensors& tensors, const ConvertOptions& options) {
  const std::vector<SourceGroup> groups = source_groups(mapper, tensors, mapper.outputs());
  std::vector<const MappedGroup*> mapped;
  for (const SourceGroup& group : groups) mapped.push_back(&group.mapped);
  const std::vector<ExportShard> shards = plan_export(mapped, options.only_file ? kNoLimit : options.max_shard_bytes);

  HuggingFaceExport target(folder, options.files);
  std::vector<std::unique_ptr<SharedShard>> files;
  std::vector<Task> tasks;
  for (const ExportShard& shard : shards) {
    const std::string name = options.only_file.value_or(huggingface_shard_name(files.size(), shards.size()));
    files.push_back(std::make_unique<SharedShard>(target.staging() / name, shard));
    for (const ExportUnit& unit : shard.units) tasks.push_back({.unit = &unit, .shard = files.back().get()});
  }
  Counter counter(shards, options.on_progress);
  work_through(tasks.size(), options.num_workers, [&]() -> WorkOnItem {
    return [&](std::size_t i) {
      const ExportUnit& unit = *tasks[i].unit;
      const Values values =
          with_error_place(cat("for '", unit.outputs[0], "'"), [&] { return values_of(unit, groups[unit.group]); });
      tasks[i].shard->write(values);
      counter.add(values);
    };
  });
  std::vector<std::vector<TensorSource>> described;
  for (const ExportShard& shard : shards) described.push_back(shard.tensors);
  target.commit(described);
  return unused_names(mapper, tensors.names);
}

}  // namespace d9d
