#include "d9d/loop/component/local_stages.h"

namespace d9d {
namespace {

class LocalStages final : public Module {
 public:
  explicit LocalStages(const std::vector<std::shared_ptr<Module>>& stages) {
    for (const auto& stage : stages) register_unnamed(stage);
  }
};

}  // namespace

std::shared_ptr<Module> local_stages(const std::vector<std::shared_ptr<Module>>& stages) {
  return stages.size() == 1 ? stages.front() : std::make_shared<LocalStages>(stages);
}

}  // namespace d9d
