#include "d9d/model_state/mapper/compose.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/modules/module.h"

namespace d9d::mapper {
namespace {

using NameSet = std::set<std::string>;

std::vector<StateGroup> groups_of(const std::vector<StateMapper>& mappers) {
  std::vector<StateGroup> groups;
  for (const StateMapper& mapper : mappers) std::ranges::copy(mapper.groups(), std::back_inserter(groups));
  return groups;
}

class Parallel final : public detail::MapperNode {
 public:
  explicit Parallel(std::vector<StateMapper> mappers) : MapperNode(groups_of(mappers)), mappers_(std::move(mappers)) {
    for (std::size_t i = 0; i < mappers_.size(); ++i) {
      for (const StateGroup& group : mappers_[i].groups()) owner_of_.emplace(*group.inputs.begin(), i);
    }
  }
  MappedTensors map(const MappedTensors& inputs, std::vector<FunctionCall>& calls) const override {
    return mappers_[owner_of_.at(inputs.begin()->first)].node().map(inputs, calls);
  }

 private:
  std::vector<StateMapper> mappers_;
  std::map<std::string, std::size_t> owner_of_;  // by the first input of a group: no two groups share an input
};

// A mapper of a chain, and the tensors that pass by it unchanged.
struct Stage {
  StateMapper mapper;
  NameSet own_inputs = mapper.inputs();
  NameSet own_outputs = mapper.outputs();
  NameSet inputs = own_inputs;
  NameSet outputs = own_outputs;
  NameSet carried = {};

  void carry(const NameSet& names) {
    for (const std::string& name : names) {
      D9D_CHECK(!own_inputs.contains(name), ConfigError, "[model_state::mapper] expected '", name,
                "' to be used once, got a mapper that takes it and a later one that needs it too. Keep a copy of it "
                "(mapper::copy).");
      D9D_CHECK(!own_outputs.contains(name), ConfigError, "[model_state::mapper] expected '", name,
                "' to be made once, got a later mapper that makes it again. Rename one.");
    }
    carried.insert(names.begin(), names.end());
    inputs.insert(names.begin(), names.end());
    outputs.insert(names.begin(), names.end());
  }
};

NameSet minus(const NameSet& a, const NameSet& b) {
  NameSet result;
  std::ranges::set_difference(a, b, std::inserter(result, result.end()));
  return result;
}

std::vector<Stage> in_stages(const std::vector<StateMapper>& mappers) {
  std::vector<Stage> stages;
  for (const StateMapper& mapper : mappers) stages.push_back({.mapper = mapper});
  for (std::size_t i = stages.size() - 1; i > 0; --i) {
    stages[i - 1].carry(minus(stages[i].inputs, stages[i - 1].outputs));
  }
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) {
    stages[i + 1].carry(minus(stages[i].outputs, stages[i + 1].inputs));
  }
  return stages;
}

// Sets of names that are connected by groups, at one position of a chain; each set has a number.
class ConnectedNames {
 public:
  explicit ConnectedNames(const NameSet& names) {
    for (const std::string& name : names) {
      number_of_.emplace(name, parents_.size());
      parents_.push_back(parents_.size());
    }
  }
  // Joins the sets of the names that a group takes, and returns the joined set.
  std::size_t joined(const NameSet& names) {
    const std::size_t first = set_of(*names.begin());
    for (const std::string& name : names) parents_[set_of(name)] = first;
    return first;
  }
  std::size_t set_of(const std::string& name) { return root_of(number_of_.at(name)); }
  std::size_t root_of(std::size_t set) {
    while (parents_[set] != set) set = parents_[set] = parents_[parents_[set]];
    return set;
  }
  // Moves past a mapper: its outputs belong to the sets of its inputs.
  void replace(const std::map<std::string, std::size_t>& sets) { number_of_ = sets; }
  [[nodiscard]] const std::map<std::string, std::size_t>& numbers() const { return number_of_; }

 private:
  std::map<std::string, std::size_t> number_of_;
  std::vector<std::size_t> parents_;
};

std::vector<StateGroup> groups_of(const std::vector<Stage>& stages) {
  ConnectedNames names(stages.front().inputs);
  const std::map<std::string, std::size_t> inputs = names.numbers();
  for (const Stage& stage : stages) {
    std::map<std::string, std::size_t> behind;
    for (const StateGroup& group : stage.mapper.groups()) {
      const std::size_t set = names.joined(group.inputs);
      for (const std::string& name : group.outputs) behind.emplace(name, set);
    }
    for (const std::string& name : stage.carried) behind.emplace(name, names.set_of(name));
    names.replace(behind);
  }
  std::map<std::size_t, StateGroup> groups;
  for (const auto& [name, set] : inputs) groups[names.root_of(set)].inputs.insert(name);
  for (const auto& [name, set] : names.numbers()) groups[names.root_of(set)].outputs.insert(name);
  std::vector<StateGroup> result;
  for (auto& [set, group] : groups) result.push_back(std::move(group));
  return result;
}

class Sequential final : public detail::MapperNode {
 public:
  explicit Sequential(std::vector<Stage> stages) : MapperNode(groups_of(stages)), stages_(std::move(stages)) {
    for (const Stage& stage : stages_) {
      auto& group_of = groups_of_stages_.emplace_back();
      for (const StateGroup& group : stage.mapper.groups()) {
        for (const std::string& name : group.inputs) group_of.emplace(name, &group);
      }
    }
  }
  MappedTensors map(const MappedTensors& inputs, std::vector<FunctionCall>& calls) const override {
    MappedTensors tensors = inputs;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      MappedTensors behind;
      // Tensors are sorted by name, and each group runs at its first input, so that the order is the same on all ranks.
      for (const auto& [name, tensor] : tensors) {
        const auto found = groups_of_stages_[i].find(name);
        if (found == groups_of_stages_[i].end()) {
          behind.emplace(name, tensor);
          continue;
        }
        const StateGroup& group = *found->second;
        if (name != *group.inputs.begin()) continue;
        MappedTensors of_group;
        for (const std::string& input : group.inputs) of_group.emplace(input, tensors.at(input));
        behind.merge(stages_[i].mapper.node().map(of_group, calls));
      }
      tensors = std::move(behind);
    }
    return tensors;
  }

