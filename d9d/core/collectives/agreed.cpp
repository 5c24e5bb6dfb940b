#include "d9d/core/collectives/agreed.h"

#include <exception>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"

namespace d9d {

void agreed(const DeviceMesh& mesh, const std::function<void()>& work) {
  std::exception_ptr own;
  std::string error;
  try {
    work();
  } catch (const std::exception& caught) {
    own = std::current_exception();
    error = error_line(caught);
  }
  const auto all = all_gather_object(nlohmann::json(error), mesh);
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != "") throw IoError(cat(all[rank].get<std::string>(), " (rank ", rank, ")"));
  }
}

void on_first_rank(const DeviceMesh& mesh, const std::function<void()>& work) {
  agreed(mesh, [&] {
    if (mesh.index() == 0) work();
  });
}

}  // namespace d9d
