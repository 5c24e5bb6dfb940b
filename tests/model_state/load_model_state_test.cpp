#include "d9d/model_state/load_model_state.h"

#include <numeric>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::load_model_state_test {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = std::map<std::string, at::Tensor>;

struct Model : Module {
  explicit Model(std::int64_t rows = 6, std::int64_t columns = 4) {
    register_parameter("proj", {.shape = {rows, columns}, .init = init::zeros()});
    register_parameter("head", {.shape = {3}, .init = init::ones()});
    register_buffer("count", {.shape = {2}, .init = init::zeros()});
  }
};

struct Matrix : Module {
  explicit Matrix(const std::vector<std::int64_t>& shape) {
    register_parameter("proj", {.shape = shape, .init = init::zeros()});
  }
};

ModulePtr<Model> made(const std::function<void(Model&)>& lay_out = {}, std::int64_t rows = 6,
                      std::int64_t columns = 4) {
  auto model = make_module<Model>(rows, columns);
  if (lay_out) lay_out(*model);
  model->materialize(at::kCPU);
  model->reset_parameters(1);
  return model;
}

State published() {
  return {{"a", at::arange(12, at::kFloat).reshape({4, 3})},
          {"b", at::arange(12, 24, at::kFloat).reshape({4, 3})},
          {"h", at::full({3}, 5.0)},
          {"extra", at::ones({1})}};
}

// proj = [a, b] joined and transposed.
StateMapper mapper_of_model() {
  return mapper::parallel(
      {mapper::sequential({mapper::concatenate({"a", "b"}, "proj", 1), mapper::transpose("proj", 0, 1)}),
       mapper::rename("h", "head")});
}
at::Tensor expected_proj() { return at::cat({published().at("a"), published().at("b")}, 1).t(); }

HuggingFaceDirectory write(const std::filesystem::path& path, const State& state) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : state) sources.push_back(tensor_source(name, tensor));
  write_huggingface_directory(path, nlohmann::json::object(), sources);
  return HuggingFaceDirectory(path);
}

TEST(LoadModelState, Fills_parameters_and_reports_what_it_did) {
  const auto directory = write(test::fresh_directory("d") / "m", published());
  for (const NamedTensors& tensors : {tensors_of(directory), tensors_of(published())}) {
    const auto model = made();
    const LoadReport report = load_model_state(*model, mapper_of_model(), tensors);
    EXPECT_TRUE(at::equal(model->state_dict().at("proj"), expected_proj()));
    EXPECT_TRUE(at::equal(model->state_dict().at("head"), at::full({3}, 5.0)));
    EXPECT_THAT(report.loaded, ElementsAre("head", "proj"));
    EXPECT_THAT(report.missing, IsEmpty());
    EXPECT_THAT(report.unused, ElementsAre("extra"));
  }
}

TEST(LoadModelState, Keeps_the_dtype_of_the_model_and_converts_as_the_mapper_says) {
  const auto directory = write(test::fresh_directory("d") / "m", {{"x", at::rand({6, 4})}, {"head", at::ones({3})}});
  const at::Tensor x = directory.find("x")->read();
  const StateMapper rounded =
      mapper::parallel({mapper::sequential({mapper::rename("x", "proj"), mapper::cast("proj", at::kBFloat16)}),
                        mapper::identity("head")});
  const auto model = made();
  (void)load_model_state(*model, rounded, tensors_of(directory));
  EXPECT_TRUE(at::equal(model->state_dict().at("proj"), x.to(at::kBFloat16).to(at::kFloat)));
}

TEST(LoadModelState, Fills_buffers_that_the_mapper_makes) {
  State state = published();
  state.emplace("count", at::full({2}, 7.0));
  const auto model = made();
  const StateMapper with_buffer = mapper::parallel({mapper_of_model(), mapper::identity("count")});
  const LoadReport report = load_model_state(*model, with_buffer, tensors_of(state));
  EXPECT_THAT(report.loaded, ElementsAre("count", "head", "proj"));
  EXPECT_TRUE(at::equal(model->state_dict().at("count"), at::full({2}, 7.0)));
}

TEST(LoadModelState, Computes_groups_with_functions) {
  const StateMapper doubled = mapper::parallel(
      {mapper::sequential(
           {mapper::function("double", {"a"}, {"a"}, [](const auto& x) { return std::vector<at::Tensor>{x[0] * 2}; }),
            mapper::concatenate({"a", "b"}, "proj", 1), mapper::transpose("proj", 0, 1)}),
       mapper::rename("h", "head")});
  const auto model = made();
  (void)load_model_state(*model, doubled, tensors_of(published()));
  EXPECT_TRUE(
      at::equal(model->state_dict().at("proj"), at::cat({published().at("a") * 2, published().at("b")}, 1).t()));
}

TEST(LoadModelState, Leaves_what_may_be_missing_at_its_initial_values) {
  State state = published();
  state.erase("h");
  const auto model = made();
  EXPECT_THAT(
      test::message_of<StateError>([&] { (void)load_model_state(*model, mapper_of_model(), tensors_of(state)); }),
      HasSubstr("'h'"));
  const LoadReport report = load_model_state(*model, mapper_of_model(), tensors_of(state), {.may_be_missing = "he.*"});
  EXPECT_THAT(report.missing, ElementsAre("head"));
  EXPECT_TRUE(at::equal(model->state_dict().at("head"), at::ones({3})));
  // Also where the mapper does not make it.
  EXPECT_THAT(load_model_state(*model, mapper::rename("proj", "proj"), tensors_of(State{{"proj", at::ones({6, 4})}}),
                               {.may_be_missing = "head"})
                  .missing,
              ElementsAre("head"));
  EXPECT_THROW((void)load_model_state(*model, mapper_of_model(), tensors_of(state), {.may_be_missing = "("}),
               ConfigError);
}

