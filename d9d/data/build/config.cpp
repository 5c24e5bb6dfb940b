#include "d9d/data/build/config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

void AutoDataConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(global_batch_size % microbatch_size == 0, ConfigError, path / "global_batch_size",
            "expected a multiple of ", (path / "microbatch_size").keys, " = ", microbatch_size,
            ", times mesh.data_parallel_replicate * mesh.data_parallel_shard, got ", global_batch_size,
            ". Change one of them.");
  D9D_CHECK(num_workers > 0 || !persistent_workers, ConfigError, path,
            "expected num_workers >= 1 with persistent_workers, got 0. Turn persistent_workers off.");
  D9D_CHECK(num_workers > 0 || !prefetch_factor, ConfigError, path,
            "expected num_workers >= 1 with a prefetch_factor, got 0. Set prefetch_factor to null.");
}

void ColumnsConfig::validate(const ConfigPath& path) const {
  if (!messages_column) {
    D9D_CHECK(!chat_template, ConfigError, path,
              "expected messages_column with chat_template, got none. Name the column.");
    return;
  }
  D9D_CHECK(!prompt_column, ConfigError, path,
            "expected one of messages_column and prompt_column, got both. Remove one of the two.");
  D9D_CHECK(tokenization.tokenizer, ConfigError, path,
            "expected a tokenizer with messages_column, got none. Name its tokenizer.json.");
  D9D_CHECK(!tokenization.add_special_tokens, ConfigError, path,
            "expected add_special_tokens = false with messages_column, whose chat template writes them, got true.");
}

template const ValueType& json_type<AutoDataConfig>();
template const ValueType& json_type<SourceConfig>();
template const ValueType& json_type<DataConfig>();

}  // namespace d9d
