# Compiles d9d/tracker/helper/helper.py into the library, as helper_script().
set(D9D_TRACKER_SCRIPT "${PROJECT_SOURCE_DIR}/d9d/tracker/helper/helper.py")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${D9D_TRACKER_SCRIPT}")
file(READ "${D9D_TRACKER_SCRIPT}" D9D_TRACKER_SCRIPT_TEXT)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/helper_script.cpp" @ONLY CONTENT
[[#include "d9d/tracker/helper/script.h"

std::string_view d9d::helper_script() {
  return R"d9d(@D9D_TRACKER_SCRIPT_TEXT@)d9d";
}
]])
target_sources(d9d_tracker PRIVATE "${PROJECT_BINARY_DIR}/helper_script.cpp")
# The interpreter that `make trackers` makes. Programs look for it there, as they do for the torch wheel.
set_source_files_properties("${PROJECT_SOURCE_DIR}/d9d/tracker/helper/helper_tracker.cpp" PROPERTIES
  COMPILE_DEFINITIONS D9D_TRACKER_PYTHON="${PROJECT_SOURCE_DIR}/.venv-trackers/bin/python")
