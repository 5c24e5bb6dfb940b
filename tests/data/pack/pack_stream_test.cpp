#include "d9d/data/pack/pack_stream.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/data/pack/fixed_count_packer.h"

namespace d9d::pack_stream_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A loader as a user might write it: counts to `size` and has no base class.
struct Counter {
  std::optional<std::int64_t> end;
  std::int64_t position = 0;

  std::optional<int> next() {
    if (end && position >= *end) return std::nullopt;
    return static_cast<int>(position++);
  }
  std::optional<std::int64_t> size() const { return end; }
  nlohmann::json state() const { return position; }
  void load_state(const nlohmann::json& state) { position = state; }
};

using Pack = std::vector<int>;

std::vector<Pack> all(PackStream<int>& stream) {
  std::vector<Pack> packs;
  while (auto pack = stream.next()) packs.push_back(*pack);
  return packs;
}

TEST(FixedCountMicrobatchPacker, Makes_103_microbatches_25_packs_of_4_or_26_with_the_rest) {
  FixedCountMicrobatchPacker dropping(Counter{.end = 103}, {.microbatches_per_pack = 4});
  EXPECT_EQ(dropping.total_steps(), 25);
  const auto full = all(dropping);
  ASSERT_EQ(full.size(), 25u);
  EXPECT_EQ(full.back(), (Pack{96, 97, 98, 99}));

  FixedCountMicrobatchPacker keeping(Counter{.end = 103}, {.microbatches_per_pack = 4, .drop_last = false});
  EXPECT_EQ(keeping.total_steps(), 26);
  const auto with_rest = all(keeping);
  ASSERT_EQ(with_rest.size(), 26u);
  EXPECT_EQ(with_rest.back(), (Pack{100, 101, 102}));
}

// Returns a tensor whose memory is overwritten for each microbatch.
struct Reusing : Counter {
  std::optional<at::Tensor> next() {
    const auto number = Counter::next();
    if (!number) return std::nullopt;
    if (!buffer.defined()) buffer = at::zeros({2});
    *static_cast<float*>(buffer.mutable_data_ptr()) = static_cast<float>(*number);  // unknown to LibTorch
    return copies ? buffer.clone() : buffer;
  }
  bool copies = false;
  at::Tensor buffer = {};
};

TEST(FixedCountMicrobatchPacker, Refuses_microbatches_in_one_memory) {
  FixedCountMicrobatchPacker<Reusing> reusing(Reusing{{.end = 4}}, {.microbatches_per_pack = 2});
  EXPECT_THAT([&] { (void)reusing.next(); },
              ThrowsMessage<StateError>(HasSubstr("Return new tensors from collate, or clones")));
  FixedCountMicrobatchPacker<Reusing> copying(Reusing{{.end = 4}, true}, {.microbatches_per_pack = 2});
  EXPECT_EQ(copying.next()->size(), 2u);
}

TEST(FixedCountMicrobatchPacker, Accepts_values_that_are_no_numbers) {
  struct NoNumbers : Counter {
    std::optional<at::Tensor> next() {
      return Counter::next() ? std::optional(at::full({2}, std::nan(""))) : std::nullopt;
    }
  };
  FixedCountMicrobatchPacker<NoNumbers> packs(NoNumbers{{.end = 4}}, {.microbatches_per_pack = 2});
  EXPECT_EQ(packs.next()->size(), 2u);
}

TEST(FixedCountMicrobatchPacker, Starts_the_loaders_that_can_be_started) {
  struct Started : Counter {
    std::shared_ptr<int> starts = std::make_shared<int>(0);
    void start() { ++*starts; }
  };
  const Started loader{{.end = 4}};
  FixedCountMicrobatchPacker<Started> packs(loader, {});
  static_cast<PackStream<int>&>(packs).start();
  EXPECT_EQ(*loader.starts, 1);
  FixedCountMicrobatchPacker<Counter> plain(Counter{.end = 4}, {});
  plain.start();
  EXPECT_EQ(plain.next(), (Pack{0}));
}

TEST(FixedCountMicrobatchPacker, Makes_no_empty_pack_when_there_is_no_rest) {
  FixedCountMicrobatchPacker packs(Counter{.end = 8}, {.microbatches_per_pack = 4, .drop_last = false});
  EXPECT_EQ(packs.total_steps(), 2);
  EXPECT_EQ(all(packs).size(), 2u);
}

