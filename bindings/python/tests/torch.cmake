# The tests of liblasp.torch and liblasp.jax. They run where torch-setup finds or makes an environment with PyTorch, and
# are skipped with its reason elsewhere.
lasp_add_command_test(binding.torch.setup COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/torch-setup ${python} TIMEOUT 900
                      PROPERTIES FIXTURES_SETUP torch)
# One process for all that needs one only: importing torch takes longer than most of these tests.
set(alone arrays attention convolution delta gpu_checks module nccl operators ownership packing pieces refusals segments vocabulary
          wrong_types)
list(TRANSFORM alone REPLACE "(.+)" "test_torch_\\1.py")
function(lasp_add_torch_test name)  # name [SPARE seconds] word of pytest...
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SPARE" "")
  lasp_add_command_test(binding.torch.${name} TIMEOUT 400 SPARE ${arg_SPARE}
                        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/torch-tests ${CMAKE_CURRENT_BINARY_DIR}/package
                                ${arg_UNPARSED_ARGUMENTS})
  set_property(TEST binding.torch.${name} APPEND PROPERTY ENVIRONMENT ${environment})
  set_tests_properties(binding.torch.${name} PROPERTIES FIXTURES_REQUIRED torch)
endfunction()
lasp_add_torch_test(alone ${alone})
lasp_add_torch_test(speed test_torch_speed.py)
lasp_add_torch_test(ranks test_torch_ranks.py)
lasp_add_torch_test(training test_torch_ranks_training.py)
lasp_add_torch_test(delta test_torch_delta_layers.py test_torch_delta_ranks.py)
lasp_add_torch_test(delta_peers SPARE 60 test_torch_delta_peers.py)
lasp_add_torch_test(compile SPARE 110 test_torch_compile.py test_torch_compile_ranks.py)
lasp_add_torch_test(convergence SPARE 60 test_torch_convergence.py)
lasp_add_torch_test(example SPARE 80 test_torch_example.py)
lasp_add_torch_test(tutorials SPARE 15 test_torch_tutorials.py)
lasp_add_torch_test(hf SPARE 150 test_torch_hf.py test_torch_hf_functions.py -k "not full")
lasp_add_torch_test(verify SPARE 90 test_torch_verify.py -k "not full")
lasp_add_torch_test(trainers SPARE 60 test_torch_trainers.py -k "not full")
lasp_add_torch_test(lightning SPARE 45 test_torch_lightning.py -k "not full")
lasp_add_torch_test(recall SPARE 75 test_torch_recall.py -k "not gradient")
lasp_add_torch_test(recall_gradients SPARE 40 test_torch_recall.py -k gradient)
# liblasp.jax, in the same environment: it and PyTorch are there or not together.
lasp_add_command_test(binding.jax TIMEOUT 400 PROPERTIES PROCESSORS 2 FIXTURES_REQUIRED torch
                      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/torch-tests ${CMAKE_CURRENT_BINARY_DIR}/package
                              test_jax.py test_jax_shards.py)
lasp_add_command_test(binding.jax.programs TIMEOUT 400 SPARE 25 PROPERTIES PROCESSORS 2 FIXTURES_REQUIRED torch
                      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/torch-tests ${CMAKE_CURRENT_BINARY_DIR}/package
                              test_jax_programs.py)
set_property(TEST binding.jax binding.jax.programs APPEND PROPERTY ENVIRONMENT ${environment})
if(TARGET lasp_mpi)
  lasp_add_command_test(binding.torch.mpi TIMEOUT 200 SPARE 15 PROPERTIES PROCESSORS 2
                        COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2
                                ${CMAKE_CURRENT_SOURCE_DIR}/torch-tests ${CMAKE_CURRENT_BINARY_DIR}/package
                                mpi_torch_ranks.py)
  set_property(TEST binding.torch.mpi APPEND PROPERTY ENVIRONMENT ${environment})
  set_tests_properties(binding.torch.mpi PROPERTIES FIXTURES_REQUIRED torch)
endif()
# `speed` measures the times of an idle machine, as far as other tests go. The others here have ranks whose waits end after
# seconds. Those that are not here go beside one more test.
set_tests_properties(binding.torch.speed binding.torch.ranks binding.torch.training binding.torch.delta
                     binding.torch.delta_peers binding.torch.example binding.torch.tutorials PROPERTIES PROCESSORS 2)

# What looks like a torch with its NCCL, and a second NCCL beside it: test_torch_nccl.py loads them.
foreach(fake IN ITEMS own|22809 other|22005)
  string(REPLACE "|" ";" fake ${fake})
  list(GET fake 0 name)
  list(GET fake 1 version)
  add_library(fake_torch_nccl_${name} SHARED ${PROJECT_SOURCE_DIR}/tests/unit/cuda/nccl/fake_nccl.c)
  set_target_properties(fake_torch_nccl_${name} PROPERTIES OUTPUT_NAME nccl-${name}
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_torch)
  target_compile_definitions(fake_torch_nccl_${name} PRIVATE FAKE_VERSION=${version})
endforeach()
add_library(fake_torch_cuda SHARED ${CMAKE_CURRENT_LIST_DIR}/fake_torch_cuda.c)
target_link_libraries(fake_torch_cuda PRIVATE fake_torch_nccl_own)
set_target_properties(fake_torch_cuda PROPERTIES OUTPUT_NAME torch_cuda C_VISIBILITY_PRESET default
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_torch)
set_property(TEST binding.torch.alone APPEND PROPERTY ENVIRONMENT
             LASP_FAKE_TORCH=${CMAKE_CURRENT_BINARY_DIR}/fake_torch)
