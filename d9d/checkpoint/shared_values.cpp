#include "d9d/checkpoint/shared_values.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

// Number of column sums of a tensor. It is prime, so that swapping two neighbouring rows changes the sums, unless the
// length of a row is a multiple of 509 words.
constexpr std::int64_t kColumns = 509;
constexpr std::int64_t kWord = 8;           // bytes
constexpr std::size_t kMaxTextBytes = 200;  // bytes of a value that an error shows

// Returns whether another rank, or another stage of this rank, holds the same elements of a tensor as this rank.
bool is_shared(const DTensor& tensor, const JobTensor& described, const DeviceMesh& job, bool has_copies) {
  if (has_copies || described.pipeline_ranks.size() > 1) return true;
  const std::int64_t num_stages = has_pipeline(job) ? job.axis_size("pp") : 1;
  if (tensor.mesh.axes().empty()) return job.num_ranks() / num_stages > 1;
  for (std::size_t i = 0; i < tensor.placements.size(); ++i) {
    const bool is_cut =
        std::holds_alternative<Shard>(tensor.placements[i]) || std::holds_alternative<FlatShard>(tensor.placements[i]);
    const MeshAxis& axis = tensor.mesh.axes()[i];
    if (!is_cut && axis.size > 1 && axis.name != "pp") return true;
  }
  return false;
}

// Returns an int64 tensor of [kColumns]. Element i is the sum of the tensor's 64-bit words i, i + kColumns, ..., so
// that the sums also change if values swap places.
at::Tensor column_sums(const at::Tensor& tensor) {
  at::Tensor bytes = tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1}).view(at::kByte);
  if (bytes.storage_offset() % kWord != 0) bytes = bytes.clone();
  const std::int64_t num_words = bytes.numel() / kWord, num_rows = num_words / kColumns;
  const at::Tensor words = bytes.narrow(0, 0, num_words * kWord).view(at::kLong);
  at::Tensor sums = num_rows > 0 ? words.narrow(0, 0, num_rows * kColumns).view({num_rows, kColumns}).sum(0)
                                 : at::zeros({kColumns}, words.options());
  const std::int64_t num_left = num_words - num_rows * kColumns, num_bytes = bytes.numel() - num_words * kWord;
  if (num_left > 0) sums.narrow(0, 0, num_left).add_(words.narrow(0, num_rows * kColumns, num_left));
  if (num_bytes > 0)
    sums.narrow(0, kColumns - num_bytes, num_bytes).add_(bytes.narrow(0, num_words * kWord, num_bytes));
  return sums;
}

// Returns the text by which ranks identify a part of a tensor: "weight[0:4, 0:8]".
std::string key_of(const std::string& name, const LocalBox& box) {
  std::string key = name;
  for (std::size_t d = 0; d < box.start.size(); ++d) {
    key += cat(d == 0 ? "[" : ", ", box.start[d], ":", box.start[d] + box.sizes[d]);
  }
  return box.start.empty() ? key : key + "]";
}

std::string short_text(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMaxTextBytes ? text : text.substr(0, kMaxTextBytes) + "...";
}

c10::Device device_of(const CheckpointState& state) {
  for (const auto& [name, tensor] : state.tensors) {
    if (!tensor.local.is_cpu()) return tensor.local.device();
  }
  return at::kCPU;
}

}  // namespace

void SharedValues::Sums::add(const std::string& name, const LocalBox& box, const at::Tensor& values, bool is_buffer) {
  if (values.numel() == 0) return;
  entries.push_back({{"key", key_of(name, box)}, {"is_buffer", is_buffer}});
  columns.push_back(column_sums(values));
}

void SharedValues::Sums::finish(const SideStream& copies) {
  if (columns.empty()) return;
  const at::Tensor all = at::stack(columns);
  const at::Tensor weights = at::arange(1, 2 * kColumns, 2, all.options());  // odd factors are invertible modulo 2^64
  sums.emplace_back((all * weights).sum(1), copies);
  columns.clear();
}

