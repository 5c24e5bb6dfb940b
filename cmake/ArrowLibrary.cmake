# libd9d_arrow.so: Parquet and Arrow files by Arrow C++ of the pyarrow wheel, opened by the program at first use
# (docs/decisions/0019-arrow-from-the-wheel.md). It stands beside the programs of this build; installed programs find it on
# the RPATH that d9d::data brings. Without the wheel the library is left out, and those formats are refused by name.
#
# Sets D9D_MISSING_FEATURES; include it before d9d_library(data).

set(D9D_ARROW_SONAME 2600)  # of pyarrow 26: the C++ interface changes with each major version
set(D9D_ARROW_WHEEL "${D9D_SITE_PACKAGES}/pyarrow")
if(NOT EXISTS "${D9D_ARROW_WHEEL}/libparquet.so.${D9D_ARROW_SONAME}")
  list(APPEND D9D_MISSING_FEATURES arrow)
  message(STATUS "[cmake::arrow] no pyarrow 26 in ${D9D_SITE_PACKAGES}: Parquet and Arrow files will be refused. "
    "Install requirements.txt to read them.")
  return()
endif()

file(GLOB arrow_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/d9d/data/text/arrow_plugin/*.cpp")
add_library(d9d_arrow SHARED ${arrow_sources} "${PROJECT_SOURCE_DIR}/d9d/tokenizer/unicode/utf8.cpp")
set_target_properties(d9d_arrow PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
  INSTALL_RPATH "${D9D_ARROW_WHEEL}")
target_include_directories(d9d_arrow SYSTEM PRIVATE "${D9D_ARROW_WHEEL}/include")
target_link_libraries(d9d_arrow PRIVATE d9d_options "${D9D_ARROW_WHEEL}/libarrow.so.${D9D_ARROW_SONAME}"
  "${D9D_ARROW_WHEEL}/libparquet.so.${D9D_ARROW_SONAME}")
