// Every operator, forward and backward, as a CUDA graph: a replay with other values must give the bits of an eager run.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"
#include "d9d/core/device/device_graph.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "d9d/kernels/moe_permute/moe_permute.h"
#include "d9d/kernels/norm_rotary/norm_rotary.h"
#include "d9d/kernels/rms_norm/rms_norm.h"
#include "d9d/kernels/router/topk_router.h"
#include "d9d/kernels/silu_mul/silu_mul.h"

#include "tests/kernels/attention/attention_testing.h"
#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::graph_capture_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::kGpu;
using Tensors = std::vector<at::Tensor>;
using Op = std::function<at::Tensor(const Tensors& inputs)>;

class GraphCaptureCuda : public ::d9d::testing::CudaTest {};

// The output of `op`, then gradients of the inputs that require one, with the output itself as the output gradient.
Tensors forward_and_backward(const Op& op, const Tensors& inputs) {
  const at::Tensor out = op(inputs);
  Tensors wanted;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) wanted.push_back(input);
  }
  Tensors results = torch::autograd::grad({out}, wanted, {out.detach()});
  results.insert(results.begin(), out.detach());
  return results;
}

// Inputs of bfloat16 require gradients, those of other dtypes do not.
void expect_same_bits(const Op& op, const std::function<Tensors(std::uint64_t seed)>& make_inputs) {
  const auto inputs_of = [&](std::uint64_t seed) {
    Tensors inputs = make_inputs(seed);
    for (at::Tensor& input : inputs) input.set_requires_grad(input.scalar_type() == at::kBFloat16);
    return inputs;
  };
  SideStream(kGpu)
      .run([&] {
        const Tensors inputs = inputs_of(1);
        for (int i = 0; i < 2; ++i) (void)forward_and_backward(op, inputs);  // loads the kernels that it needs
        const auto graph = cuda_graphs(kGpu)();
        Tensors results;
        graph->capture([&] { results = forward_and_backward(op, inputs); });
        for (const std::uint64_t seed : {2, 3}) {
          const Tensors others = inputs_of(seed);
          const at::NoGradGuard no_grad;
          for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].copy_(others[i]);
          graph->replay();
          const at::AutoGradMode with_grad(true);
          EXPECT_TRUE(::d9d::testing::same_bits(results, forward_and_backward(op, others))) << "seed " << seed;
        }
      })
      .wait();
}

at::Tensor bf16(at::IntArrayRef shape, std::uint64_t seed) { return device_values(shape, seed, at::kBFloat16); }
at::Tensor ids(at::IntArrayRef shape, std::uint64_t seed, std::int64_t end) {
  return device_values(shape, seed).mul_(1e6).to(at::kLong).remainder(end);
}

TEST_F(GraphCaptureCuda, Silu_mul) {
  expect_same_bits([](const Tensors& in) { return silu_mul(in[0], in[1]); },
                   [](std::uint64_t seed) {
                     return Tensors{bf16({70, 96}, seed), bf16({70, 96}, seed + 10)};
                   });
}

TEST_F(GraphCaptureCuda, Addition_with_norm) {
  expect_same_bits(
      [](const Tensors& in) {
        const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2]);
        return sum + norm;
      },
      [](std::uint64_t seed) {
        return Tensors{bf16({70, 256}, seed), bf16({70, 256}, seed + 10), bf16({256}, seed + 20)};
      });
}

TEST_F(GraphCaptureCuda, Norm_and_rotary_of_heads) {
  expect_same_bits(
      [](const Tensors& in) {
        const auto [q, k] = norm_rotary(in[0], in[1], in[2], in[3], in[4], in[5], {});
        return at::cat({q, k}, 2);
      },
      [](std::uint64_t seed) {
        return Tensors{bf16({2, 40, 4, 64}, seed),
                       bf16({2, 40, 2, 64}, seed + 10),
                       bf16({64}, seed + 20),
                       bf16({64}, seed + 30),
                       device_values({1, 40, 64}, seed + 40, at::kFloat),
                       device_values({1, 40, 64}, seed + 50, at::kFloat)};
      });
}

