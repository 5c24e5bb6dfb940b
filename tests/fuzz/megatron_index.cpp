#include <array>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/data/source/megatron_documents.h"

#include "tests/fuzz/scratch_folder.h"

namespace d9d::fuzz {

void megatron_index(Bytes file) {
  static const ScratchFolder folder;
  static const std::filesystem::path tokens = folder.write("a.bin", std::array<std::byte, 64>{});
  try {
    const MegatronDocuments documents(folder.write("a.idx", file), /*vocabulary_size=*/1000);
    for (std::int64_t document = 0; document < documents.size(); ++document) {
      const std::int64_t length = documents.length(document);
      D9D_ASSERT(length >= 0 && length <= 64 * std::ssize(file), "a document of ", length, " tokens");
      std::vector<std::int64_t> ids(static_cast<std::size_t>(length));
      documents.read(document, 0, ids);
    }
  } catch (const IoError&) {
  }
}

}  // namespace d9d::fuzz
