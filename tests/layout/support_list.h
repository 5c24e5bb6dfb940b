// The fixed list of layouts that must train as one rank does: each axis of the mesh, every two, three and more, what a
// job may have beside them, and jobs that continue on another mesh. What the library refuses stays on the list: it is a
// case as soon as refusal() no longer expects its refusal. docs/parallelism/support.md is written from this list.
//
// Example
//   for (const SupportCase& each : support_list()) std::cout << each.name << ": " << fault_of(each.drawn) << "\n";
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "tests/layout/layout_job.h"

namespace d9d::test {

enum class MeshAxis : std::uint8_t {
  kPipeline,
  kReplicate,
  kShard,
  kContextReplicate,
  kContextShard,
  kTensor,
  kExpert,  // over the ranks of the other axes but the pipeline's
};
struct MeshAxisInfo {
  MeshAxis axis;
  const char* name;  // as pages have it
  const char* id;    // as names of tests have it
  std::int64_t DeviceMeshParameters::*degree;
};
[[nodiscard]] const std::vector<MeshAxisInfo>& mesh_axes();  // in the order of the enum

[[nodiscard]] std::string to_text(const DeviceMeshParameters& mesh);  // "PP 2 x FSDP 2"

struct SupportCase {
  // The part of the page.
  enum class Part : std::uint8_t {
    kPair,     // axes[0] and axes[1], which are the same for an axis alone
    kMore,     // three axes or more
    kAll,      // all axes at once, of 64 ranks
    kFeature,  // of the job or the layout, on a mesh of two axes
    kResume,   // saved on one mesh, continued on another
  };
  Part part = Part::kPair;
  std::string name = {};            // of the test: letters, digits and underscores
  std::vector<MeshAxis> axes = {};  // of kPair
  std::string feature = {};         // of kFeature, in words
  LayoutCase drawn = {};
};

void PrintTo(const SupportCase& each, std::ostream* out);  // what found_cases_test.cpp takes

// Names differ.
[[nodiscard]] const std::vector<SupportCase>& support_list();

}  // namespace d9d::test
