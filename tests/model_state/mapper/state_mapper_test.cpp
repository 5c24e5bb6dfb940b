#include "d9d/model_state/mapper/state_mapper.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/modules/module.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::state_mapper_test {
namespace {
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = std::map<std::string, at::Tensor>;

at::Tensor range(std::vector<std::int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).reshape(shape);
}

StateGroup group(std::set<std::string> inputs, std::set<std::string> outputs) {
  return {.inputs = std::move(inputs), .outputs = std::move(outputs)};
}

// The only output of a mapper of one group.
at::Tensor output_of(const StateMapper& mapper, const State& state) {
  const State outputs = mapper.apply(state);
  EXPECT_EQ(outputs.size(), 1);
  return outputs.begin()->second;
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(actual.is_contiguous());
  EXPECT_TRUE(actual.scalar_type() == expected.scalar_type() && at::equal(actual, expected)) << actual << expected;
}

TEST(MapperLeaves, Rename_and_identity_give_the_tensor_itself) {
  const at::Tensor x = range({2, 3});
  EXPECT_TRUE(output_of(mapper::identity("x"), {{"x", x}}).is_same(x));
  EXPECT_THAT(mapper::rename("x", "y").groups(), ElementsAre(group({"x"}, {"y"})));
  EXPECT_TRUE(mapper::rename("x", "y").apply(State{{"x", x}}).at("y").is_same(x));
}

TEST(MapperLeaves, Do_to_elements_what_LibTorch_does) {
  const at::Tensor x = range({2, 1, 3}), y = range({2, 1, 3}) + 10;
  expect_same(output_of(mapper::transpose("x", 0, -1), {{"x", x}}), x.transpose(0, -1).contiguous());
  expect_same(output_of(mapper::squeeze("x", 1), {{"x", x}}), x.squeeze(1));
  expect_same(output_of(mapper::squeeze("x", std::nullopt), {{"x", x.unsqueeze(0)}}), x.squeeze());
  expect_same(output_of(mapper::unsqueeze("x", -1), {{"x", x}}), x.unsqueeze(-1));
  expect_same(output_of(mapper::stack({"y", "x"}, "z", -1), {{"x", x}, {"y", y}}), at::stack({y, x}, -1));
  expect_same(output_of(mapper::concatenate({"y", "x"}, "z", -1), {{"x", x}, {"y", y}}), at::cat({y, x}, -1));
  expect_same(output_of(mapper::cast("x", at::kBFloat16), {{"x", x}}), x.to(at::kBFloat16));
  const State parts = mapper::unstack("x", {"a", "b", "c"}, -1).apply(State{{"x", x}});
  expect_same(parts.at("b"), x.select(-1, 1).contiguous());
}

TEST(MapperLeaves, Cast_floats_and_leave_other_types) {
  const State all = {{"x", at::full({3}, 1.0 + 1.0 / 1024, at::kFloat)}, {"count", at::arange(3)}};
  const StateMapper mapper = mapper::in_dtype(mapper::identities({"x", "count"}), at::kBFloat16);
  expect_same(mapper.apply(State{{"x", all.at("x")}}).at("x"), all.at("x").to(at::kBFloat16));
  expect_same(mapper.apply(State{{"count", all.at("count")}}).at("count"), all.at("count"));
}

TEST(MapperLeaves, Cut_as_torch_chunk_and_split_do) {
  const at::Tensor x = range({5, 3});
  const State chunks = mapper::chunk("x", {"a", "b"}, 0).apply(State{{"x", x}});
  expect_same(chunks.at("a"), x.narrow(0, 0, 3));
  expect_same(chunks.at("b"), x.narrow(0, 3, 2));
  const State parts = mapper::split("x", {{"a", 1}, {"b", 4}}, 0).apply(State{{"x", x}});
  expect_same(parts.at("a"), x.narrow(0, 0, 1));
  expect_same(parts.at("b"), x.narrow(0, 1, 4));
}

TEST(MapperLeaves, Convert_one_dtype_after_the_other) {
  const at::Tensor x = at::full({3}, 1.0 + 1.0 / 1024, at::kFloat);
  const StateMapper there_and_back =
      mapper::sequential({mapper::cast("x", at::kBFloat16), mapper::cast("x", at::kFloat)});
  expect_same(output_of(there_and_back, {{"x", x}}), x.to(at::kBFloat16).to(at::kFloat));
}

TEST(MapperLeaves, Rename_by_an_expression) {
  const StateMapper renamed =
      mapper::rename_matching({"blocks.0.w", "blocks.1.w", "norm"}, R"(^blocks\.(\d+))", "layers.$1");
  EXPECT_THAT(renamed.outputs(), ElementsAre("layers.0.w", "layers.1.w", "norm"));
  EXPECT_THAT(message_of<ConfigError>([] { (void)mapper::rename_matching({"a"}, "(", ""); }), HasSubstr("'('"));
  EXPECT_THAT(message_of<ConfigError>([] {
                (void)mapper::rename_matching({"a.0", "a.1"}, R"(\d)", "");
              }),
              HasSubstr("'a.'"));
}

