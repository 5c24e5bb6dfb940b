# Compiles a Python script of an area into its library, as the function that the header beside it declares: an installed
# program needs no file beside it.
#   d9d_python_script(tracker d9d/tracker/helper/helper.py d9d/tracker/helper/script.h helper_script)
function(d9d_python_script area script header function)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${script}")
  file(READ "${PROJECT_SOURCE_DIR}/${script}" text)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${function}.cpp" @ONLY CONTENT
[[#include "@header@"

std::string_view d9d::@function@() {
  return R"d9d(@text@)d9d";
}
]])
  target_sources(d9d_${area} PRIVATE "${PROJECT_BINARY_DIR}/${function}.cpp")
endfunction()
