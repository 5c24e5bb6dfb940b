#include "d9d/data/source/permuted_documents.h"

#include "d9d/data/order/numpy_permutation.h"

namespace d9d {

std::shared_ptr<const TokenDocuments> shuffled_as_numpy(std::shared_ptr<const TokenDocuments> documents,
                                                        std::uint64_t seed) {
  std::vector<std::int64_t> order = numpy_permutation(documents->size(), seed);
  return std::make_shared<const PermutedDocuments>(std::move(documents), std::move(order));
}

}  // namespace d9d
