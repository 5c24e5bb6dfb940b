// The stack that a debugger shows at a breakpoint in attention: the model's own functions, with few others between
// them.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/attention/sdpa.h"
#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/tiny_blocks.h"

namespace d9d::stack_trace_test {
namespace {

std::string demangled(const void* address) {
  Dl_info info;
  if (::dladdr(address, &info) == 0 || info.dli_sname == nullptr) return "?";
  int status = 0;
  char* const name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string text = name == nullptr ? info.dli_sname : name;
  std::free(name);
  return text;
}

// The functions from attention's core outwards, to the end of the model.
class RecordingContext final : public AttentionContext {
 public:
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override {
    std::array<void*, 100> addresses;
    const int size = ::backtrace(addresses.data(), static_cast<int>(addresses.size()));
    names.clear();
    for (int i = 1; i < size; ++i) {
      names.push_back(demangled(addresses[static_cast<std::size_t>(i)]));
      if (names.back().find("DecoderWithHead") != std::string::npos) break;
    }
    return kernels::scaled_dot_product_attention(inputs, options, preferences);
  }

  mutable std::vector<std::string> names;
};

TEST(StackTrace, In_attention_shows_the_functions_of_the_model_and_at_most_three_of_the_library) {
  const auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())));
  const auto context = std::make_shared<RecordingContext>();
  model->for_each_module([&](const std::string&, Module& module) {
    if (auto* const sdpa = dynamic_cast<Sdpa*>(&module)) sdpa->set_attention_context(context);
  });
  (void)model(SequenceInput{test::tiny_ids()},
              DecoderForCausalLM::Shared{test::tiny_sequence(), {test::tiny_labels()}});

  std::vector<std::string> forwards, others;
  for (const std::string& name : context->names) {
    (name.find("::forward(") != std::string::npos ? forwards : others).push_back(name);
  }
  using ::testing::Contains;
  using ::testing::HasSubstr;
  for (const char* const part : {"GroupedQueryAttention", "Qwen3DenseLayer", "PreNormDecoder", "DecoderWithHead"}) {
    EXPECT_THAT(forwards, Contains(HasSubstr(part)));
  }
  EXPECT_LE(others.size(), 3U) << ::testing::PrintToString(others);
}

}  // namespace
}  // namespace d9d::stack_trace_test
