#include "d9d/model_state/write_model_state.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/model_state/export_plan.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using State = std::map<std::string, DTensor>;

// A tensor as all ranks know it: its description, and which rank sends which box of it.
struct KnownTensor {
  StateSpec spec;
  std::vector<LocalBox> boxes;
  std::vector<std::int64_t> holders;  // of each box; positions in the job
};
using KnownState = std::map<std::string, KnownTensor>;

// The description that a rank sends of its part of the state.
json description_of(const State& state) {
  json all = json::object();
  for (const auto& [name, tensor] : state) {
    for (const Placement& placement : tensor.placements) {
      D9D_CHECK(!std::holds_alternative<Partial>(placement), ConfigError, "[model_state::write] expected values in '",
                name, "', got summands of ranks. Reduce it first.");
    }
    json boxes = json::array();
    for (const HeldPart& part : held_parts(tensor)) boxes.push_back({part.box.start, part.box.sizes});
    all[name] = {static_cast<int>(tensor.local.scalar_type()), tensor.global_shape, std::move(boxes)};
  }
  return all;
}

// Merges the descriptions of all ranks. Each element is sent by the first rank that holds its box.
KnownState known_state(const std::vector<json>& descriptions) {
  KnownState known;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    for (const auto& [name, description] : descriptions[rank].items()) {
      const StateSpec spec{.dtype = static_cast<at::ScalarType>(description[0].get<int>()),
                           .shape = description[1].get<std::vector<std::int64_t>>()};
      KnownTensor& tensor =
          known.try_emplace(name, KnownTensor{.spec = spec, .boxes = {}, .holders = {}}).first->second;
      D9D_CHECK(tensor.spec.dtype == spec.dtype && tensor.spec.shape == spec.shape, StateError,
                "[model_state::write] expected the same tensor '", name, "' on all ranks, got ", tensor.spec.dtype,
                " of shape ", at::IntArrayRef(tensor.spec.shape), " and ", spec.dtype, " of shape ",
                at::IntArrayRef(spec.shape), ". Build the same model everywhere.");
      for (const json& box : description[2]) {
        const LocalBox held{.start = box[0].get<std::vector<std::int64_t>>(),
                            .sizes = box[1].get<std::vector<std::int64_t>>()};
        const auto is_common = [&](const LocalBox& other) { return have_common_elements(other, held); };
        if (held.numel() == 0 || std::ranges::any_of(tensor.boxes, is_common)) continue;
        tensor.boxes.push_back(held);
        tensor.holders.push_back(static_cast<std::int64_t>(rank));
      }
    }
  }
  for (const auto& [name, tensor] : known) {
    std::int64_t held = 0;
    for (const LocalBox& box : tensor.boxes) held += box.numel();
    D9D_CHECK(held == c10::multiply_integers(tensor.spec.shape), StateError,
              "[model_state::write] expected the ranks to hold all elements of '", name, "', got ", held, " of ",
              c10::multiply_integers(tensor.spec.shape), ".");
  }
  return known;
}

// The export's groups and shards, the same on all ranks.
struct Plan {
  std::vector<MappedGroup> groups;
  std::vector<ExportShard> shards;
  [[nodiscard]] const MappedGroup& group_of(const ExportUnit& unit) const { return groups[unit.group]; }
};

MappedGroup mapped(const StateMapper& mapper, const StateGroup& group, const KnownState& state) {
  std::map<std::string, StateSpec> specs;
  for (const std::string& name : group.inputs) specs.emplace(name, state.at(name).spec);
  return mapper.map(specs);
}

Plan plan_of(const StateMapper& mapper, const KnownState& state, std::int64_t max_bytes) {
  std::set<std::string> missing;
  for (const std::string& name : mapper.inputs()) {
    if (!state.contains(name)) missing.insert(name);
  }
  D9D_CHECK(missing.empty(), StateError,
            "[model_state::write] expected the model to have every tensor that the mapper ", "takes, got ",
            missing.size(), " missing: ", detail::quoted(missing), ". Check that model and mapper belong together.");
  Plan plan;
  for (const StateGroup& group : mapper.groups()) plan.groups.push_back(mapped(mapper, group, state));
  std::vector<const MappedGroup*> groups;
  for (const MappedGroup& group : plan.groups) groups.push_back(&group);
  plan.shards = plan_export(groups, max_bytes);
  return plan;
}

