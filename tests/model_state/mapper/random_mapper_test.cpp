// Random graphs against programs that call LibTorch on whole tensors: groups, values, and parts of values.
#include <cstdlib>
#include <numeric>
#include <random>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck.h>

#include "d9d/core/dtensor/held_parts.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/io/box_reader.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

#include "tests/support/io_faults.h"

namespace d9d::random_mapper_test {
namespace {
using Shape = std::vector<std::int64_t>;

// A value as the program computes it, and which inputs of the graph it comes from.
struct Traced {
  at::Tensor value;
  std::set<std::string> from;
};
using Program = std::map<std::string, Traced>;

class Graph {
 public:
  explicit Graph(std::uint32_t seed) : random_(seed) {
    const int num_inputs = draw(1, 6);
    for (int i = 0; i < num_inputs; ++i) {
      const std::string name = "in" + std::to_string(i);
      Shape shape;
      for (int d = draw(0, 3); d > 0; --d) shape.push_back(draw(1, 4));
      const auto count = c10::multiply_integers(shape);
      const at::Tensor value = (at::arange(count, at::kFloat) + 1000 * i + 1).reshape(shape);
      inputs_.emplace(name, draw(0, 3) == 0 ? value.to(at::kDouble) : value);
      state_.emplace(name, Traced{.value = inputs_.at(name), .from = {name}});
    }
    std::vector<StateMapper> stages;
    for (int stage = draw(1, 4); stage > 0; --stage) stages.push_back(draw_stage());
    while (stages.size() > 1 && draw(0, 1) == 0) {  // chains within chains
      const auto at = static_cast<std::size_t>(draw(0, static_cast<int>(stages.size()) - 2));
      stages[at] = mapper::sequential({stages[at], stages[at + 1]});
      stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    // Inputs that no stage touches are not the mapper's.
    mapper = std::make_unique<StateMapper>(mapper::sequential(stages));
    std::erase_if(inputs_, [&](const auto& input) { return !mapper->inputs().contains(input.first); });
    std::erase_if(state_, [&](const auto& output) { return !mapper->outputs().contains(output.first); });
  }

  std::unique_ptr<StateMapper> mapper;
  [[nodiscard]] const std::map<std::string, at::Tensor>& inputs() const { return inputs_; }
  [[nodiscard]] const Program& outputs() const { return state_; }
  int draw(int first, int last) { return std::uniform_int_distribution(first, last)(random_); }

  // What hangs together, by brute force: outputs that come from a common input, until nothing changes.
  [[nodiscard]] std::vector<StateGroup> groups() const {
    std::vector<StateGroup> groups;
    for (const auto& [name, output] : state_) {
      StateGroup merged{.inputs = output.from, .outputs = {name}};
      std::erase_if(groups, [&](StateGroup& other) {
        const bool is_common =
            std::ranges::any_of(other.inputs, [&](const auto& x) { return merged.inputs.contains(x); });
        if (is_common) {
          merged.inputs.merge(other.inputs);
          merged.outputs.merge(other.outputs);
        }
        return is_common;
      });
      groups.push_back(std::move(merged));
    }
    std::ranges::sort(groups);
    return groups;
  }

 private:
  std::string new_name() { return "t" + std::to_string(num_names_++); }

  // Leaves over disjoint parts of what there is; the rest passes by.
  StateMapper draw_stage() {
    std::vector<std::string> names;
    for (const auto& [name, traced] : state_) names.push_back(name);
    std::ranges::shuffle(names, random_);
    std::vector<StateMapper> leaves;
    while (!names.empty() && (leaves.empty() || draw(0, 2) > 0)) leaves.push_back(draw_leaf(names));
    return mapper::parallel(std::move(leaves));
  }

  StateMapper draw_leaf(std::vector<std::string>& names) {
    const std::string from = names.back();
    names.pop_back();
    Traced x = take(from);
    const auto num_dims = static_cast<int>(x.value.dim());
    const auto keep = [&](const std::string& name, at::Tensor value) {
      state_.emplace(name, Traced{.value = std::move(value), .from = x.from});
    };
    const int dim = num_dims > 0 ? draw(0, num_dims - 1) : 0;
    const auto size = num_dims > 0 ? x.value.size(dim) : 0;
    switch (draw(0, num_dims > 0 ? 9 : 4)) {
      case 0: {
        const std::string to = draw(0, 1) == 0 ? from : new_name();
        keep(to, x.value);
        return mapper::rename(from, to);
      }
      case 1: {
        const int at = draw(-num_dims - 1, num_dims);
        keep(from, x.value.unsqueeze(at));
        return mapper::unsqueeze(from, at);
      }
      case 2: {
        const auto dtype = draw(0, 1) == 0 ? at::kDouble : at::kFloat;
        keep(from, x.value.to(dtype));
        return mapper::cast(from, dtype);
      }
      case 3: {
        const std::string a = new_name(), b = new_name();
        keep(a, x.value);
        keep(b, x.value);
        return mapper::copy(from, {a, b});
      }
      case 4: {
        const std::string a = new_name(), b = new_name();
        keep(a, x.value * 2);
        keep(b, x.value.flatten());
        return mapper::function("two", {from}, {a, b}, [](const std::vector<at::Tensor>& inputs) {
          return std::vector<at::Tensor>{inputs[0] * 2, inputs[0].flatten()};
        });
      }
      case 5: {
        const int other = draw(-num_dims, num_dims - 1);
        keep(from, x.value.transpose(dim, other));
        return mapper::transpose(from, dim, other);
      }
      case 6: {
        if (draw(0, 1) == 0 || size != 1) {
          keep(from, x.value.squeeze());
          return mapper::squeeze(from, std::nullopt);
        }
        keep(from, x.value.squeeze(dim));
        return mapper::squeeze(from, dim - num_dims);
      }
      case 7: {
        std::vector<std::string> to;
        for (std::int64_t i = 0; i < size; ++i) {
          to.push_back(new_name());
          keep(to.back(), x.value.select(dim, i));
        }
        return mapper::unstack(from, to, dim);
      }
      case 8: {
        std::vector<std::string> to;
        for (const at::Tensor& part : x.value.chunk(draw(1, 3), dim)) {
          to.push_back(new_name());
          keep(to.back(), part);
        }
        return mapper::chunk(from, to, dim);
      }
      default:
        return join(names, from, x, dim);
    }
  }

  // Stacks or concatenates a tensor with others of its shape and dtype.
  StateMapper join(std::vector<std::string>& names, const std::string& from, const Traced& x, int dim) {
    std::vector<std::string> joined = {from};
    std::vector<at::Tensor> values = {x.value};
    std::set<std::string> sources = x.from;
    std::erase_if(names, [&](const std::string& name) {
      const at::Tensor& other = state_.at(name).value;
      if (joined.size() > 2 || other.sizes() != x.value.sizes() || other.scalar_type() != x.value.scalar_type())
        return false;
      Traced taken = take(name);
      joined.push_back(name);
      values.push_back(taken.value);
      sources.merge(taken.from);
      return true;
    });
    const std::string to = new_name();
    const bool is_stack = draw(0, 1) == 0;
    state_.emplace(to, Traced{.value = is_stack ? at::stack(values, dim) : at::cat(values, dim), .from = sources});
    return is_stack ? mapper::stack(joined, to, dim) : mapper::concatenate(joined, to, dim);
  }

  Traced take(const std::string& name) { return state_.extract(name).mapped(); }

  std::mt19937 random_;
  int num_names_ = 0;
  std::map<std::string, at::Tensor> inputs_;
  Program state_;
};

template <class Values>
std::set<std::string> names_of(const std::map<std::string, Values>& values) {
  std::set<std::string> names;
  for (const auto& [name, value] : values) names.insert(name);
  return names;
}

bool same(const at::Tensor& actual, const at::Tensor& expected) {
  return actual.scalar_type() == expected.scalar_type() && at::equal(actual, expected);
}

// Always the same graphs; RC_PARAMS draws others, and more (make test-full: 20,000).
template <class Property>
void check(const Property& property) {
  rc::detail::TestParams params;
  params.seed = 17;
  params.maxSuccess = 100;
  if (std::getenv("RC_PARAMS") != nullptr) params = rc::detail::configuration().testParams;
  const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << text.str();
}

TEST(RandomMappers, Have_the_groups_that_hang_together) {
  check([](std::uint32_t seed) {
    const Graph graph(seed);
    RC_ASSERT(graph.mapper->groups() == graph.groups());
  });
}

TEST(RandomMappers, Compute_group_by_group_what_functions_of_whole_tensors_do) {
  check([](std::uint32_t seed) {
    const Graph graph(seed);
    std::size_t num_outputs = 0;
    for (const StateGroup& group : graph.mapper->groups()) {
      std::map<std::string, at::Tensor> inputs;
      for (const std::string& name : group.inputs) inputs.emplace(name, graph.inputs().at(name));
      for (const auto& [name, value] : graph.mapper->apply(inputs)) {
        RC_ASSERT(group.outputs.contains(name));
        RC_ASSERT(same(value, graph.outputs().at(name).value));
        ++num_outputs;
      }
    }
    RC_ASSERT(num_outputs == graph.outputs().size());
  });
}

TEST(RandomMappers, Read_exactly_their_groups_when_they_stream) {
  check([](std::uint32_t seed) {
    const Graph graph(seed);
    std::set<std::string> read;
    NamedTensors tensors = tensors_of(graph.inputs());
    const auto find = tensors.find;
    tensors.find = [&](const std::string& name) {
      auto source = find(name);
      source->read = [&read, name, original = source->read] {
        read.insert(name);
        return original();
      };
      return source;
    };
    for (const TensorSource& source : mapped_sources(*graph.mapper, tensors)) {
      read.clear();
      RC_ASSERT(same(read_checked(source), graph.outputs().at(source.name).value));
      const auto groups = graph.mapper->groups();
      const auto group =
          std::ranges::find_if(groups, [&](const auto& each) { return each.outputs.contains(source.name); });
      RC_ASSERT(std::ranges::includes(group->inputs, read));
    }
  });
}

TEST(RandomMappers, Take_every_input_of_a_group_and_make_every_output) {
  check([](std::uint32_t seed) {
    const Graph graph(seed);
    std::size_t num_inputs = 0;
    for (const SourceGroup& group : source_groups(*graph.mapper, tensors_of(graph.inputs()), graph.mapper->outputs())) {
      const std::set<std::string> declared = names_of(group.mapped.inputs);
      std::set<std::string> taken, made;
      const auto take = [&](const MappedTensor& x) {
        for (const TensorPart& part : x.parts) {
          if (declared.contains(part.input)) taken.insert(part.input);
        }
      };
      for (const FunctionCall& call : group.mapped.calls) std::ranges::for_each(call.inputs, take);
      for (const auto& [name, output] : group.mapped.outputs) take(output);
      // A group is what is read: no input that nothing takes, no output that is not made.
      RC_ASSERT(taken == declared);
      for (const auto& [name, value] : read_group(group, names_of(group.mapped.outputs))) made.insert(name);
      RC_ASSERT(made == names_of(group.mapped.outputs));
      num_inputs += declared.size();
    }
    RC_ASSERT(num_inputs == graph.inputs().size());
  });
}

TEST(RandomMappers, Write_the_same_bytes_from_a_folder_on_three_threads_as_from_memory) {
  const auto folder = test::fresh_directory("d");
  check([&](std::uint32_t seed) {
    const Graph graph(seed);
    std::vector<TensorSource> sources;
    for (const auto& [name, value] : graph.inputs()) sources.push_back(tensor_source(name, value));
    write_huggingface_directory(folder / "model", {{"model_type", "x"}}, sources, {.max_shard_bytes = 64});
    const HuggingFaceDirectory directory(folder / "model");
    convert_model_state(folder / "streamed", *graph.mapper, tensors_of(directory),
                        {.max_shard_bytes = 64, .num_workers = 3});
    const HuggingFaceDirectory streamed(folder / "streamed");
    RC_ASSERT(streamed.names().size() == graph.outputs().size());
    for (const auto& [name, output] : graph.outputs()) RC_ASSERT(same(streamed.find(name)->read(), output.value));
    std::filesystem::remove_all(folder / "model");
    std::filesystem::remove_all(folder / "streamed");
  });
}

// A random box of a tensor.
LocalBox draw_box(Graph& graph, const at::Tensor& tensor) {
  LocalBox box = whole_box(tensor.sizes().vec());
  for (std::size_t d = 0; d < box.start.size(); ++d) {
    box.start[d] = graph.draw(0, static_cast<int>(box.sizes[d]));
    box.sizes[d] = graph.draw(0, static_cast<int>(box.sizes[d] - box.start[d]));
  }
  return box;
}

TEST(RandomMappers, Fill_any_box_of_an_output_from_a_file_as_from_the_whole) {
  const auto folder = test::fresh_directory("d");
  check([&](std::uint32_t seed) {
    Graph graph(seed);
    std::vector<TensorSource> sources;
    for (const auto& [name, value] : graph.inputs()) sources.push_back(tensor_source(name, value));
    write_huggingface_directory(folder / "model", {{"model_type", "x"}}, sources);
    const HuggingFaceDirectory directory(folder / "model");
    for (const SourceGroup& group : source_groups(*graph.mapper, tensors_of(directory), graph.mapper->outputs())) {
      if (!group.mapped.calls.empty()) continue;
      for (const auto& [name, output] : group.mapped.outputs) {
        const at::Tensor whole = graph.outputs().at(name).value;
        const LocalBox box = draw_box(graph, whole);
        const at::Tensor values = at::full(box.sizes, -1, whole.options());
        std::vector<BoxRead> reads;
        add_reads(output, box, values, group.inputs, reads);
        const BytesRead bytes = read_boxes(reads);
        RC_ASSERT(same(values, view_of(whole, whole_box(whole.sizes().vec()), box)));
        RC_ASSERT(bytes.wanted <= bytes.read || reads.size() > 1);
      }
    }
  });
}

}  // namespace
}  // namespace d9d::random_mapper_test
