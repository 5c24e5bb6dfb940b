#include "d9d/model_state/mapper/leaves.h"

#include <memory>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/name_regex.h"
#include "d9d/core/dtensor/layout.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/mapper/compose.h"

namespace d9d::mapper {
namespace {

using Names = std::vector<std::string>;
using MoveElements = std::function<std::vector<MappedTensor>(const std::vector<MappedTensor>& inputs)>;

StateGroup group_of(const Names& inputs, const Names& outputs) {
  StateGroup group{.inputs = {inputs.begin(), inputs.end()}, .outputs = {outputs.begin(), outputs.end()}};
  D9D_CHECK(group.inputs.size() == inputs.size() && group.outputs.size() == outputs.size(), ConfigError,
            "[model_state::mapper] expected each name once, got one twice among ", inputs.size(), " inputs from '",
            inputs.empty() ? "" : inputs.front(), "' and ", outputs.size(), " outputs from '",
            outputs.empty() ? "" : outputs.front(), "'.");
  D9D_CHECK(!inputs.empty() && !outputs.empty(), ConfigError,
            "[model_state::mapper] expected at least one input and one output, got ", inputs.size(), " and ",
            outputs.size(), ".");
  return group;
}

class Leaf : public detail::MapperNode {
 public:
  Leaf(std::string kind, const Names& inputs, const Names& outputs)
      : MapperNode({group_of(inputs, outputs)}), kind_(std::move(kind)), inputs_(inputs), outputs_(outputs) {}

  MappedTensors map(const MappedTensors& inputs, std::vector<FunctionCall>& calls) const final {
    std::vector<MappedTensor> in_order;
    for (const std::string& name : inputs_) in_order.push_back(inputs.at(name));
    const std::string place = cat("in ", kind_, " of '", inputs_[0], "'", inputs_.size() > 1 ? " and others" : "");
    const std::vector<MappedTensor> results = with_error_place(place, [&] { return map_in_order(in_order, calls); });
    MappedTensors outputs;
    for (std::size_t i = 0; i < outputs_.size(); ++i) outputs.emplace(outputs_[i], results.at(i));
    return outputs;
  }

 private:
  virtual std::vector<MappedTensor> map_in_order(const std::vector<MappedTensor>& inputs,
                                                 std::vector<FunctionCall>& calls) const = 0;
  std::string kind_;
  Names inputs_;
  Names outputs_;
};

class MovingLeaf final : public Leaf {
 public:
  MovingLeaf(std::string kind, const Names& inputs, const Names& outputs, MoveElements move)
      : Leaf(std::move(kind), inputs, outputs), move_(std::move(move)) {}

 private:
  std::vector<MappedTensor> map_in_order(const std::vector<MappedTensor>& inputs,
                                         std::vector<FunctionCall>&) const override {
    return move_(inputs);
  }
  MoveElements move_;
};

class FunctionLeaf final : public Leaf {
 public:
  explicit FunctionLeaf(MapFunction function)
      : Leaf(function.name, function.inputs, function.outputs),
        function_(std::make_shared<const MapFunction>(std::move(function))) {}

 private:
  std::vector<MappedTensor> map_in_order(const std::vector<MappedTensor>& inputs,
                                         std::vector<FunctionCall>& calls) const override {
    std::vector<StateSpec> specs;
    for (const MappedTensor& input : inputs) specs.push_back(input.spec);
    FunctionCall call{.function = function_, .inputs = inputs, .results = {}, .specs = function_->infer(specs)};
    D9D_CHECK(call.specs.size() == function_->outputs.size(), StateError, "[model_state::mapper] expected ",
              function_->outputs.size(), " tensors, got ", call.specs.size(), ".");
    std::vector<MappedTensor> outputs;
    for (std::size_t i = 0; i < call.specs.size(); ++i) {
      // Not a valid tensor name, so that it cannot be mistaken for an input of the group.
      call.results.push_back(cat(function_->outputs[i], " (result of call ", calls.size(), ")"));
      outputs.push_back(whole_tensor(call.results.back(), call.specs[i]));
    }
    calls.push_back(std::move(call));
    return outputs;
  }
  std::shared_ptr<const MapFunction> function_;
};

StateMapper moving(std::string kind, const Names& from, const Names& to, MoveElements move) {
  return StateMapper(std::make_shared<MovingLeaf>(std::move(kind), from, to, std::move(move)));
}

// A leaf with one tensor, whose name stays.
StateMapper of_one(std::string kind, const std::string& name,
                   const std::function<MappedTensor(const MappedTensor&)>& move) {
  return moving(std::move(kind), {name}, {name},
                [move](const auto& inputs) -> std::vector<MappedTensor> { return {move(inputs[0])}; });
}

std::vector<MappedTensor> parts_of(const MappedTensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  std::vector<MappedTensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(narrowed(x, dim, begin, size));
    begin += size;
  }
  return parts;
}

}  // namespace

