# ctest reads this beside the lists of tests: on a machine without a GPU, tests that need one are listed as disabled. Their
# programs would start, load LibTorch for a quarter of a second each, and skip.
if(NOT EXISTS /dev/nvidiactl)
  get_cmake_property(lists VARIABLES)
  list(FILTER lists INCLUDE REGEX "_(gpu|nccl)_tests$")
  foreach(list IN LISTS lists)
    if(${list})
      set_tests_properties(${${list}} PROPERTIES DISABLED ON)
    endif()
  endforeach()
endif()
