// What a parameter is in its model, as the block says that registers it. Optimisers choose by it what they treat
// differently: weight decay leaves out norms, biases and embeddings, and some rules take hidden matrices alone.
//
// Example
//   register_parameter("scale", {.shape = {hidden}, .init = init::ones(), .role = ParameterRole::kNorm});
//   register_module<Linear>("gate", LinearConfig{.in_features = 64, .out_features = 8,
//                                                .role = ParameterRole::kRouter});
#pragma once

#include <cstddef>
#include <cstdint>

namespace d9d {

enum class ParameterRole : std::uint8_t {
  kUnknown,        // not said: a vector if it has fewer than two dims, otherwise a matrix that is none of the others
  kLinear,         // [out, in], a map between hidden activations
  kGroupedLinear,  // [groups, in, out], one such map for each group
  kEmbedding,      // [ids, hidden], also where a head is tied to it
  kHead,           // [out, in], from hidden activations to what the model predicts
  kRouter,         // [out, in], to the scores that choose or weight experts
  kNorm,           // scale of a normalisation
  kVector,         // bias, and any other vector
};

// Whether the parameter is a norm, a bias, another vector or an embedding. num_dims: of the whole parameter.
[[nodiscard]] constexpr bool is_norm_vector_or_embedding(ParameterRole role, std::size_t num_dims) {
  if (role == ParameterRole::kUnknown) return num_dims < 2;
  return role == ParameterRole::kNorm || role == ParameterRole::kVector || role == ParameterRole::kEmbedding;
}

}  // namespace d9d
