#include "d9d/data/build/make_pack_stream.h"

#include <chrono>

#include <ATen/ATen.h>

namespace d9d {

StreamOptions on_rank_of(const DistContext& context, StreamOptions options) {
  options.rank = {.index = context.data_parallel_rank(), .size = context.data_parallel_size()};
  options.first_timeout_seconds = std::chrono::duration<double>(context.world()->timeout()).count();
  options.log = context.log();
  options.shared_log = context.is_main_process() ? context.log() : context.log().with_sink([](std::string_view) {});
  return options;
}

LoaderOptions loader_options(const AutoDataConfig& config) {
  const bool asks_for_workers = config.prefetch_factor || config.persistent_workers;
  D9D_CHECK(config.num_workers > 0 || !asks_for_workers, ConfigError,
            "[data::loader_options] expected num_workers > 0 where prefetch_factor or persistent_workers is set, got "
            "num_workers = ",
            config.num_workers, ". Remove those keys or add workers.");
  LoaderOptions options{.num_workers = config.num_workers,
                        .timeout_seconds = config.timeout.value_or(kDefaultDataTimeout)};
  if (config.prefetch_factor) options.prefetch_factor = *config.prefetch_factor;
  return options;
}

namespace detail {

bool can_pin_memory() { return at::hasCUDA(); }

at::Tensor pin_memory(const at::Tensor& tensor) { return tensor.pin_memory(); }

}  // namespace detail

}  // namespace d9d
