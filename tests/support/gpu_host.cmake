# lasp_gpu_host: the CUDA runtime and NCCL as tests and benchmarks see them, for either to include first.
if(NOT TARGET lasp_gpu_host)
  add_library(lasp_gpu_host STATIC ${CMAKE_CURRENT_LIST_DIR}/device.cpp
              ${CMAKE_CURRENT_LIST_DIR}/nccl.cpp
              ${CMAKE_CURRENT_LIST_DIR}/played_nccl.cpp)
  target_compile_features(lasp_gpu_host PUBLIC cxx_std_20)
  target_include_directories(lasp_gpu_host PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
  target_link_libraries(lasp_gpu_host PUBLIC lasp Threads::Threads ${CMAKE_DL_LIBS} PRIVATE lasp_flags)
  if(LASP_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)
    target_compile_definitions(lasp_gpu_host PUBLIC LASP_HAVE_CUDA)
    target_link_libraries(lasp_gpu_host PUBLIC CUDA::cudart_static)
  endif()
endif()
