# All areas as one target, d9d::d9d, and `make install`: headers, static libraries, a CMake package, tools (d9d_tool), presets,
# pages and examples. The target d9d_installed builds what is installed, and no test.
#
#   find_package(d9d REQUIRED)                       or FetchContent / add_subdirectory of this repository
#   target_link_libraries(my_program PRIVATE d9d::d9d)           everything
#   target_link_libraries(my_program PRIVATE d9d::tracker)       one area and what it needs
#
# The package does not contain LibTorch; it looks for the same torch wheel that this build used (TorchWheel.cmake).

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(D9D_LIBRARIES GLOBAL PROPERTY D9D_LIBRARIES)
add_library(d9d INTERFACE)
add_library(d9d::d9d ALIAS d9d)
target_link_libraries(d9d INTERFACE ${D9D_LIBRARIES})
include("${CMAKE_CURRENT_LIST_DIR}/Precompile.cmake")

option(D9D_INSTALL "Install the library and its CMake package" ${PROJECT_IS_TOP_LEVEL})
if(NOT D9D_INSTALL)
  return()
endif()

add_custom_target(d9d_installed DEPENDS ${D9D_LIBRARIES})
set(D9D_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/d9d")
install(TARGETS d9d ${D9D_LIBRARIES} EXPORT d9dTargets)
if(TARGET d9d_cuda)
  install(TARGETS d9d_cuda d9d_cudnn LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" OPTIONAL)  # opened by name, never linked
  add_dependencies(d9d_installed d9d_cuda d9d_cudnn)
endif()
if(TARGET d9d_arrow)
  install(TARGETS d9d_arrow LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  add_dependencies(d9d_installed d9d_arrow)
endif()
install(EXPORT d9dTargets NAMESPACE d9d:: DESTINATION "${D9D_PACKAGE_DIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/d9d" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh"
  PATTERN "presets" EXCLUDE)
file(GLOB preset_folders "${PROJECT_SOURCE_DIR}/d9d/models/*/presets")
foreach(folder IN LISTS preset_folders)  # share/d9d/presets/qwen3_dense/8B.json
  cmake_path(GET folder PARENT_PATH model)
  cmake_path(GET model FILENAME model)
  install(DIRECTORY "${folder}/" DESTINATION "${CMAKE_INSTALL_DATADIR}/d9d/presets/${model}")
endforeach()
# A link in bin finds chart.py beside the script that it stands for.
install(PROGRAMS "${PROJECT_SOURCE_DIR}/tools/plot_metrics" DESTINATION "${CMAKE_INSTALL_DATADIR}/d9d/plot_metrics")
install(FILES "${PROJECT_SOURCE_DIR}/tools/chart.py" DESTINATION "${CMAKE_INSTALL_DATADIR}/d9d/plot_metrics")
install(CODE "set(bin \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
file(MAKE_DIRECTORY \"\${bin}\")
file(CREATE_LINK \"../${CMAKE_INSTALL_DATADIR}/d9d/plot_metrics/plot_metrics\" \"\${bin}/plot_metrics\" SYMBOLIC)")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/d9dConfig.cmake.in" "${PROJECT_BINARY_DIR}/d9dConfig.cmake"
  INSTALL_DESTINATION "${D9D_PACKAGE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/d9dConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/d9dConfig.cmake" "${PROJECT_BINARY_DIR}/d9dConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TorchWheel.cmake" "${PROJECT_SOURCE_DIR}/cmake/Precompile.cmake" DESTINATION "${D9D_PACKAGE_DIR}")
install(FILES "${PROJECT_SOURCE_DIR}/requirements-trackers.txt" DESTINATION "${CMAKE_INSTALL_DATADIR}/d9d")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  PATTERN "__pycache__" EXCLUDE)
