# d9d_precompile_headers(TARGET): compiles what programs on this library include, LibTorch's headers with it, once a build
# folder. An edit of the program then compiles without them. Add headers of your own with target_precompile_headers().

function(d9d_precompile_headers target)
  target_precompile_headers(${target} PRIVATE <fstream> <iostream> <map> <memory> <optional> <string> <vector>
    <ATen/ATen.h> <d9d/core/launch/launch.h> <d9d/loop/language_model/auto_providers.h> <d9d/loop/run/trainer.h>)
endfunction()
