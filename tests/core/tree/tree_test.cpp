#include "d9d/core/tree/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::tree_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor scalar(double value) { return at::scalar_tensor(value, at::kDouble); }

struct Head {
  at::Tensor labels = {};
  std::optional<at::Tensor> weight = {};
  std::string name = "unnamed";
  static constexpr auto fields() {
    return record<Head>(field("labels", &Head::labels), field("weight", &Head::weight), field("name", &Head::name));
  }
};

struct Batch {
  std::int64_t step = 0;
  at::Tensor tokens;  // declared before `heads`, though "heads" < "tokens"
  std::map<std::string, Head> heads = {};
  std::vector<at::Tensor> states = {};
  std::vector<std::int64_t> lengths;
  std::pair<at::Tensor, std::int64_t> counted;
  std::variant<std::monostate, at::Tensor, std::vector<at::Tensor>> extra = {};
  static constexpr auto fields() {
    return record<Batch>(field("step", &Batch::step), field("tokens", &Batch::tokens), field("heads", &Batch::heads),
                         field("states", &Batch::states), field("lengths", &Batch::lengths),
                         field("counted", &Batch::counted), field("extra", &Batch::extra));
  }
};

Batch example() {
  Batch batch{.step = 7, .tokens = scalar(1), .lengths = {3, 4}, .counted = {scalar(6), 60}};
  batch.heads["value"] = {.labels = scalar(4), .name = "second"};
  batch.heads["lm"] = {.labels = scalar(2), .weight = scalar(3), .name = "first"};
  batch.states = {scalar(5)};
  batch.extra = std::vector{scalar(7), scalar(8)};
  return batch;
}

std::vector<double> values(const std::vector<at::Tensor>& leaves) {
  std::vector<double> result;
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.item<double>());
  return result;
}

template <class Tree>
std::string difference(const Tree& expected, const Tree& actual) {
  try {
    check_same_structure(expected, actual);
  } catch (const StateError& error) {
    return error.what();
  }
  return "none";
}

