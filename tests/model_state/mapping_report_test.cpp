#include "d9d/model_state/mapping_report.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

#include "tests/support/io_faults.h"

namespace d9d::mapping_report_test {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = std::map<std::string, at::Tensor>;

StateMapper mapper_of_two_layers() {
  return mapper::parallel({mapper::concatenate({"layers.0.q", "layers.0.k"}, "layers.0.qk", 0),
                           mapper::concatenate({"layers.1.q", "layers.1.k"}, "layers.1.qk", 0),
                           mapper::stack({"experts.0.w", "experts.1.w", "experts.2.w"}, "experts.w", 0),
                           mapper::function("double", {"scale"}, {"scale"}, [](const auto& inputs) {
                             return std::vector<at::Tensor>{inputs[0] * 2};
                           })});
}

State tensors() {
  State state = {{"scale", at::ones({})}, {"extra.7", at::ones({600}, at::kLong)}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    state.emplace(layer + "q", at::ones({4, 2}));
    state.emplace(layer + "k", at::ones({2, 2}));
  }
  for (const std::string expert : {"experts.0.w", "experts.1.w", "experts.2.w"}) state.emplace(expert, at::ones({2}));
  return state;
}

TEST(MappingReport, Lists_groups_with_shapes_and_bytes_and_what_is_unused) {
  EXPECT_EQ(text_of(report_mapping(mapper_of_two_layers(), tensors_of(tensors()))),
            "4 groups: 8 tensors of 124 B -> 4 tensors of 124 B\n"
            "\n"
            "experts.*.w  Float [2]  8 B  (3 of these)\n"
            "  -> experts.w  Float [3, 2]  24 B\n"
            "\n"
            "2 groups like\n"
            "layers.*.k  Float [2, 2]  16 B\n"
            "layers.*.q  Float [4, 2]  32 B\n"
            "  -> layers.*.qk  Float [6, 2]  48 B\n"
            "\n"
            "scale  Float []  4 B\n"
            "  -> scale  Float []  4 B\n"
            "  (a function of whole tensors)\n"
            "\n"
            "unused: 1 tensor\n"
            "  extra.7  Long [600]  4.69 KiB\n");
}

TEST(MappingReport, Says_what_is_missing_and_what_is_not_made_without_it) {
  State state = tensors();
  state.erase("layers.1.q");
  const MappingReport report = report_mapping(mapper_of_two_layers(), tensors_of(state));
  EXPECT_THAT(report.missing, ElementsAre("layers.1.q"));
  EXPECT_THAT(report.not_made, ElementsAre("layers.1.qk"));
  EXPECT_THAT(report.groups, SizeIs(3));
  EXPECT_TRUE(text_of(report).ends_with("missing: 1 tensor\n  layers.1.q\nnot made without them:\n  layers.1.qk\n"));
}

TEST(MappingReport, Reads_no_data) {
  NamedTensors unreadable = tensors_of(tensors());
  unreadable.find = [find = unreadable.find](const std::string& name) {
    auto source = find(name);
    source->read = []() -> at::Tensor { throw IoError("read"); };
    return source;
  };
  EXPECT_THAT(report_mapping(mapper_of_two_layers(), unreadable).missing, IsEmpty());
}

TEST(MappingReport, Refuses_shapes_that_do_not_fit) {
  State state = tensors();
  state["layers.0.k"] = at::ones({2, 3});
  EXPECT_THROW((void)report_mapping(mapper_of_two_layers(), tensors_of(state)), StateError);
}

}  // namespace
}  // namespace d9d::mapping_report_test
