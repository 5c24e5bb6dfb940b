// Memory for exchanges among ranks that a module's forwards open and a job gives back where it sleeps or ends.
#pragma once

#include <cstdint>
#include <memory>

#include "d9d/modules/module.h"

namespace d9d {

class ExchangeMemory {
 public:
  virtual ~ExchangeMemory() = default;
  virtual void close() = 0;  // Collective, between steps. The next forward opens the memory again.
  // How often memory was given back, also for larger memory: what was captured in a graph is invalid then.
  [[nodiscard]] virtual std::int64_t num_closings() const = 0;
  [[nodiscard]] virtual std::int64_t num_bytes() const = 0;  // of this rank, that are open
};

// Local. Makes the job that runs `module` close `memory` with the module's reductions of gradients.
void add_exchange_memory(Module& module, std::shared_ptr<ExchangeMemory> memory);

// Local. The bytes of all memory that was added to `module` and its children and is open.
[[nodiscard]] std::int64_t exchange_bytes(Module& module);

}  // namespace d9d
