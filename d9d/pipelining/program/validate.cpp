#include "d9d/pipelining/program/validate.h"

#include "d9d/base/check.h"
#include "d9d/pipelining/program/check_program.h"

namespace d9d {

void validate(const PipelineProgram& program, const ProgramLimits& limits) {
  detail::check_computations(program);
  detail::check_messages(program);
  detail::check_waits(program, limits.num_inbox_slots);
  if (limits.max_live_microbatches) detail::check_live_microbatches(program, *limits.max_live_microbatches);
}

void validate_computations(const PipelineProgram& program, const ProgramLimits& limits) {
  D9D_CHECK(!program.has_messages(), ConfigError,
            "[pipelining::validate] expected a program of computations, got one with messages. Use validate().");
  detail::check_computations(program);
  detail::check_waits(program, std::nullopt);
  if (limits.max_live_microbatches) detail::check_live_microbatches(program, *limits.max_live_microbatches);
}

}  // namespace d9d
