// A pack stream that lacks one function of the protocol: the compiler's message must name it.
// expect: required expression [^ ]*stream\.total_steps\(\)[^ ]* is invalid
#include <ATen/core/Tensor.h>

#include "d9d/data/as_pack_stream.h"

struct Forgetful {
  std::optional<std::vector<at::Tensor>> next();
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);
};

void use() { (void)d9d::as_pack_stream<at::Tensor>(Forgetful()); }