TEST(MapperLeaves, Take_children_of_a_module) {
  EXPECT_THAT(mapper::select_child_modules({"w", "b"}, "model.proj").groups(),
              ElementsAre(group({"model.proj.b"}, {"b"}), group({"model.proj.w"}, {"w"})));
}

TEST(MapperLeaves, Copy_an_input_for_several) {
  const at::Tensor x = range({2});
  const State copies = mapper::copy("x", {"x", "y"}).apply(State{{"x", x}});
  EXPECT_TRUE(at::equal(copies.at("x"), x) && at::equal(copies.at("y"), x));
}

TEST(MapperLeaves, Call_functions_of_the_user) {
  const StateMapper sum = mapper::function("sum", {"a", "b"}, {"sum", "difference"}, [](const auto& inputs) {
    return std::vector<at::Tensor>{inputs[0] + inputs[1], inputs[0] - inputs[1]};
  });
  const StateMapper chain =
      mapper::sequential({mapper::transpose("a", 0, 1), sum, mapper::concatenate({"sum", "difference"}, "both", 0)});
  const at::Tensor a = range({3, 2}), b = range({2, 3});
  expect_same(output_of(chain, {{"a", a}, {"b", b}}), at::cat({a.t() + b, a.t() - b}));
}

TEST(MapperLeaves, Name_themselves_and_the_tensor_when_something_does_not_fit) {
  const auto complaint = [](const StateMapper& mapper, const State& state) {
    return message_of<StateError>([&] { (void)mapper.apply(state); });
  };
  EXPECT_THAT(complaint(mapper::transpose("x", 0, 2), {{"x", range({2, 3})}}),
              AllOf(HasSubstr("[2, 3]"), HasSubstr("got 2"), HasSubstr("in transpose of 'x'")));
  EXPECT_THAT(complaint(mapper::squeeze("x", 0), {{"x", range({2, 3})}}), HasSubstr("size 1"));
  EXPECT_THAT(complaint(mapper::unstack("x", {"a", "b", "c"}, 0), {{"x", range({2, 3})}}), HasSubstr("size 3"));
  EXPECT_THAT(complaint(mapper::chunk("x", {"a", "b", "c", "d"}, 0), {{"x", range({5})}}), HasSubstr("4 parts"));
  EXPECT_THAT(complaint(mapper::split("x", {{"a", 1}, {"b", 2}}, 0), {{"x", range({5})}}), HasSubstr("size 3"));
  EXPECT_THAT(complaint(mapper::concatenate({"x", "y"}, "z", 0), {{"x", range({2, 3})}, {"y", range({2, 4})}}),
              AllOf(HasSubstr("[2, 3]"), HasSubstr("[2, 4]")));
  EXPECT_THAT(complaint(mapper::stack({"x", "y"}, "z", 0), {{"x", range({2})}, {"y", range({2}).to(at::kHalf)}}),
              AllOf(HasSubstr("Float"), HasSubstr("Half"), HasSubstr("mapper::cast")));
  EXPECT_THAT(complaint(mapper::function("two", {"x"}, {"a", "b"}, [](const auto& inputs) { return inputs; }),
                        {{"x", range({2})}}),
              AllOf(HasSubstr("2 tensors"), HasSubstr("in two of 'x'")));
}

TEST(MapperLeaves, Want_each_name_once) {
  EXPECT_THROW((void)mapper::concatenate({"a", "a"}, "b", 0), ConfigError);
  EXPECT_THROW((void)mapper::unstack("a", {"b", "b"}, 0), ConfigError);
  EXPECT_THROW((void)mapper::stack({}, "b", 0), ConfigError);
}

TEST(MapperLeaves, Distribute_and_gather_over_two_axes) {
  test::run_ranks(test::RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh mesh("m", {{"a", 2}, {"b", 2}}, test::borrowed(world));
    const at::Tensor x = range({5, 3});
    for (const Placements& placements :
         {Placements{d9d::Shard{0}, d9d::Shard{1}}, Placements{Replicate{}, d9d::Shard{0}},
          Placements{d9d::Shard{0}, d9d::Shard{0}}}) {
      const auto parts = mapper::distribute("x", mesh, placements).apply({{"x", whole_dtensor(x)}});
      expect_same(parts.at("x").local, distribute(x, mesh, placements).local);
      const auto whole = mapper::gather_full_tensor("x").apply(parts);
      expect_same(whole.at("x").local, x);
      EXPECT_TRUE(whole.at("x").mesh.axes().empty());
      const StateMapper round_trip = mapper::sequential(
          {mapper::distribute("x", mesh, placements), mapper::gather_full_tensor("x"), mapper::transpose("x", 0, 1)});
      expect_same(round_trip.apply({{"x", whole_dtensor(x)}}).at("x").local, x.t().contiguous());
      EXPECT_THAT(message_of<StateError>([&] { (void)mapper::transpose("x", 0, 1).apply(parts); }),
                  HasSubstr("mapper::gather_full_tensor"));
    }
    EXPECT_THAT(message_of<StateError>([&] {
                  (void)mapper::gather_full_tensor("x").apply({{"x", whole_dtensor(x)}});
                }),
                HasSubstr("got a whole one"));
    EXPECT_THROW((void)mapper::distribute("x", mesh, {Replicate{}}).apply({{"x", whole_dtensor(x)}}), ConfigError);
  });
}

