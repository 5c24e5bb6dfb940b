#include "d9d/loop/checks/rank_consistency.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/fnv1a.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

// Collective. Returns a description of the first difference, such as "key = 1 on rank 0 and 2 on rank 3"; none if all
// ranks have equal values. values: a flat JSON object.
std::optional<std::string> difference(const nlohmann::json& values, const DeviceMesh& ranks) {
  if (ranks.num_ranks() == 1) return std::nullopt;
  const std::uint64_t own = fnv1a(values.dump());
  const std::vector<nlohmann::json> hashes = all_gather_object(own, ranks);
  if (std::ranges::all_of(hashes, [&](const nlohmann::json& hash) { return hash == hashes.front(); }))
    return std::nullopt;
  const std::vector<nlohmann::json> all = all_gather_object(values, ranks);
  const auto text_of = [](const nlohmann::json& one, const std::string& key) {
    return one.contains(key) ? one.at(key).dump() : std::string("nothing");
  };
  for (std::size_t i = 1; i < all.size(); ++i) {
    nlohmann::json keys = all.front();
    keys.update(all[i]);
    for (const auto& [key, value] : keys.items()) {
      const std::string first = text_of(all.front(), key), other = text_of(all[i], key);
      if (first == other) continue;
      return cat(key, " = ", first, " on rank ", ranks.ranks().front(), " and ", other, " on rank ", ranks.ranks()[i]);
    }
  }
  return "a difference that vanished";
}

nlohmann::json with_dots(const nlohmann::json& pointers) {
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [pointer, value] : pointers.items()) result[dotted_key(pointer)] = value;
  return result;
}

}  // namespace

std::string dotted_key(const std::string& pointer) {
  std::string key = pointer.substr(1);
  std::ranges::replace(key, '/', '.');
  return key;
}

void check_equal_config(const DistContext& context, const TrainerConfig& config, const nlohmann::json& hparams) {
  nlohmann::json keys = hparams;
  nlohmann::json& trainer = keys["trainer"] = write_record(config);
  trainer.erase("run");
  trainer.at("logging").erase("tracker");
  const auto found = difference(with_dots(keys.flatten()), context.mesh(MeshDomain::kBatch));
  D9D_CHECK(!found, ConfigError, "[loop::trainer] expected one configuration on all ranks, got ", *found,
            ". Do not let it depend on the rank, the time or the machine.");
}

void check_equal_export(const DistContext& context, const std::filesystem::path& folder) {
  const auto found = difference({{"export_to", folder.string()}}, context.mesh(MeshDomain::kBatch));
  D9D_CHECK(!found, ConfigError, "[loop::export] expected one folder on all ranks, of which each writes a part, got ",
            *found, ". Do not let it depend on the rank, the time or the machine.");
}

void check_equal_schedule(const DistContext& context, const std::string& name, const StagePlacement& placement) {
  nlohmann::json values{{"name", name}};
  for (std::int64_t stage = 0; stage < placement.num_stages(); ++stage) {
    values[cat("rank of stage ", stage)] = placement.rank_of({stage});
  }
  const auto found = difference(values, context.mesh(MeshDomain::kBatch));
  D9D_CHECK(!found, ConfigError, "[loop::trainer] expected one pipeline schedule on all ranks, got ", *found,
            ". Build it from the same values on every rank.");
}

void check_equal_model(const DistContext& context, const Module& module) {
  nlohmann::json tensors = nlohmann::json::object();
  std::int64_t place = 0;  // ranks sum gradients in this order
  for (const auto& [name, parameter] : module.named_parameters()) {
    tensors["the place of " + name] = place++;
    tensors[name] = cat(parameter->local().scalar_type(), " ", at::IntArrayRef(parameter->global_shape()));
    tensors[name + ".requires_grad"] = parameter->requires_grad();
  }
  const auto found = difference(tensors, context.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"}));
  D9D_CHECK(!found, ConfigError, "[loop::model_stage] expected one model on all ranks, got ", *found,
            ". Build it from the same configuration on every rank, in one order, and freeze the same parameters.");
}

void check_equal_rates(const DistContext& context, double learning_rate, double factor) {
  const nlohmann::json rates = {{"the optimiser's learning rate", learning_rate}, {"the scheduler's factor", factor}};
  const auto found = difference(rates, context.mesh(MeshDomain::kBatch));
  D9D_CHECK(!found, ConfigError, "[loop::trainer] expected one learning rate on all ranks, got ", *found,
            ". Build optimiser and schedule from the same configuration on every rank.");
}

std::map<std::string, EqualValue> equal_at_saves() {
  const std::string schedule = "Build it from the same configuration on every rank, and step it in the loop alone.";
  return {{"data",
           {.rule = "one state of the data stream on all ranks, from which each of them continues",
            .remedy = "Let PackStream::state() say where the job is, not where this rank is."}},
          {"schedule", {.rule = "one number of steps on all ranks", .remedy = schedule}},
          {"lr_scheduler", {.rule = "one state of the learning-rate schedule on all ranks", .remedy = schedule}}};
}

std::multimap<std::string, at::Tensor> copies_of_buffers(const Module& module,
                                                         const std::vector<std::shared_ptr<Module>>& stages,
                                                         const std::string& prefix) {
  std::map<std::string, BufferPtr> saved;
  for (const auto& [name, buffer] : module.named_buffers()) saved.emplace(name, buffer);
  std::multimap<std::string, at::Tensor> copies;
  for (const auto& stage : stages) {
    for (const auto& [name, buffer] : stage->named_buffers()) {
      if (buffer->is_persistent && buffer != saved.at(name)) copies.emplace(prefix + name, buffer->local);
    }
  }
  return copies;
}

}  // namespace d9d
