#include "d9d/loop/graphs/graph_remedies.h"

#include <memory>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "d9d/base/check.h"

namespace d9d::detail {
namespace {

class GraphWithRemedies final : public DeviceGraph {
 public:
  explicit GraphWithRemedies(std::unique_ptr<DeviceGraph> graph) : graph_(std::move(graph)) {}

  void capture(const std::function<void()>& work) override {
    try {
      graph_->capture(work);
    } catch (const c10::Error& error) {
      const std::string& text = error.msg();
      StateError with_remedy(
          cat("[loop::cuda_graph] expected forward, loss and backward that only give work to the device, got: ",
              text.substr(0, text.find('\n')),
              " The task, the model or a hook waits for the device, reads a value of it, or copies from memory that is "
              "not pinned. Fix that, or set trainer.cuda_graph to null."));
      for (const std::string& place : error.context()) with_remedy.add_place(place);
      throw with_remedy;
    }
  }
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace

MakeDeviceGraph with_remedies(MakeDeviceGraph make_graph) {
  return [make_graph = std::move(make_graph)] { return std::make_unique<GraphWithRemedies>(make_graph()); };
}

}  // namespace d9d::detail