SharedValues::SharedValues(const CheckpointState& state, const JobTensors& all, const DeviceMesh& job)
    : SharedValues(state, all, job, SideStream(device_of(state))) {}

SharedValues::SharedValues(const CheckpointState& state, const JobTensors& all, const DeviceMesh& job,
                           const SideStream& copies) {
  for (const auto& [name, rule] : state.equal_values) {
    const nlohmann::json value = state.values.at(name);
    values_.push_back({{"key", name},
                       {"rule", rule.rule},
                       {"remedy", rule.remedy},
                       {"sum", fnv1a(value.dump())},
                       {"text", short_text(value)}});
  }
  const at::NoGradGuard no_grad;
  const auto sum = [&](bool are_buffers, bool are_on_cpu) {
    Sums sums;
    for (const auto& [name, tensor] : state.tensors) {
      const bool is_buffer = state.buffers.contains(name);
      if (is_buffer != are_buffers || tensor.local.is_cpu() != are_on_cpu) continue;
      const auto [first_copy, end] = state.copies.equal_range(name);
      if (!is_shared(tensor, all.at(name), job, first_copy != end)) continue;
      for (const HeldPart& part : held_parts(tensor)) sums.add(name, part.box, part.values, is_buffer);
      for (auto copy = first_copy; copy != end; ++copy) {
        sums.add(name, whole_box(copy->second.sizes().vec()), copy->second, is_buffer);
      }
    }
    sums.finish(copies);
    return sums;
  };
  for (const bool are_on_cpu : {true, false}) {
    sums_.push_back(sum(/*are_buffers=*/true, are_on_cpu));
    (void)copies.run([&] { sums_.push_back(sum(/*are_buffers=*/false, are_on_cpu)); });
  }
}

nlohmann::json SharedValues::wait() const {
  nlohmann::json all = values_;
  for (const Sums& each : sums_) {
    if (each.sums.empty()) continue;
    const auto* const sum = each.sums.front().wait().const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < each.entries.size(); ++i) {
      all.push_back(each.entries[i]);
      all.back()["sum"] = sum[i];
    }
  }
  return all;
}

void check_shared_values(const std::vector<RankNote>& notes) {
  struct Found {
    std::size_t rank;
    nlohmann::json entry;
  };
  std::map<std::string, Found> first;
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    for (const nlohmann::json& entry : notes[rank].shared) {
      const auto key = entry.at("key").get<std::string>();
      const auto [found, is_new] = first.try_emplace(key, Found{.rank = rank, .entry = entry});
      const nlohmann::json& other = found->second.entry;
      if (is_new || other.at("sum") == entry.at("sum")) continue;
      D9D_CHECK(!entry.contains("rule"), UnequalRanksError, "[checkpoint] expected ", entry.value("rule", ""), ", got ",
                other.value("text", ""), " on rank ", found->second.rank, " and ", entry.value("text", ""), " on rank ",
                rank, ". ", entry.value("remedy", ""));
      const char* const remedy =
          entry.at("is_buffer").get<bool>()
              ? "Average it over ranks in on_step_finished(), name it after its layer, or set is_persistent to false."
              : "Write parameters and optimiser state in the same way on all ranks: not on the main process alone, "
                "and not with values that depend on the rank.";
      throw UnequalRanksError(
          cat("[checkpoint] expected equal values of ", key,
              " on all ranks that have it, because a checkpoint or an export stores one of them, got others on rank ",
              found->second.rank, " (sum of bytes ", other.at("sum").dump(), ") and on rank ", rank, " (",
              entry.at("sum").dump(), "). ", remedy));
    }
  }
}

void check_shared_values(const CheckpointState& state, const DeviceMesh& job) {
  const JobTensors all = job_tensors(state.tensors, job);
  const nlohmann::json own = SharedValues(state, all, job).wait();
  std::vector<RankNote> notes;
  for (const nlohmann::json& shared : all_gather_object(own, job)) {
    notes.push_back({.boxes = {}, .values = {}, .shared = shared});
  }
  check_shared_values(notes);  // all ranks compare the same notes, so all throw the same error
}

}  // namespace d9d