TEST_F(GraphCaptureCuda, Linears_of_one_input) {
  expect_same_bits(
      [](const Tensors& in) {
        return at::cat(linears(in[0], {in[1], in[2]}), 1);
      },
      [](std::uint64_t seed) {
        return Tensors{bf16({128, 256}, seed), bf16({512, 256}, seed + 10), bf16({128, 256}, seed + 20)};
      });
}

TEST_F(GraphCaptureCuda, Causal_attention) {
  const attention_testing::Deterministic deterministic;
  expect_same_bits(
      [](const Tensors& in) {
        return scaled_dot_product_attention({.query = in[0], .key = in[1], .value = in[2]}, {.causal = true});
      },
      [](std::uint64_t seed) {
        return Tensors{bf16({2, 256, 4, 128}, seed), bf16({2, 256, 2, 128}, seed + 10),
                       bf16({2, 256, 2, 128}, seed + 20)};
      });
}

TEST_F(GraphCaptureCuda, Cross_entropy_of_a_head) {
  for (const bool gradients_in_forward : {false, true}) {
    for (const std::optional<double> filter_eps : {std::optional<double>(), std::optional(1e-3)}) {
      SCOPED_TRACE(cat(gradients_in_forward, ", ", filter_eps.value_or(0)));
      expect_same_bits(
          [&](const Tensors& in) {
            LinearCrossEntropyOptions options;
            options.reduction = Reduction::kMean;
            options.gradients_in_forward = gradients_in_forward;
            options.filter_eps = filter_eps;
            return linear_cross_entropy(in[0], {in[1]}, in[2], options).loss;
          },
          [](std::uint64_t seed) {
            return Tensors{bf16({96, 128}, seed), bf16({1000, 128}, seed + 10), ids({96}, seed + 20, 1000)};
          });
    }
  }
}

// Of a vocabulary of two ranks, the other of which has the same weights.
TEST_F(GraphCaptureCuda, Cross_entropy_of_a_part_of_a_head) {
  const auto gather = [](const at::Tensor& x) { return at::stack({x, x}); };
  for (const bool gradients_in_forward : {false, true}) {
    SCOPED_TRACE(gradients_in_forward);
    expect_same_bits(
        [&](const Tensors& in) {
          return linear_cross_entropy(in[0], {in[1]}, in[2],
                                      {.reduction = Reduction::kMean,
                                       .gradients_in_forward = gradients_in_forward,
                                       .shard = VocabularyShard{.gather = gather, .most_rows = 1000}})
              .loss;
        },
        [](std::uint64_t seed) {
          return Tensors{bf16({96, 128}, seed), bf16({1000, 128}, seed + 10), ids({96}, seed + 20, 1000)};
        });
  }
}

TEST_F(GraphCaptureCuda, Experts) {
  expect_same_bits(
      [](const Tensors& in) {
        constexpr std::int64_t kExperts = 8, kTopK = 2;
        const RoutingResult routing = topk_router({.logits = in[1], .top_k = kTopK, .renormalize = true});
        const TokenPermutation permutation = build_token_permutation(
            {.expert_ids = routing.indices, .num_experts = kExperts, .num_rows = routing.indices.numel()});
        const auto [rows, probs] = permute(in[0], routing.probs, permutation);
        const GroupedMMBackend backend = resolve_grouped_mm(grouped_mm_request(rows.device())).backend;
        const at::Tensor y = grouped_mm(rows, in[2], permutation.groups, backend);
        return unpermute(y * probs.unsqueeze(1).to(y.scalar_type()), permutation);
      },
      [](std::uint64_t seed) {
        return Tensors{bf16({200, 128}, seed), bf16({200, 8}, seed + 10), bf16({8, 128, 256}, seed + 20)};
      });
}

TEST_F(GraphCaptureCuda, Embedding) {
  expect_same_bits([](const Tensors& in) { return at::embedding(in[0], in[1]); },
                   [](std::uint64_t seed) {
                     return Tensors{bf16({1000, 64}, seed), ids({4, 128}, seed + 10, 1000)};
                   });
  expect_same_bits(  // LibTorch sorts more than 3072 ids
      [](const Tensors& in) { return at::embedding(in[0], in[1]); },
      [](std::uint64_t seed) {
        return Tensors{bf16({1000, 64}, seed), ids({4, 1024}, seed + 10, 1000)};
      });
}

}  // namespace
}  // namespace d9d::kernels::graph_capture_cuda_test
