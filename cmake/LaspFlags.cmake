# Compiler settings for everything in the project.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Linked to by every target of the project, never installed.
add_library(lasp_flags INTERFACE)
target_compile_options(lasp_flags INTERFACE -Wall -Wextra -Wshadow -Wundef -Wvla -Wcast-qual -Wfloat-conversion
                       $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
                       $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(lasp_flags INTERFACE -Wno-restrict)  # false alarms on std::string, gcc bug 105651
endif()
if(LASP_WERROR)
  target_compile_options(lasp_flags INTERFACE -Werror)
endif()

# Against attacks by way of a defect, for what is installed; tests/abi/hardening.sh looks for it in the built file.
add_library(lasp_hardening INTERFACE)
target_compile_options(lasp_hardening INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)
if(NOT LASP_SANITIZE)  # the sanitizers check the same functions, better
  target_compile_options(lasp_hardening INTERFACE
                         $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
endif()

if(LASP_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(LASP_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
elseif(LASP_SANITIZE STREQUAL "fuzzer")
  set(sanitizers -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
elseif(LASP_SANITIZE)
  message(FATAL_ERROR "LASP_SANITIZE=${LASP_SANITIZE}: must be address, thread, fuzzer or empty")
endif()
if(LASP_SANITIZE)
  add_compile_options(${sanitizers} -fno-omit-frame-pointer)
  target_compile_options(lasp_flags INTERFACE -Wno-maybe-uninitialized)  # gcc 12 cannot see through its own checks
  add_link_options(${sanitizers})
endif()
