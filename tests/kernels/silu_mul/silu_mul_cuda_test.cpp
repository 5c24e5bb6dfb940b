#include <ATen/ATen.h>

#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/silu_mul/silu_mul.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::silu_mul_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::fits_into_memory;
using ::d9d::testing::kDtypes;
using ::d9d::testing::same_bits;
using ::d9d::testing::worse_than_composition;
using Tensors = std::vector<at::Tensor>;

class SiluMulCuda : public testing::CudaTest {};

at::Tensor composition(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType wide = gate.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (at::silu(gate.to(wide)) * up.to(wide)).to(gate.scalar_type());
}

std::string worse(const at::Tensor& gate, const at::Tensor& up) {
  return worse_than_composition([](const auto& in) { return Tensors{silu_mul(in[0], in[1])}; },
                                [](const auto& in) { return Tensors{composition(in[0], in[1])}; }, {gate, up});
}

TEST_F(SiluMulCuda, Errs_no_more_than_ATen_for_every_shape) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {},    {0},   {1},    {7},    {8},        {31},   {32},       {33},       {511},
      {512}, {513}, {4096}, {4097}, {3, 5, 11}, {0, 4}, {130, 129}, {2, 1, 64}, {257, 768}};
  for (const at::ScalarType dtype : kDtypes)
    for (const auto& shape : shapes)
      EXPECT_EQ(worse(device_values(shape, 1, dtype), device_values(shape, 2, dtype)), "")
          << dtype << " " << at::IntArrayRef(shape);
}

TEST_F(SiluMulCuda, Errs_no_more_than_ATen_over_the_whole_range) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor gate = at::linspace(-110, 110, 4008, at::kFloat).to(at::kCUDA, dtype);
    EXPECT_EQ(worse(gate, at::ones_like(gate)), "") << dtype;
  }
}

TEST_F(SiluMulCuda, Keeps_what_is_not_finite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor gate = at::tensor({infinity, std::nan(""), 1e4, -1e4}).to(at::kCUDA, dtype);
    const at::Tensor out = silu_mul(gate, at::ones_like(gate));
    EXPECT_EQ(out[0].item<double>(), infinity);
    EXPECT_TRUE(std::isnan(out[1].item<double>()));
    EXPECT_EQ(out[2].item<double>(), gate[2].item<double>());
    EXPECT_EQ(out[3].item<double>(), 0);
  }
}

TEST_F(SiluMulCuda, Takes_the_halves_of_a_fused_projection) {
  const auto half = [](const at::Tensor& fused, std::int64_t i) { return fused.chunk(2, -1)[i]; };
  for (const at::ScalarType dtype : kDtypes)
    for (const std::int64_t columns : {7, 33, 64, 768})
      EXPECT_EQ(
          worse_than_composition([&](const auto& in) { return Tensors{silu_mul(half(in[0], 0), half(in[0], 1))}; },
                                 [&](const auto& in) { return Tensors{composition(half(in[0], 0), half(in[0], 1))}; },
                                 {device_values({3, 17, 2 * columns}, 1, dtype)}),
          "")
          << dtype << " " << columns;
}

TEST_F(SiluMulCuda, Gives_halves_of_one_buffer_to_halves_of_one_projection) {
  const at::Tensor fused = device_values({3, 17, 2 * 64}, 1, at::kBFloat16);
  const at::Tensor gate = fused.narrow(2, 0, 64).requires_grad_();
  const at::Tensor up = fused.narrow(2, 64, 64).requires_grad_();
  const at::Tensor out = silu_mul(gate, up);
  const auto grads = torch::autograd::grad({out}, {gate, up}, {at::ones_like(out)});
  EXPECT_TRUE(detail::are_adjacent_columns(grads[0], grads[1], 1));
  EXPECT_EQ(grads[0].stride(1), 2 * 64);
}

TEST_F(SiluMulCuda, Takes_strides_of_every_kind) {
  const at::Tensor gate = device_values({6, 5, 4, 32}, 1, at::kBFloat16);
  const at::Tensor up = device_values({6, 5, 4, 32}, 2, at::kBFloat16);
  EXPECT_EQ(worse(gate.transpose(0, 1), up.view({5, 6, 4, 32})), "");
  EXPECT_EQ(worse(gate.permute({2, 1, 0, 3}), up.permute({2, 1, 0, 3})), "");
  EXPECT_EQ(worse(gate.permute({3, 2, 1, 0}), up.permute({3, 2, 1, 0})), "");
  EXPECT_EQ(worse(gate.slice(3, 0, 32, 2), up.slice(1, 0, 5).slice(3, 0, 16)), "");
}

TEST_F(SiluMulCuda, Takes_views_that_are_not_aligned) {
  const auto view = [](const at::Tensor& flat) { return flat.narrow(0, 1, 9 * 64); };
  for (const at::ScalarType dtype : kDtypes)
    EXPECT_EQ(worse_than_composition([&](const auto& in) { return Tensors{silu_mul(view(in[0]), in[1])}; },
                                     [&](const auto& in) { return Tensors{composition(view(in[0]), in[1])}; },
                                     {device_values({9 * 64 + 1}, 1, dtype), device_values({9 * 64}, 2, dtype)}),
              "")
        << dtype;
}

TEST_F(SiluMulCuda, Computes_only_the_gradients_asked_for) {
  const at::Tensor gate = testing::leaf(device_values({4, 64}, 1, at::kBFloat16));
  const at::Tensor up = testing::leaf(device_values({4, 64}, 2, at::kBFloat16));
  const at::Tensor grad = device_values({4, 64}, 3, at::kBFloat16);
  testing::backward({silu_mul(gate, up.detach())}, {grad});
  testing::backward({silu_mul(gate.detach(), up)}, {grad});
  const auto both = torch::autograd::grad({silu_mul(gate, up)}, {gate, up}, {grad});
  EXPECT_TRUE(same_bits(both, {gate.grad(), up.grad()}));
}

TEST_F(SiluMulCuda, Counts_more_than_two_to_the_31_elements) {
  const bool fits = fits_into_memory([] {
    const std::int64_t num_rows = (std::int64_t{1} << 31) / 512 + 5;
    const at::Tensor tail = device_values({7, 1024}, 1, at::kBFloat16);
    at::Tensor fused = at::ones({num_rows, 1024}, tail.options());
    fused.narrow(0, num_rows - 7, 7).copy_(tail);
    const auto run = [](const at::Tensor& rows) {
      const at::Tensor gate = rows.narrow(1, 0, 512).detach().requires_grad_();
      const at::Tensor up = rows.narrow(1, 512, 512).detach().requires_grad_();
      const at::Tensor out = silu_mul(gate, up);
      const auto grads = torch::autograd::grad({out}, {gate, up}, {at::ones_like(out)});
      const auto last = [](const at::Tensor& all) { return all.narrow(0, all.size(0) - 7, 7); };
      return Tensors{last(out), last(grads[0]), last(grads[1])};
    };
    EXPECT_TRUE(same_bits(run(fused), run(tail)));
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::silu_mul_cuda_test