// Elements of an input that a unit needs.
struct WantedInput {
  std::string input;
  LocalBox box;
};

std::vector<WantedInput> wanted_of(const ExportUnit& unit, const MappedGroup& group, const KnownState& state) {
  std::vector<WantedInput> wanted;
  if (group.calls.empty()) {
    for (const TensorPart& part : group.outputs.at(unit.outputs[0]).parts) {
      wanted.push_back({.input = part.input, .box = part.source});
    }
    return wanted;
  }
  for (const auto& [name, spec] : group.inputs) {
    wanted.push_back({.input = name, .box = whole_box(state.at(name).spec.shape)});
  }
  return wanted;
}

// Brings the elements of units to the ranks that write them.
class Exchange {
 public:
  Exchange(const Plan& plan, const State& own, const KnownState& state, const DeviceMesh& job)
      : plan_(plan), own_(own), state_(state), job_(job) {}

  // Adds the elements that `unit` needs, for rank `writer` of the job, which writes it. All ranks make the same calls.
  void add(const ExportUnit& unit, std::int64_t writer) {
    for (const WantedInput& wanted : wanted_of(unit, plan_.group_of(unit), state_)) {
      const KnownTensor& tensor = state_.at(wanted.input);
      at::Tensor values;
      if (job_.index() == writer) values = at::empty(wanted.box.sizes, options(tensor.spec.dtype));
      for (const BoxIntersection& part : intersections(tensor.boxes, {wanted.box})) {
        add_part(wanted.input, part.box, tensor.holders[part.source], writer,
                 values.defined() ? view_of(values, wanted.box, part.box) : at::Tensor());
      }
      if (values.defined()) arrived_.push_back(values);
    }
  }

  // Collective over the ranks that send or receive. Returns the elements that each unit of this rank needs, in the
  // order of add().
  std::vector<at::Tensor> finish() {
    if (!messages_.empty()) job_.communicator()->exchange(messages_).wait();
    job_.throw_if_failed();
    for (const auto& [into, buffer] : received_) into.copy_(buffer);
    return std::move(arrived_);
  }

 private:
  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).device(job_.num_ranks() > 1 ? job_.communicator()->device() : at::kCPU);
  }

  // The bytes of a contiguous tensor: any dtype can be sent.
  static at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

  void add_part(const std::string& name, const LocalBox& box, std::int64_t holder, std::int64_t writer,
                const at::Tensor& into) {
    if (job_.index() == holder) {
      const at::Tensor values = own_values(name, box);
      if (holder == writer) {
        into.copy_(values);
      } else {
        messages_.push_back(
            {PointToPoint::Direction::kSend, bytes_of(values.resolve_conj().resolve_neg().contiguous()), writer});
      }
    } else if (job_.index() == writer) {
      const at::Tensor buffer = into.is_contiguous() ? into : at::empty(box.sizes, into.options());
      messages_.push_back({PointToPoint::Direction::kReceive, bytes_of(buffer), holder});
      if (!buffer.is_same(into)) received_.emplace_back(into, buffer);
    }
  }

  at::Tensor own_values(const std::string& name, const LocalBox& box) const {
    for (const HeldPart& part : held_parts(own_.at(name))) {
      const auto common = intersections({part.box}, {box});
      if (!common.empty() && common[0].box == box) return view_of(part.values, part.box, box);
    }
    throw InternalError(cat("[bug] this rank does not hold what it said of '", name, "'"));
  }

  const Plan& plan_;
  const State& own_;
  const KnownState& state_;
  const DeviceMesh& job_;
  std::vector<PointToPoint> messages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> received_;  // target, and the received values
  std::vector<at::Tensor> arrived_;
};

// The outputs of a unit, from the elements that it received.
std::map<std::string, at::Tensor> outputs_of(const ExportUnit& unit, const MappedGroup& group,
                                             const std::vector<at::Tensor>& arrived) {
  std::map<std::string, at::Tensor> outputs;
  if (!group.calls.empty()) {
    std::map<std::string, DTensor> inputs;
    for (const auto& [name, spec] : group.inputs) inputs.emplace(name, whole_dtensor(arrived[inputs.size()]));
    const std::set<std::string> wanted(unit.outputs.begin(), unit.outputs.end());
    for (const auto& [name, output] : run_group(group, inputs, wanted)) outputs.emplace(name, output.local);
    return outputs;
  }
  std::size_t next = 0;
  const MappedTensor& output = group.outputs.at(unit.outputs[0]);
  return {{unit.outputs[0], assembled(output, [&](const TensorPart&) { return arrived[next++]; })}};
}

