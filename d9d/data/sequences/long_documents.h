// What happens to documents that are longer than a sequence.
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

// What happens to a document with more positions than a sequence.
enum class LongDocuments {
  kRefuse,    // FilteredDocuments throws IoError that names the document
  kTruncate,  // its end is dropped
  kSplit,     // it becomes several items, of which neighbours share one token; each but the last fills a sequence
  kSkip,      // it is left out
};
constexpr auto enum_names(LongDocuments) {
  return std::to_array<EnumName<LongDocuments>>({{LongDocuments::kRefuse, "refuse"},
                                                 {LongDocuments::kTruncate, "truncate"},
                                                 {LongDocuments::kSplit, "split"},
                                                 {LongDocuments::kSkip, "skip"}});
}

}  // namespace d9d
