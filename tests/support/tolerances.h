// How far a result may be from its oracle: the table of all tolerances. They are relative to a tensor's scale, see
// compare.h.
#pragma once

#include <array>
#include <string_view>

namespace d9d::test {

struct Tolerance {
  std::string_view name;
  double value;
  std::string_view reason;
};

inline constexpr std::array kTolerances = {
    Tolerance{"fp64", 1e-9, "the same mathematics in another order; a wrong term shows at 1e-3 or more"},
    // AdamW's first updates have the same size for a gradient of 1e-9 as for one of 1, so another order of a sum may
    // reverse such an update. Weighting activations instead of outputs, or summing the gradients of a layer's input
    // within its products, moves the fourth loss of the mixture of experts by 3.6e-5; in fp64 the same steps agree to
    // 1e-9.
    Tolerance{"fp32 training loss", 1e-4, "losses after steps that each amplify the rounding of near-zero gradients"},
    Tolerance{"fp64 repeated", 1e-13, "transformers' outputs of the same weights in two processes: 2e-15 seen"},
    Tolerance{"fp32 repeated", 1e-5, "the same: sums of a few hundred terms in an order that a process chooses"},
    Tolerance{"fp32", 1e-5, "sums of up to a few thousand terms round at about 1e-7 each"},
    Tolerance{"fp32 on GPUs", 5e-5, "sums over 8,192 tokens of 32,768 logits by other kernels: 1.4e-5 seen"},
    // Whole models in bf16, this library's against that of transformers. Both use transformers' choice of experts:
    // where two experts differ by a rounding error, either choice is right, and the gradients of the two choices differ
    // completely.
    Tolerance{"bf16 loss", 1e-2, "two or three digits: eight bits, and twenty roundings from the embedding on"},
    Tolerance{"bf16 loss curve", 5e-3,
              "means over 20 steps of dense runs in bf16 and fp32: rounding to nearest shows at 1.4e-2"},
    Tolerance{"bf16 loss curve of experts", 2e-2, "the same: tokens at a tie go to other experts, and learn there"},
    Tolerance{"bf16 angle", 1e-2, "1 - cosine of a gradient; a wrong term turns it by more than 8 degrees"},
    Tolerance{"bf16 norm", 5e-2, "lengths of gradients that point the same way"},
    Tolerance{"bf16 error ratio", 2.0, "our error over transformers': we round at other places, not at more of them"},
    Tolerance{"bf16 layout", 2.0, "error over one rank's: sums in another order, not more of them"},
    Tolerance{"bf16 mean loss", 1e-3,
              "relative, of 1,000 labels of a small model: roundings of each at 2^-8 average out"},
    Tolerance{"sum of bf16 products", 5e-4,
              "L2: roundings of 2,048 terms of one sign at 2^-9 average out; sums rounded 32 times show at 2e-3"},
    Tolerance{"kernel error ratio", 1.5, "error over the ATen composition's in the same dtype"},
    Tolerance{"filtered bf16", 1.0 / 128,
              "of an element, beside the filter's bound: two results of two roundings at 2^-9"},
    Tolerance{"bf16 attention", 1e-2, "L2: weights, values and results round at 2^-9 each; half of a wrong tile shows"},
    Tolerance{"half attention", 2e-3, "as bf16, at 2^-12"},
    Tolerance{
        "planned peak", 6e-2,
        "temporaries of CPU kernels against a plan's, in small layers; bfloat16 heads keep other gradients on CPUs"},
    Tolerance{"simulated peak", 5e-2,
              "temporaries of one of a hundred layers, and messages that wait, beside what microbatches keep"},
    Tolerance{"bf16 routing", 1e-2, "probability that a token's own experts may have above the replayed ones: a tie"},
};

[[nodiscard]] constexpr const Tolerance& tolerance(std::string_view name) {
  for (const Tolerance& entry : kTolerances) {
    if (entry.name == name) return entry;
  }
  throw "[test::tolerance] expected a name of kTolerances";
}

}  // namespace d9d::test