// A shard that this rank writes. After an error the rank writes nothing more but still receives, because the others
// send.
class ShardFile {
 public:
  ShardFile(const fs::path& path, const Plan& plan, const ExportShard& shard) : plan_(plan) {
    attempt([&] { writer_.emplace(path, shard.tensors); });
  }
  void write(const ExportUnit& unit, const std::vector<at::Tensor>& arrived) {
    attempt([&] {
      for (const auto& [name, tensor] : outputs_of(unit, plan_.group_of(unit), arrived)) writer_->write(name, tensor);
    });
  }
  void finish() {
    attempt([&] { writer_->commit(); });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  template <class Work>
  void attempt(const Work& work) {
    if (error_) return;
    try {
      work();
    } catch (const std::exception&) {
      error_ = std::current_exception();
    }
  }
  const Plan& plan_;
  std::optional<SafetensorsWriter> writer_;
  std::exception_ptr error_;
};

// Shards [first, first + number of ranks), one on each rank.
void write_shards(const fs::path& folder, const Plan& plan, std::size_t first, const State& own,
                  const KnownState& state, const DeviceMesh& job, const WriteOptions& options) {
  const std::vector<ExportShard>& shards = plan.shards;
  const auto num_ranks = static_cast<std::size_t>(job.num_ranks()), rank = static_cast<std::size_t>(job.index());
  const std::size_t last = std::min(first + num_ranks, shards.size());
  std::size_t num_units = 0;
  for (std::size_t i = first; i < last; ++i) num_units = std::max(num_units, shards[i].units.size());
  const ExportShard* const own_shard = first + rank < last ? &shards[first + rank] : nullptr;
  std::optional<ShardFile> file;
  if (own_shard != nullptr) {
    const std::string name = options.only_file.value_or(huggingface_shard_name(first + rank, shards.size()));
    file.emplace(folder / name, plan, *own_shard);
  }
  for (std::size_t unit = 0; unit < num_units; ++unit) {
    Exchange exchange(plan, own, state, job);
    for (std::size_t i = first; i < last; ++i) {
      if (unit < shards[i].units.size()) exchange.add(shards[i].units[unit], static_cast<std::int64_t>(i - first));
    }
    const std::vector<at::Tensor> arrived = exchange.finish();
    if (own_shard != nullptr && unit < own_shard->units.size()) file->write(own_shard->units[unit], arrived);
  }
  agreed(job, [&] {
    if (file) file->finish();
  });
}

}  // namespace

std::map<std::string, DTensor> state_of(const Module& module) {
  std::map<std::string, DTensor> state;
  for (const auto& [name, parameter] : module.named_parameters()) state.emplace(name, parameter->dtensor());
  for (const auto& [name, buffer] : module.named_buffers()) {
    if (buffer->is_persistent) state.emplace(name, whole_dtensor(buffer->local));
  }
  return state;
}

std::vector<std::string> write_model_state(const fs::path& folder, const StateMapper& mapper, const State& state,
                                           const DeviceMesh& job, const WriteOptions& options) {
  const at::NoGradGuard no_grad;
  json description;
  agreed(job, [&] { description = description_of(state); });
  const KnownState known = known_state(all_gather_object(description, job));
  const Plan plan = plan_of(mapper, known, options.only_file ? kNoLimit : options.max_shard_bytes);

  std::optional<HuggingFaceExport> target;  // on the first rank
  json staging;
  on_first_rank(job, [&] {
    target.emplace(folder, options.files);
    staging = target->staging().string();
  });
  const fs::path place = all_gather_object(staging, job).front().get<std::string>();
  for (std::size_t first = 0; first < plan.shards.size(); first += static_cast<std::size_t>(job.num_ranks())) {
    write_shards(place, plan, first, state, known, job, options);
  }
  on_first_rank(job, [&] {
    std::vector<std::vector<TensorSource>> tensors;
    for (const ExportShard& shard : plan.shards) tensors.push_back(shard.tensors);
    target->commit(tensors);
  });
  std::vector<std::string> names;
  for (const auto& [name, tensor] : known) names.push_back(name);
  const std::set<std::string> used = mapper.inputs();
  std::erase_if(names, [&](const std::string& name) { return used.contains(name); });
  return names;
}

}  // namespace d9d