TEST(Tree, Orders_record_fields_by_declaration_and_map_children_by_key) {
  EXPECT_THAT(values(tree_leaves(example())), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(Tree, Names_leaves_by_fields_keys_and_positions) {
  std::vector<std::string> paths;
  for (const auto& [path, leaf] : tree_leaves_with_path(example())) paths.push_back(path);
  EXPECT_THAT(paths, ElementsAre("tokens", "heads.lm.labels", "heads.lm.weight", "heads.value.labels", "states.0",
                                 "counted.0", "extra.0", "extra.1"));
}

TEST(Tree, Takes_a_tensor_for_a_tree_of_one_leaf_with_an_empty_path) {
  EXPECT_THAT(values(tree_leaves(scalar(3))), ElementsAre(3));
  EXPECT_EQ(tree_leaves_with_path(scalar(3)).at(0).first, "");
}

TEST(Tree, Gives_an_empty_optional_no_leaf_and_an_undefined_tensor_one) {
  EXPECT_EQ(tree_leaves(Head{}).size(), 1u);
  EXPECT_EQ(tree_leaves(Head{.weight = at::Tensor()}).size(), 2u);
}

TEST(Tree, Maps_leaves_and_carries_values_along) {
  const Batch doubled = tree_map([](const at::Tensor& leaf) { return leaf * 2; }, example());
  EXPECT_THAT(values(tree_leaves(doubled)), ElementsAre(2, 4, 6, 8, 10, 12, 14, 16));
  EXPECT_EQ(doubled.step, 7);
  EXPECT_THAT(doubled.lengths, ElementsAre(3, 4));
  EXPECT_EQ(doubled.counted.second, 60);
  EXPECT_EQ(doubled.heads.at("lm").name, "first");
}

TEST(Tree, Leaves_the_mapped_tree_untouched) {
  const Batch batch = example();
  (void)tree_map([](const at::Tensor&) { return scalar(0); }, batch);
  EXPECT_THAT(values(tree_leaves(batch)), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(Tree, Hands_out_leaves_by_reference) {
  Batch batch = example();
  tree_for_each_leaf(batch, [](at::Tensor& leaf) { leaf = scalar(9); });
  EXPECT_THAT(values(tree_leaves(batch)), ElementsAre(9, 9, 9, 9, 9, 9, 9, 9));
}

TEST(Tree, Unflattens_what_was_flattened) {
  const auto [leaves, spec] = tree_flatten(example());
  const Batch again = tree_unflatten(spec, leaves);
  EXPECT_THAT(values(tree_leaves(again)), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(again.heads.at("value").name, "second");
}

TEST(Tree, Rejects_unflattening_another_number_of_leaves) {
  const auto flat = tree_flatten(example());
  EXPECT_THROW((void)tree_unflatten(flat.spec, {scalar(1)}), StateError);
}

TEST(Tree, Compares_specs_by_structure_alone) {
  Batch other = tree_map([](const at::Tensor&) { return scalar(0); }, example());
  other.step = 8;
  EXPECT_EQ(tree_flatten(other).spec, tree_flatten(example()).spec);
  other.states.push_back(scalar(0));
  EXPECT_FALSE(tree_flatten(other).spec == tree_flatten(example()).spec);
}

TEST(Tree, Ignores_the_insertion_order_of_maps) {
  const std::map<std::string, at::Tensor> forwards{{"a", scalar(1)}, {"b", scalar(2)}};
  const std::map<std::string, at::Tensor> backwards{{"b", scalar(2)}, {"a", scalar(1)}};
  EXPECT_EQ(difference(forwards, backwards), "none");
  EXPECT_EQ(values(tree_leaves(forwards)), values(tree_leaves(backwards)));
}

TEST(Tree, Names_the_first_path_where_structures_differ) {
  Batch without_weight = example();
  without_weight.heads.at("lm").weight.reset();
  without_weight.states.clear();
  EXPECT_THAT(difference(example(), without_weight), HasSubstr("expected some at 'heads.lm.weight', got none"));
  Batch other_heads = example();
  other_heads.heads["aux"] = {};
  EXPECT_THAT(difference(example(), other_heads),
              HasSubstr("map of {lm, value} at 'heads', got map of {aux, lm, value}"));
  Batch other_extra = example();
  other_extra.extra = scalar(1);
  EXPECT_THAT(difference(example(), other_extra), HasSubstr("alternative 2 at 'extra', got alternative 1"));
}

TEST(Tree, Orders_a_map_by_key_whatever_its_comparator_is) {
  const std::map<std::string, at::Tensor, std::greater<>> descending{{"a", scalar(1)}, {"b", scalar(2)}};
  EXPECT_THAT(values(tree_leaves(descending)), ElementsAre(1, 2));
  EXPECT_EQ(tree_leaves_with_path(descending).at(0).first, "a");
  EXPECT_EQ(difference(descending, descending), "none");
  EXPECT_THAT(tree_structure(descending).at(0).kind, "map of {a, b}");
}

TEST(Tree, Maps_only_the_values_of_one_type) {
  const Batch batch = tree_map_only<std::int64_t>([](std::int64_t n) { return n + 1; }, example());
  EXPECT_EQ(batch.step, 8);
  EXPECT_THAT(batch.lengths, ElementsAre(4, 5));
  EXPECT_EQ(batch.counted.second, 61);
  EXPECT_THAT(values(tree_leaves(batch)), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  const Batch renamed = tree_map_only<std::string>([](const std::string& name) { return name + "!"; }, example());
  EXPECT_EQ(renamed.heads.at("lm").name, "first!");
  const Batch doubled = tree_map_only<at::Tensor>([](const at::Tensor& leaf) { return leaf * 2; }, example());
  EXPECT_THAT(values(tree_leaves(doubled)), ElementsAre(2, 4, 6, 8, 10, 12, 14, 16));
}

TEST(Tree, Maps_only_the_records_of_one_type_as_a_whole) {
  const Batch batch = tree_map_only<Head>([](const Head& head) { return Head{.labels = head.labels * 10}; }, example());
  EXPECT_THAT(values(tree_leaves(batch)), ElementsAre(1, 20, 40, 5, 6, 7, 8));
}

TEST(Tree, Maps_down_to_the_nodes_that_is_leaf_stops_at) {
  const auto is_labelled_first = []<class Node>(const Node& node) {
    if constexpr (std::is_same_v<Node, Head>) {
      return node.name == "first";
    } else {
      return false;
    }
  };
  const auto doubled = []<class Node>(const Node& node) {
    if constexpr (std::is_same_v<Node, Head>) {
      return Head{.labels = node.labels};  // its weight is dropped, its labels are kept
    } else if constexpr (std::is_same_v<Node, at::Tensor>) {
      return at::Tensor(node * 2);
    } else {
      return node;
    }
  };
  const Batch batch = tree_map(doubled, example(), is_labelled_first);
  EXPECT_THAT(values(tree_leaves(batch)), ElementsAre(2, 2, 8, 10, 12, 14, 16));
}

struct Unlisted {
  at::Tensor hidden;
};
struct WithUnlisted {
  std::vector<Unlisted> all;
  static constexpr auto fields() { return record<WithUnlisted>(field("all", &WithUnlisted::all)); }
};

TEST(Tree, Knows_at_compile_time_where_tensors_would_not_be_found) {
  static_assert(ListsItsTensors<Batch> && ListsItsTensors<at::Tensor> && ListsItsTensors<std::monostate>);
  static_assert(ListsItsTensors<std::array<at::Tensor, 2>> && ListsItsTensors<std::shared_ptr<int>>);
  static_assert(!ListsItsTensors<Unlisted> && !ListsItsTensors<WithUnlisted>);
  static_assert(!ListsItsTensors<std::map<std::string, std::optional<Unlisted>>>);
}

TEST(Tree, Knows_at_compile_time_what_can_hold_tensors) {
  static_assert(TensorTree<Batch> && TensorTree<const at::Tensor> && TensorTree<std::array<at::Tensor, 2>>);
  static_assert(!TensorTree<std::int64_t> && !TensorTree<std::vector<std::string>>);
  static_assert(TreeOf<Batch, std::int64_t> && TreeOf<Batch, Head> && !TreeOf<Batch, bool>);
}

}  // namespace
}  // namespace d9d::tree_test
