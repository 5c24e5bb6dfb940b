#include "d9d/modules/blocks/positional/rotary_embedding.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/modules/blocks/positional/rope_tables.h"

namespace d9d {
namespace {

RopeTablesRequest tables_request(const RotaryEmbeddingConfig& config) { return {.config = config}; }

}  // namespace
}  // namespace d9d