// One expert of many that is not there is damage, whatever may be missing.
TEST(LoadModelState, Names_what_a_group_lacks_of_which_a_part_is_there) {
  State state = published();
  state.erase("b");
  const auto model = made();
  const LoadOptions any{.may_be_missing = ".*"};
  EXPECT_THAT(
      test::message_of<StateError>([&] { (void)load_model_state(*model, mapper_of_model(), tensors_of(state), any); }),
      HasSubstr("1 missing: 'b'"));
  EXPECT_TRUE(at::equal(model->state_dict().at("head"), at::ones({3})));
  state.erase("a");
  EXPECT_THAT(load_model_state(*model, mapper_of_model(), tensors_of(state), any).missing, ElementsAre("proj"));
}

TEST(LoadModelState, Names_both_shapes_and_the_file_before_any_value_changes) {
  State state = published();
  state["h"] = at::ones({4});
  const auto directory = write(test::fresh_directory("d") / "m", state);
  const auto model = made();
  EXPECT_THAT(
      test::message_of<StateError>([&] { (void)load_model_state(*model, mapper_of_model(), tensors_of(directory)); }),
      AllOf(HasSubstr("'head'"), HasSubstr("'h'"), HasSubstr("[3]"), HasSubstr("[4]"), HasSubstr("model.safetensors")));
  EXPECT_TRUE(at::equal(model->state_dict().at("proj"), at::zeros({6, 4})));
}

TEST(LoadModelState, Lists_parameters_that_the_mapper_does_not_make) {
  EXPECT_THAT(
      test::message_of<StateError>([] {
        (void)load_model_state(*made(), mapper::identity("proj"), tensors_of(State{{"proj", at::ones({6, 4})}}));
      }),
      HasSubstr("'head'"));
}

// Layouts as FSDP, expert and tensor parallelism lay matrices out: what a rank reads, beside what it keeps.
struct ReadCase {
  std::string name;
  std::int64_t num_ranks;
  std::vector<std::int64_t> shape;
  Placement placement;
  double most;  // bytes read for each byte kept
};

std::vector<ReadCase> read_cases() {
  constexpr double kShare = 1.05;
  return {{"replicated", 4, {512, 256}, Replicate{}, 1.0},
          {"FSDP8, rows", 8, {1000, 256}, d9d::Shard{0}, kShare},
          {"FSDP8, fewer rows than ranks", 8, {5, 4096}, d9d::Shard{0}, kShare},
          {"FSDP8, flat", 8, {333, 77}, FlatShard{.padded_numel = 25800, .offset_in_unit = 101}, kShare},
          {"EP4, experts", 4, {16, 64, 48}, d9d::Shard{0}, kShare},
          {"EP4, more ranks than experts divide", 4, {6, 64, 48}, d9d::Shard{0}, kShare},
          {"TP4, rows", 4, {512, 256}, d9d::Shard{0}, kShare},
          // Gaps of up to 64 KiB are read over: at most the rows, which all four ranks share.
          {"TP4, columns with gaps of 768 bytes", 4, {512, 256}, d9d::Shard{1}, 4.0},
          // Gaps of 96 KiB are not: each row is read by itself.
          {"TP4, columns with gaps of 96 KiB", 4, {16, 32768}, d9d::Shard{1}, 1.0}};
}

TEST(LoadModelState, Reads_its_share_on_each_rank) {
  for (const ReadCase& each : read_cases()) {
    SCOPED_TRACE(each.name);
    const at::Tensor whole = at::randn(each.shape);
    const auto directory = write(test::fresh_directory("d") / "m", {{"proj", whole}, {"head", at::ones({3})}});
    std::vector<std::int64_t> wanted(static_cast<std::size_t>(each.num_ranks));
    test::run_ranks(test::RankBackend::kThreads, each.num_ranks, [&](World& world) {
      const DeviceMesh mesh("m", {{"r", each.num_ranks}}, test::borrowed(world));
      const HuggingFaceDirectory own(directory);
      const auto model = make_module<Matrix>(each.shape);
      model->named_parameters()[0].second->place(mesh, "r", each.placement, each.placement);
      model->materialize(at::kCPU);
      Parameter& parameter = *model->named_parameters()[0].second;
      if (std::holds_alternative<FlatShard>(each.placement)) {
        const FlatRange range = flat_range(whole.numel(), mesh, parameter.placements());
        parameter.attach_flat(at::empty(each.shape), at::empty({range.numel()}));
      }
      const LoadReport report = load_model_state(*model, mapper::identity("proj"), tensors_of(own));
      const at::Tensor local = parameter.dtensor().local;
      EXPECT_TRUE(at::equal(local, distribute(whole, mesh, {each.placement}).local));
      EXPECT_EQ(report.bytes.wanted, static_cast<std::int64_t>(local.nbytes()));
      EXPECT_GE(report.bytes.read, report.bytes.wanted);
      EXPECT_LE(static_cast<double>(report.bytes.read), static_cast<double>(report.bytes.wanted) * each.most);
      wanted[static_cast<std::size_t>(world.rank())] = report.bytes.wanted;
    });
    const auto sum = std::accumulate(wanted.begin(), wanted.end(), std::int64_t{0});
    const bool is_replicated = std::holds_alternative<Replicate>(each.placement);
    EXPECT_EQ(sum, static_cast<std::int64_t>(whole.nbytes()) * (is_replicated ? each.num_ranks : 1));
  }
}

}  // namespace
}  // namespace d9d::load_model_state_test