TEST(FixedCountMicrobatchPacker, Continues_after_the_pack_that_was_saved) {
  FixedCountMicrobatchPacker packs(Counter{.end = 10}, {.microbatches_per_pack = 3});
  EXPECT_EQ(packs.next(), (Pack{0, 1, 2}));
  const nlohmann::json state = packs.state();
  FixedCountMicrobatchPacker resumed(Counter{.end = 10}, {.microbatches_per_pack = 3});
  resumed.load_state(state);
  EXPECT_EQ(all(resumed), (std::vector<Pack>{{3, 4, 5}, {6, 7, 8}}));
}

TEST(FixedCountMicrobatchPacker, Stays_between_packs_when_a_microbatch_fails) {
  struct Failing : Counter {
    std::shared_ptr<bool> fails = std::make_shared<bool>(true);
    std::optional<int> next() {
      if (position == 4 && *fails) throw std::runtime_error("microbatch 4");
      return Counter::next();
    }
  };
  Failing loader;
  FixedCountMicrobatchPacker packs(loader, {.microbatches_per_pack = 3});
  (void)packs.next();
  const nlohmann::json after_first = packs.state();
  EXPECT_THROW((void)packs.next(), std::runtime_error);
  EXPECT_EQ(packs.state(), after_first);
  *loader.fails = false;
  EXPECT_EQ(packs.next(), (Pack{3, 4, 5}));
}

TEST(FixedCountMicrobatchPacker, Knows_no_total_of_an_endless_loader) {
  FixedCountMicrobatchPacker packs(Counter{}, {.microbatches_per_pack = 3});
  EXPECT_EQ(packs.total_steps(), std::nullopt);
}

TEST(FixedCountMicrobatchPacker, Rejects_packs_of_nothing) {
  EXPECT_THROW(FixedCountMicrobatchPacker(Counter{}, {.microbatches_per_pack = 0}), ConfigError);
}

// Packs of growing size: step s has s + 1 microbatches.
struct Growing {
  int step = 0;
  std::optional<Pack> next() { return ++step, Pack(step, step); }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }
};

TEST(PackStream, Is_met_by_a_class_that_does_not_inherit) {
  static_assert(MicrobatchPackStream<Growing, int>);
  const std::unique_ptr<PackStream<int>> stream = as_pack_stream<int>(Growing{});
  EXPECT_EQ(stream->next(), (Pack{1}));
  const nlohmann::json state = stream->state();
  EXPECT_EQ(stream->next(), (Pack{2, 2}));
  stream->load_state(state);
  EXPECT_EQ(stream->next(), (Pack{2, 2}));
  EXPECT_EQ(stream->total_steps(), std::nullopt);
}

TEST(PackStream, Names_what_a_class_lacks) {
  static_assert(MicrobatchLoader<Counter> && !MicrobatchPackStream<Counter, int>);
  static_assert(!HandsOutPacks<Counter, int> && !KnowsTotalSteps<Counter> && SavesState<Counter>);
  static_assert(!HandsOutPacks<Growing, std::string> && !MicrobatchLoader<Growing> && !KnowsSize<Growing>);
}

TEST(FixedCountMicrobatchPacker, Knows_the_numbers_of_loaders_that_number_microbatches) {
  struct Numbered : Counter {
    [[nodiscard]] std::int64_t microbatch_number() const { return 10 * position; }
  };
  FixedCountMicrobatchPacker<Numbered> packs({{.end = 5}}, {.microbatches_per_pack = 2, .drop_last = false});
  EXPECT_TRUE(packs.next().has_value());
  EXPECT_EQ(packs.microbatch_numbers(), (std::vector<std::int64_t>{10, 20}));
  EXPECT_TRUE(packs.next() && packs.next());
  EXPECT_EQ(packs.microbatch_numbers(), (std::vector<std::int64_t>{50}));
  FixedCountMicrobatchPacker<Counter> plain(Counter{.end = 4}, {});
  EXPECT_TRUE(plain.next().has_value());
  EXPECT_TRUE(plain.microbatch_numbers().empty());
}

}  // namespace
}  // namespace d9d::pack_stream_test
