#include "d9d/loop/graphs/graph_key.h"

#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::graph_key_test {
namespace {

enum class Mode { kA, kB };

struct Batch {
  at::Tensor ids;
  std::optional<at::Tensor> mask;
  std::vector<std::int64_t> lengths;
  std::map<std::string, at::Tensor> labels;
  std::variant<std::monostate, double> temperature;
  Mode mode = Mode::kA;
  static constexpr auto fields() {
    return record<Batch>(field("ids", &Batch::ids), field("mask", &Batch::mask), field("lengths", &Batch::lengths),
                         field("labels", &Batch::labels), field("temperature", &Batch::temperature),
                         field("mode", &Batch::mode));
  }
};

struct Opaque {
  at::Tensor ids;
  std::function<void()> callback;
  static constexpr auto fields() {
    return record<Opaque>(field("ids", &Opaque::ids), field("callback", &Opaque::callback));
  }
};

static_assert(kHasGraphKey<Batch>);
static_assert(kHasGraphKey<std::tuple<Batch, std::monostate, std::vector<bool>>>);
static_assert(!kHasGraphKey<Opaque>);

std::optional<std::string> kind(const Batch& batch) { return graph_key(batch, at::kCPU); }

TEST(MicrobatchKind, Is_the_same_for_other_values_of_tensors) {
  EXPECT_EQ(kind({.ids = at::zeros({2, 3})}), kind({.ids = at::ones({2, 3})}));
}

TEST(MicrobatchKind, Differs_in_all_that_the_host_sees) {
  const at::Tensor ids = at::zeros({2, 3});
  const std::vector<Batch> batches = {
      {.ids = ids},
      {.ids = {}},
      {.ids = at::zeros({3, 2})},
      {.ids = at::zeros({3, 2}).t()},
      {.ids = ids.to(at::kDouble)},
      {.ids = ids, .mask = ids},
      {.ids = ids, .mask = at::Tensor()},
      {.ids = ids, .lengths = {1}},
      {.ids = ids, .lengths = {12}},
      {.ids = ids, .lengths = {1, 2}},
      {.ids = ids, .labels = {{"a", ids}}},
      {.ids = ids, .labels = {{"b", ids}}},
      {.ids = ids, .labels = {{"a", ids}, {"b", ids}}},
      {.ids = ids, .temperature = 0.1},
      {.ids = ids, .temperature = 0.1 + 1e-16},
      {.ids = ids, .mode = Mode::kB},
  };
  std::set<std::string> kinds;
  for (const Batch& batch : batches) kinds.insert(kind(batch).value());
  EXPECT_EQ(kinds.size(), batches.size());
}

TEST(MicrobatchKind, Is_none_for_tensors_that_a_graph_cannot_read) {
  EXPECT_EQ(kind({.ids = at::zeros({2}).requires_grad_()}), std::nullopt);
  EXPECT_EQ(kind({.ids = at::zeros({2}, at::device(at::kMeta))}), std::nullopt);
  EXPECT_EQ(graph_key(Batch{.ids = at::zeros({2})}, at::kMeta), std::nullopt);
}

}  // namespace
}  // namespace d9d::graph_key_test
