#include <ATen/ATen.h>

#include "d9d/kernels/rms_norm/rms_norm.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::rms_norm_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::fits_into_memory;
using ::d9d::testing::kDtypes;
using ::d9d::testing::same_bits;
using ::d9d::testing::worse_than_composition;
using Tensors = std::vector<at::Tensor>;

class RmsNormCuda : public testing::CudaTest {};

at::Tensor composition(const at::Tensor& x, const at::Tensor& weight, bool zero_centered) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor x_wide = x.to(wide);
  const at::Tensor scale = weight.to(wide) + (zero_centered ? 1.0 : 0.0);
  return (x_wide * (x_wide.square().mean(-1, true) + 1e-5).rsqrt() * scale).to(x.scalar_type());
}

std::string worse(const at::Tensor& x, const at::Tensor& weight, bool zero_centered) {
  return worse_than_composition([&](const auto& in) { return Tensors{rms_norm(in[0], in[1], 1e-5, zero_centered)}; },
                                [&](const auto& in) { return Tensors{composition(in[0], in[1], zero_centered)}; },
                                {x, weight});
}

std::string worse_added(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight) {
  return worse_than_composition(
      [&](const auto& in) {
        const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5, true);
        return Tensors{sum, norm};
      },
      [&](const auto& in) {
        const at::Tensor sum = in[0] + in[1];
        return Tensors{sum, composition(sum, in[2], true)};
      },
      {x, residual, weight});
}

TEST_F(RmsNormCuda, At_the_beginning_of_a_branch_adds_the_gradients_of_both) {
  for (const at::ScalarType dtype : kDtypes) {
    EXPECT_EQ(worse_than_composition(
                  [](const auto& in) {
                    const auto [same, norm] = add_rms_norm(in[0], std::nullopt, in[1], 1e-5);
                    return Tensors{same * 2, norm};
                  },
                  [](const auto& in) {
                    return Tensors{in[0] * 2, composition(in[0], in[1], false)};
                  },
                  {device_values({33, 65}, 1, dtype), device_values({65}, 2, dtype)}),
              "")
        << dtype;
  }
}

TEST_F(RmsNormCuda, Errs_no_more_than_ATen_for_every_length_of_a_row) {
  for (const at::ScalarType dtype : kDtypes)
    for (const std::int64_t n :
         {1,   2,    3,    7,    8,    31,   32,   33,   64,   96,   120,  127,  128,  129,  192,   256,  264,
          512, 1000, 1024, 1032, 2047, 2048, 2049, 2056, 3000, 4095, 4096, 4097, 5120, 8192, 16384, 16392})
      EXPECT_EQ(worse(device_values({5, n}, 1, dtype), device_values({n}, 2, dtype), n % 2 == 0), "")
          << dtype << " " << n;
}

TEST_F(RmsNormCuda, Errs_no_more_than_ATen_for_every_number_of_rows) {
  for (const at::ScalarType dtype : kDtypes)
    for (const std::int64_t n : {100, 128, 200, 1024, 2047, 2048})
      for (const std::int64_t num_rows : {0, 1, 2, 31, 32, 33, 95, 96, 97, 791, 792, 793, 1187, 1188, 1189, 2500})
        EXPECT_EQ(worse(device_values({num_rows, n}, 1, dtype), device_values({n}, 2, dtype), false), "")
            << dtype << " " << num_rows << " " << n;
}

