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

# Linked to by every target that is installed: against attacks by way of a defect, and against folders of this machine
# in debug information and __FILE__. tests/abi/hardening.sh and tests/install/files.sh look at what was installed.
add_library(lasp_installed INTERFACE)
target_compile_options(lasp_installed INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)
if(NOT LASP_SANITIZE)  # the sanitizers check the same functions, better, and their reports name the files as they lie
  set(host $<AND:$<COMPILE_LANGUAGE:C,CXX>,$<NOT:$<CONFIG:Debug>>>)
  # The last one that fits counts. The slash: a build folder's name may begin as that of the source folder.
  set(map -ffile-prefix-map=${PROJECT_BINARY_DIR}=./build -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=./)
  target_compile_options(lasp_installed INTERFACE "$<${host}:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2;${map}>")
  list(TRANSFORM map PREPEND -Xcompiler=)
  target_compile_options(lasp_installed INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${map}>")
endif()

# In a Release build a library's debug information goes into a file of its own beside it, which its .gnu_debuglink
# names, and the library keeps none. Functions and lines are in it, which backtraces show; they cost no time to compile.
# Other kinds of build are left as they are: a packager who sets CMAKE_BUILD_TYPE=None splits files by other tools.
set(LASP_SPLIT_DEBUG_INFO OFF)
if(CMAKE_BUILD_TYPE MATCHES "^(Release|MinSizeRel)$" AND CMAKE_OBJCOPY AND CMAKE_READELF AND NOT LASP_SANITIZE)
  set(LASP_SPLIT_DEBUG_INFO ON)
  target_compile_options(lasp_installed INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-g1>)
endif()
function(lasp_split_debug_info target)
  if(LASP_SPLIT_DEBUG_INFO)
    add_custom_command(TARGET ${target} POST_BUILD VERBATIM
                       COMMAND ${PROJECT_SOURCE_DIR}/cmake/split_debug_info ${CMAKE_OBJCOPY} ${CMAKE_READELF}
                               $<TARGET_FILE:${target}>)
  endif()
endfunction()

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