StateMapper identity(const std::string& name) { return rename(name, name); }

StateMapper rename(const std::string& from, const std::string& to) {
  return moving("rename", {from}, {to}, [](const auto& inputs) { return inputs; });
}

StateMapper rename_matching(const Names& names, const std::string& pattern, const std::string& replacement) {
  const NameRegex regex(pattern, "[model_state::mapper] ", "to rename by");
  std::vector<StateMapper> renames;
  for (const std::string& name : names) renames.push_back(rename(name, regex.replace(name, replacement)));
  return parallel(renames);
}

StateMapper select_child_modules(const Names& names, const std::string& parent) {
  std::vector<StateMapper> renames;
  for (const std::string& name : names) renames.push_back(rename(cat(parent, ".", name), name));
  return parallel(renames);
}

StateMapper copy(const std::string& from, const Names& to) {
  return moving("copy", {from}, to,
                [count = to.size()](const auto& inputs) { return std::vector<MappedTensor>(count, inputs[0]); });
}

StateMapper transpose(const std::string& name, std::int64_t dim0, std::int64_t dim1) {
  return of_one("transpose", name, [=](const MappedTensor& x) { return transposed(x, dim0, dim1); });
}

StateMapper unsqueeze(const std::string& name, std::int64_t dim) {
  return of_one("unsqueeze", name, [=](const MappedTensor& x) { return unsqueezed(x, dim); });
}

StateMapper squeeze(const std::string& name, std::optional<std::int64_t> dim) {
  return of_one("squeeze", name, [=](MappedTensor x) {
    if (dim) return squeezed(x, *dim);
    for (std::int64_t d = std::ssize(x.spec.shape); d-- > 0;) {
      if (x.spec.shape[static_cast<std::size_t>(d)] == 1) x = squeezed(x, d);
    }
    return x;
  });
}

StateMapper cast(const std::string& name, at::ScalarType dtype) {
  return of_one("cast", name, [=](const MappedTensor& x) { return converted(x, dtype); });
}

StateMapper cast_floats(const std::string& name, at::ScalarType dtype) {
  return of_one("cast", name,
                [=](const MappedTensor& x) { return find_dtype(x.spec.dtype) ? converted(x, dtype) : x; });
}

StateMapper stack(const Names& from, const std::string& to, std::int64_t dim) {
  return moving("stack", from, {to}, [dim](std::vector<MappedTensor> inputs) -> std::vector<MappedTensor> {
    for (MappedTensor& x : inputs) x = unsqueezed(x, dim);
    return {concatenated(inputs, dim)};
  });
}

StateMapper unstack(const std::string& from, const Names& to, std::int64_t dim) {
  return moving("unstack", {from}, to, [dim, count = std::ssize(to)](const auto& inputs) {
    const std::int64_t size = size_of_dim(inputs[0], dim);
    D9D_CHECK(size == count, StateError, "[model_state::mapper] expected dim ", dim, " of size ", count,
              ", one for each name, got ", size, ".");
    auto parts = parts_of(inputs[0], std::vector<std::int64_t>(static_cast<std::size_t>(count), 1), dim);
    for (MappedTensor& part : parts) part = squeezed(part, dim);
    return parts;
  });
}

StateMapper concatenate(const Names& from, const std::string& to, std::int64_t dim) {
  return moving("concatenate", from, {to},
                [dim](const auto& inputs) -> std::vector<MappedTensor> { return {concatenated(inputs, dim)}; });
}