TEST_F(RmsNormCuda, Goes_over_many_rows) {
  EXPECT_EQ(worse(device_values({40'003, 128}, 1, at::kBFloat16), device_values({128}, 2, at::kBFloat16), false), "");
  EXPECT_EQ(worse(device_values({40'003, 64}, 1, at::kFloat), device_values({64}, 2, at::kFloat), true), "");
}

TEST_F(RmsNormCuda, Takes_weights_of_every_dtype) {
  for (const at::ScalarType dtype : kDtypes)
    for (const at::ScalarType weight_dtype : kDtypes)
      for (const std::int64_t n : {60, 512, 2048})
        EXPECT_EQ(worse(device_values({37, n}, 1, dtype), device_values({n}, 2, weight_dtype), true), "")
            << dtype << " " << weight_dtype << " " << n;
}

TEST_F(RmsNormCuda, Takes_heads_of_a_fused_projection) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t first_head : {0, 4, 6}) {
      const auto heads = [&](const at::Tensor& qkv) { return qkv.unflatten(-1, {8, 64}).narrow(2, first_head, 2); };
      EXPECT_EQ(worse_than_composition([&](const auto& in) { return Tensors{rms_norm(heads(in[0]), in[1], 1e-5)}; },
                                       [&](const auto& in) { return Tensors{composition(heads(in[0]), in[1], false)}; },
                                       {device_values({3, 50, 512}, 1, dtype), device_values({64}, 2, dtype)}),
                "")
          << dtype << " " << first_head;
    }
  }
}

TEST_F(RmsNormCuda, Takes_strides_of_every_kind) {
  const at::Tensor weight = device_values({64}, 2, at::kBFloat16);
  const at::Tensor x = device_values({6, 5, 4, 64}, 1, at::kBFloat16);
  EXPECT_EQ(worse(x.transpose(0, 1), weight, false), "");
  EXPECT_EQ(worse(x.permute({2, 1, 0, 3}), weight, false), "");
  EXPECT_EQ(worse(x.transpose(2, 3), device_values({4}, 2, at::kBFloat16), false), "");
  EXPECT_EQ(worse(x.slice(1, 0, 5, 2), weight, false), "");
  EXPECT_EQ(worse(x.slice(3, 0, 64, 2), device_values({64}, 2, at::kFloat).slice(0, 0, 64, 2), false), "");
  EXPECT_EQ(worse_than_composition(
                [](const auto& in) {
                  return Tensors{rms_norm(in[0].expand({7, 64}), in[1], 1e-5)};
                },
                [](const auto& in) {
                  return Tensors{composition(in[0].expand({7, 64}), in[1], false)};
                },
                {device_values({1, 64}, 1, at::kBFloat16), weight}),
            "");
}

TEST_F(RmsNormCuda, Takes_views_that_are_not_aligned) {
  for (const at::ScalarType dtype : kDtypes) {
    const auto view = [](const at::Tensor& flat) { return flat.narrow(0, 1, 9 * 64).view({9, 64}); };
    const auto tail = [](const at::Tensor& flat) { return flat.narrow(0, 1, 64); };
    EXPECT_EQ(
        worse_than_composition([&](const auto& in) { return Tensors{rms_norm(view(in[0]), tail(in[1]), 1e-5)}; },
                               [&](const auto& in) { return Tensors{composition(view(in[0]), tail(in[1]), false)}; },
                               {device_values({9 * 64 + 1}, 1, dtype), device_values({65}, 2, dtype)}),
        "")
        << dtype;
  }
}

TEST_F(RmsNormCuda, Computes_only_the_gradients_asked_for) {
  const at::Tensor x = testing::leaf(device_values({4, 64}, 1, at::kBFloat16));
  const at::Tensor weight = testing::leaf(device_values({64}, 2, at::kBFloat16));
  const at::Tensor grad = device_values({4, 64}, 3, at::kBFloat16);
  testing::backward({rms_norm(x, weight.detach())}, {grad});
  testing::backward({rms_norm(x.detach(), weight)}, {grad});
  const auto both = torch::autograd::grad({rms_norm(x, weight)}, {x, weight}, {grad});
  EXPECT_TRUE(same_bits(both, {x.grad(), weight.grad()}));
}

TEST_F(RmsNormCuda, Adds_and_norms_no_worse_than_ATen) {
  for (const at::ScalarType dtype : kDtypes)
    for (const std::int64_t n : {1, 33, 128, 200, 1024, 2048, 4096, 16384, 16392})
      for (const std::int64_t num_rows : {0, 1, 33, 700})
        EXPECT_EQ(worse_added(device_values({num_rows, n}, 1, dtype), device_values({num_rows, n}, 2, dtype),
                              device_values({n}, 3, dtype)),
                  "")
            << dtype << " " << num_rows << " " << n;
}

TEST_F(RmsNormCuda, Adds_and_norms_as_an_addition_and_a_norm) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = device_values({300, 2048}, 1, dtype);
    const at::Tensor residual = device_values({2, 300, 2048}, 2, dtype).select(0, 1);
    const at::Tensor weight = device_values({2048}, 3, dtype);
    const auto [sum, norm] = add_rms_norm(x, residual, weight);
    EXPECT_TRUE(at::equal(sum, x + residual)) << dtype;
    EXPECT_TRUE(at::equal(norm, rms_norm(x + residual, weight))) << dtype;
  }
}

TEST_F(RmsNormCuda, Goes_backward_through_one_of_the_sum_and_the_norm) {
  const Tensors inputs = {device_values({9, 256}, 1), device_values({9, 256}, 2), device_values({256}, 3)};
  EXPECT_EQ(
      worse_than_composition([](const auto& in) { return Tensors{add_rms_norm(in[0], in[1], in[2], 1e-5).norm}; },
                             [](const auto& in) { return Tensors{composition(in[0] + in[1], in[2], false)}; }, inputs),
      "");
  const at::Tensor x = testing::leaf(inputs[0]);
  const at::Tensor weight = testing::leaf(inputs[2]);
  testing::backward({add_rms_norm(x, inputs[1], weight).sum}, {inputs[1]});
  EXPECT_TRUE(at::equal(x.grad(), inputs[1]));
  EXPECT_FALSE(weight.grad().defined());
}

TEST_F(RmsNormCuda, Counts_more_than_two_to_the_31_elements) {
  const bool fits = fits_into_memory([] {
    const std::int64_t num_rows = (std::int64_t{1} << 31) / 128 + 5;
    const at::Tensor tail = device_values({7, 128}, 1, at::kBFloat16);
    const at::Tensor weight = device_values({128}, 2, at::kBFloat16);
    at::Tensor x = at::ones({num_rows, 128}, tail.options());
    x.narrow(0, num_rows - 7, 7).copy_(tail);
    const at::Tensor leaf = x.requires_grad_();
    const at::Tensor out = rms_norm(leaf, weight);
    const at::Tensor expected_leaf = testing::leaf(tail);
    const at::Tensor expected = rms_norm(expected_leaf, weight);
    EXPECT_TRUE(at::equal(out.narrow(0, num_rows - 7, 7), expected));
    testing::backward({out}, {at::ones_like(out)});
    testing::backward({expected}, {at::ones_like(expected)});
    EXPECT_TRUE(at::equal(leaf.grad().narrow(0, num_rows - 7, 7), expected_leaf.grad()));
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

// As the decoder of a model of 8B parameters has it: 524,288 positions of 4,096 features.
TEST_F(RmsNormCuda, Of_sums_counts_more_than_two_to_the_31_elements_of_long_rows) {
  const bool fits = fits_into_memory([] {
    constexpr std::int64_t kColumns = 4096, kLast = 7, kRows = (std::int64_t{1} << 31) / kColumns + kLast;
    const at::Tensor weight = device_values({kColumns}, 2, at::kBFloat16);
    const std::vector<at::Tensor> tails = {device_values({kLast, kColumns}, 1, at::kBFloat16),
                                           device_values({kLast, kColumns}, 3, at::kBFloat16)};
    const std::vector<at::Tensor> grads = {device_values({kLast, kColumns}, 4, at::kBFloat16),
                                           device_values({kLast, kColumns}, 5, at::kBFloat16)};
    const auto of_rows = [&](std::int64_t num_rows) {  // the last of which are the tails
      const auto longer = [&](const at::Tensor& tail) {
        return at::constant_pad_nd(tail, {0, 0, num_rows - kLast, 0}, 0.5);
      };
      const auto last = [&](const at::Tensor& x) { return x.narrow(0, num_rows - kLast, kLast).clone(); };
      const at::Tensor x = testing::leaf(longer(tails[0]));
      const auto [norm, sum] = add_rms_norm(x, longer(tails[1]), weight, 1e-5);
      testing::backward({norm, sum}, {longer(grads[0]), longer(grads[1])});
      return std::vector{last(norm), last(sum), last(x.grad())};
    };
    const std::vector<at::Tensor> actual = of_rows(kRows), expected = of_rows(kLast);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::rms_norm_cuda_test