 private:
  std::vector<Stage> stages_;
  std::vector<std::map<std::string, const StateGroup*>> groups_of_stages_;  // by the name of an input
};

class Shard final : public detail::MapperNode {
 public:
  Shard(std::vector<StateGroup> groups, StateMapper mapper)
      : MapperNode(std::move(groups)), mapper_(std::move(mapper)) {}
  MappedTensors map(const MappedTensors& inputs, std::vector<FunctionCall>& calls) const override {
    return mapper_.node().map(inputs, calls);
  }

 private:
  StateMapper mapper_;
};

std::vector<StateGroup> with_prefixes(std::vector<StateGroup> groups, const std::string& of_inputs,
                                      const std::string& of_outputs) {
  const auto with_prefix = [](const NameSet& names, const std::string& prefix) {
    NameSet result;
    for (const std::string& name : names) result.insert(prefix + name);
    return result;
  };
  for (StateGroup& group : groups) {
    group = {.inputs = with_prefix(group.inputs, of_inputs), .outputs = with_prefix(group.outputs, of_outputs)};
  }
  return groups;
}

class PrefixScope final : public detail::MapperNode {
 public:
  PrefixScope(StateMapper mapper, std::string of_inputs, std::string of_outputs)
      : MapperNode(with_prefixes(mapper.groups(), of_inputs, of_outputs)),
        mapper_(std::move(mapper)),
        of_inputs_(std::move(of_inputs)),
        of_outputs_(std::move(of_outputs)) {}
  MappedTensors map(const MappedTensors& inputs, std::vector<FunctionCall>& calls) const override {
    MappedTensors inner;
    for (const auto& [name, tensor] : inputs) inner.emplace(name.substr(of_inputs_.size()), tensor);
    MappedTensors outputs;
    for (auto& [name, tensor] : mapper_.node().map(inner, calls)) outputs.emplace(of_outputs_ + name, tensor);
    return outputs;
  }

 private:
  StateMapper mapper_;
  std::string of_inputs_;
  std::string of_outputs_;
};

}  // namespace

StateMapper parallel(std::vector<StateMapper> mappers) {
  mappers = without_empty(std::move(mappers));
  if (mappers.size() == 1) return mappers[0];
  return StateMapper(std::make_shared<Parallel>(std::move(mappers)));
}

StateMapper sequential(std::vector<StateMapper> mappers) {
  mappers = without_empty(std::move(mappers));
  D9D_CHECK(!mappers.empty(), ConfigError, "[model_state::mapper] expected mappers to run one after the other, got ",
            "none that maps something.");
  if (mappers.size() == 1) return mappers[0];
  return StateMapper(std::make_shared<Sequential>(in_stages(mappers)));
}

StateMapper in_dtype(const StateMapper& mapper, at::ScalarType dtype) {
  std::vector<StateMapper> casts;
  for (const std::string& name : mapper.outputs()) casts.push_back(cast_floats(name, dtype));
  return casts.empty() ? mapper : sequential({mapper, parallel(std::move(casts))});
}

StateMapper shard(const StateMapper& mapper, std::int64_t num_shards, std::int64_t index) {
  D9D_CHECK(num_shards > 0 && index >= 0 && index < num_shards, ConfigError,
            "[model_state::mapper] expected an index in [0, number of shards), got ", index, " of ", num_shards, ".");
  std::vector<StateGroup> groups;
  for (std::size_t i = static_cast<std::size_t>(index); i < mapper.groups().size();
       i += static_cast<std::size_t>(num_shards)) {
    groups.push_back(mapper.groups()[i]);
  }
  return StateMapper(std::make_shared<Shard>(std::move(groups), mapper));
}

StateMapper with_prefix(const StateMapper& mapper, const std::string& of_inputs, const std::string& of_outputs) {
  return StateMapper(std::make_shared<PrefixScope>(mapper, of_inputs, of_outputs));
}

std::vector<StateMapper> without_empty(std::vector<StateMapper> mappers) {
  std::erase_if(mappers, [](const StateMapper& mapper) { return mapper.groups().empty(); });
  return mappers;
}

StateMapper identities(const std::set<std::string>& names) {
  std::vector<StateMapper> mappers;
  for (const std::string& name : names) mappers.push_back(identity(name));
  return parallel(std::move(mappers));
}

StateMapper identities_of_module(const Module& module) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : module.state_dict()) names.insert(name);
  return identities(names);
}

StateMapper identities_of_outputs(const StateMapper& mapper) { return identities(mapper.outputs()); }

}  // namespace d9d::mapper