StateMapper chunk(const std::string& from, const Names& to, std::int64_t dim) {
  return moving("chunk", {from}, to, [dim, count = std::ssize(to)](const auto& inputs) {
    const std::int64_t size = size_of_dim(inputs[0], dim);
    std::vector<std::int64_t> sizes;
    for (std::int64_t i = 0; i < count; ++i) sizes.push_back(chunk_range(size, i, count).numel());
    D9D_CHECK(sizes.back() > 0, StateError, "[model_state::mapper] expected a dim ", dim, " that makes ", count,
              " parts, got one of size ", size, ".");
    return parts_of(inputs[0], sizes, dim);
  });
}

StateMapper split(const std::string& from, const std::vector<std::pair<std::string, std::int64_t>>& to,
                  std::int64_t dim) {
  Names names;
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  for (const auto& [name, size] : to) {
    names.push_back(name);
    sizes.push_back(size);
    total += size;
  }
  return moving("split", {from}, names, [dim, sizes, total](const auto& inputs) {
    const std::int64_t size = size_of_dim(inputs[0], dim);
    D9D_CHECK(size == total, StateError, "[model_state::mapper] expected dim ", dim, " of size ", total,
              ", the sum of ", sizes.size(), " parts, got ", size, ".");
    return parts_of(inputs[0], sizes, dim);
  });
}

StateMapper function(const std::string& name, const Names& from, const Names& to,
                     const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>& apply) {
  const auto on_whole = [apply](const std::vector<DTensor>& inputs) {
    std::vector<at::Tensor> tensors;
    for (const DTensor& input : inputs) tensors.push_back(input.local);
    std::vector<DTensor> results;
    for (const at::Tensor& result : apply(tensors)) results.push_back(whole_dtensor(result));
    return results;
  };
  const auto infer = [apply](const std::vector<StateSpec>& inputs) {
    std::vector<at::Tensor> tensors;
    for (const StateSpec& spec : inputs) {
      D9D_CHECK(spec.mesh.axes().empty(), StateError, "[model_state::mapper] expected whole tensors, got one that is ",
                "distributed. Gather it first (mapper::gather_full_tensor).");
      tensors.push_back(at::empty(spec.shape, at::TensorOptions().dtype(spec.dtype).device(at::kMeta)));
    }
    std::vector<StateSpec> results;
    for (const at::Tensor& result : apply(tensors)) {
      results.push_back({.dtype = result.scalar_type(), .shape = result.sizes().vec()});
    }
    return results;
  };
  return StateMapper(std::make_shared<FunctionLeaf>(
      MapFunction{.name = name, .inputs = from, .outputs = to, .apply = on_whole, .infer = infer}));
}

StateMapper distribute(const std::string& name, const DeviceMesh& mesh, const Placements& placements) {
  const auto apply = [mesh, placements](const std::vector<DTensor>& inputs) -> std::vector<DTensor> {
    return {d9d::distribute(inputs[0].local, mesh, placements)};
  };
  const auto infer = [mesh, placements](const std::vector<StateSpec>& inputs) -> std::vector<StateSpec> {
    D9D_CHECK(inputs[0].mesh.axes().empty(), StateError, "[model_state::mapper] expected a whole tensor, got one that ",
              "is distributed over mesh '", inputs[0].mesh.name(), "' already.");
    (void)local_box(inputs[0].shape, mesh, placements);  // throws for placements that do not fit
    return {{.dtype = inputs[0].dtype, .shape = inputs[0].shape, .mesh = mesh, .placements = placements}};
  };
  return StateMapper(std::make_shared<FunctionLeaf>(
      MapFunction{.name = "distribute", .inputs = {name}, .outputs = {name}, .apply = apply, .infer = infer}));
}

StateMapper gather_full_tensor(const std::string& name) {
  const auto apply = [](const std::vector<DTensor>& inputs) -> std::vector<DTensor> {
    return {whole_dtensor(full_tensor(inputs[0]))};
  };
  const auto infer = [](const std::vector<StateSpec>& inputs) -> std::vector<StateSpec> {
    D9D_CHECK(!inputs[0].mesh.axes().empty(), StateError,
              "[model_state::mapper] expected a distributed tensor, got a whole one. Leave the gather out.");
    return {{.dtype = inputs[0].dtype, .shape = inputs[0].shape}};
  };
  return StateMapper(std::make_shared<FunctionLeaf>(
      MapFunction{.name = "gather_full_tensor", .inputs = {name}, .outputs = {name}, .apply = apply, .infer = infer}));
}

}  // namespace d9d::mapper
