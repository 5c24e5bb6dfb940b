#include "d9d/base/config/record_json.h"

namespace d9d::detail {

Json json_schema(const ValueType& type) {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}};
  schema.update(type.schema({}));
  return schema;
}

}  // namespace d9d::detail
