#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::kernels::linear_cross_entropy_preset_test {
namespace {

TEST(LinearCrossEntropyPreset, Filters_what_the_package_filters_under_the_name) {
  struct Filtered {
    bool e;
    bool c;
  };
  const std::map<std::string, Filtered> expected = {{"cce", {true, true}},
                                                    {"cce_exact", {false, false}},
                                                    {"cce_kahan_full", {false, false}},
                                                    {"cce_kahan_full_c", {true, false}},
                                                    {"cce_kahan_full_e", {false, true}},
                                                    {"cce_kahan_full_c_full_e", {false, false}}};
  EXPECT_EQ(expected.size(), enum_names(LinearCrossEntropyPreset()).size());
  for (const auto& [name, filtered] : expected) {
    SCOPED_TRACE(name);
    const LinearCrossEntropyOptions options =
        with_preset({.softcap = 30.0, .filter_eps = 1.0}, linear_cross_entropy_preset(name), at::kBFloat16);
    EXPECT_EQ(options.filter_eps.has_value() && options.filter_e_grad, filtered.e);
    EXPECT_EQ(options.filter_eps.has_value() && options.filter_c_grad, filtered.c);
    EXPECT_EQ(options.filter_eps.value_or(0), filtered.e || filtered.c ? 0x1p-12 : 0);
    EXPECT_EQ(options.softcap, 30.0);
  }
}

TEST(LinearCrossEntropyPreset, Has_an_automatic_eps_for_each_dtype) {
  EXPECT_EQ(automatic_filter_eps(at::kBFloat16), 0x1p-12);
  EXPECT_EQ(automatic_filter_eps(at::kHalf), 0x1p-15);
  EXPECT_EQ(automatic_filter_eps(at::kFloat), 0x1p-28);
  EXPECT_EQ(automatic_filter_eps(at::kDouble), 0x1p-57);
  EXPECT_THROW((void)automatic_filter_eps(at::kLong), ConfigError);
}

TEST(LinearCrossEntropyPreset, Refuses_other_names_with_the_list) {
  for (const std::string name : {"torch_compile", "CCE", ""}) {
    EXPECT_THAT([&] { (void)linear_cross_entropy_preset(name); },
                ::testing::ThrowsMessage<ConfigError>(
                    ::testing::AllOf(::testing::HasSubstr("'cce', 'cce_exact', 'cce_kahan_full', 'cce_kahan_full_c', "
                                                          "'cce_kahan_full_e', 'cce_kahan_full_c_full_e'"),
                                     ::testing::HasSubstr("got '" + name + "'"))));
  }
}

}  // namespace
}  // namespace d9d::kernels::linear_cross_entropy_preset_test