TEST(MapperComposition, Runs_mappers_beside_each_other) {
  const StateMapper both = mapper::parallel({mapper::rename("b", "y"), mapper::rename("a", "x"), mapper::parallel({})});
  EXPECT_THAT(both.groups(), ElementsAre(group({"a"}, {"x"}), group({"b"}, {"y"})));
  const at::Tensor b = range({2});
  EXPECT_TRUE(both.apply(State{{"b", b}}).at("y").is_same(b));
  EXPECT_THAT(message_of<StateError>([&] {
                (void)both.apply(State{{"a", b}, {"b", b}});
              }),
              AllOf(HasSubstr("undefined group"), HasSubstr("'a', 'b'")));
}

TEST(MapperComposition, Refuses_names_that_two_mappers_have) {
  EXPECT_THAT(message_of<ConfigError>([] {
                (void)mapper::parallel({mapper::rename("a", "x"), mapper::rename("a", "y")});
              }),
              AllOf(HasSubstr("colliding input"), HasSubstr("'a'")));
  EXPECT_THAT(message_of<ConfigError>([] {
                (void)mapper::parallel({mapper::rename("a", "x"), mapper::rename("b", "x")});
              }),
              AllOf(HasSubstr("colliding output"), HasSubstr("'x'")));
}

TEST(MapperComposition, Merges_the_groups_of_a_chain) {
  const StateMapper chain =
      mapper::sequential({mapper::rename("a", "temp"), mapper::concatenate({"temp", "b"}, "result", 0)});
  EXPECT_THAT(chain.groups(), ElementsAre(group({"a", "b"}, {"result"})));
  const StateMapper kept = mapper::sequential({mapper::chunk("a", {"x", "y"}, 0), mapper::rename("x", "z")});
  EXPECT_THAT(kept.groups(), ElementsAre(group({"a"}, {"y", "z"})));
  const StateMapper apart = mapper::sequential(
      {mapper::parallel({mapper::rename("a", "b"), mapper::rename("c", "d")}), mapper::rename("b", "c")});
  EXPECT_THAT(apart.groups(), ElementsAre(group({"a"}, {"c"}), group({"c"}, {"d"})));
}

TEST(MapperComposition, Refuses_chains_that_lose_or_repeat_a_name) {
  EXPECT_THAT(message_of<ConfigError>([] {
                (void)mapper::sequential({mapper::rename("a", "b"), mapper::concatenate({"a", "b"}, "c", 0)});
              }),
              AllOf(HasSubstr("'a'"), HasSubstr("mapper::copy")));
  EXPECT_THAT(message_of<ConfigError>([] {
                (void)mapper::sequential({mapper::rename("a", "x"), mapper::rename("b", "x")});
              }),
              HasSubstr("'x'"));
  EXPECT_THAT(message_of<ConfigError>([] { (void)mapper::sequential({mapper::parallel({})}); }), HasSubstr("none"));
}

TEST(MapperComposition, Shards_groups_in_sorted_order) {
  const StateMapper four = mapper::identities({"d", "b", "a", "c"});
  EXPECT_THAT(mapper::shard(four, 2, 0).inputs(), ElementsAre("a", "c"));
  EXPECT_THAT(mapper::shard(four, 2, 1).inputs(), ElementsAre("b", "d"));
  EXPECT_THAT(mapper::shard(four, 8, 5).groups(), IsEmpty());
  EXPECT_TRUE(mapper::shard(four, 2, 1).apply(State{{"d", range({1})}}).contains("d"));
  EXPECT_THROW((void)mapper::shard(four, 2, 2), ConfigError);
}

TEST(MapperComposition, Puts_prefixes_before_names) {
  const at::Tensor x = range({2, 1});
  const StateMapper both = mapper::with_prefix(mapper::squeeze("x", 1), "in.", "out.");
  EXPECT_THAT(both.groups(), ElementsAre(group({"in.x"}, {"out.x"})));
  expect_same(both.apply(State{{"in.x", x}}).at("out.x"), x.squeeze(1));
  EXPECT_THAT(mapper::with_prefix(mapper::identity("x"), "in.", "").groups(), ElementsAre(group({"in.x"}, {"x"})));
}

struct Pair : Module {
  Pair() {
    register_parameter("weight", {.shape = {2}, .init = init::zeros()});
    register_buffer("count", {.shape = {1}, .init = init::zeros()});
    register_buffer("table", {.shape = {1}, .init = init::zeros(), .is_persistent = false});
  }
};

TEST(MapperComposition, Makes_identities_of_a_module_and_of_outputs) {
  EXPECT_THAT(mapper::identities_of_module(*make_module<Pair>()).groups(),
              ElementsAre(group({"count"}, {"count"}), group({"weight"}, {"weight"})));
  EXPECT_THAT(mapper::identities_of_outputs(mapper::rename("a", "b")).groups(), ElementsAre(group({"b"}, {"b"})));
}

}  // namespace
}  // namespace d9d::state_mapper_test
