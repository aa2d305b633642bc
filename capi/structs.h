// The struct-size rules: how a caller's size-prefixed struct is read and how one is written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "guarded.h"

namespace lasp {

// No struct of this interface comes near; a larger size is a mistake and its memory is not looked at.
inline constexpr size_t kLargestStruct = 1 << 16;

// The size of a struct in the first header of this ABI that had it. One that has grown since says it here: template
// <> inline constexpr size_t kFirstSize<T> = offsetof(T, first_new_field).
template <class T>
inline constexpr size_t kFirstSize = sizeof(T);

// A size that ends in the middle of a field no compiler ever made.
template <class T>
void require_struct_size(const T &given, size_t least, const char *name) {
  if (given.size < least || given.size > kLargestStruct || given.size % alignof(T) != 0)
    throw fail(LASP_ERROR_INVALID_STRUCT, "%s.size = %zu: not the size of such a struct; start from its INIT macro",
               name, given.size);
}

// Copies min(caller's, own) bytes, takes the rest as zero, and refuses a tail that means something unknown here.
template <class T>
T read_struct(const T *pointer, const char *name) {
  const T &given = require_pointer(pointer, name);
  require_struct_size(given, kFirstSize<T>, name);
  const auto *bytes = reinterpret_cast<const unsigned char *>(pointer);
  for (size_t i = sizeof(T); i < given.size; ++i)
    if (bytes[i] != 0)
      throw fail(LASP_ERROR_INVALID_STRUCT,
                 "%s.size = %zu: byte %zu is not zero, and this library knows only %zu bytes of it", name,
                 given.size, i, sizeof(T));
  T own{};
  std::memcpy(static_cast<void *>(&own), pointer, std::min(given.size, sizeof(T)));
  return own;
}

// Writes as many bytes as the caller has room for, and zero to what this library does not know; `size` stays.
template <class T>
void write_struct(T *pointer, T value, const char *name) {
  T &given = require_pointer(pointer, name);
  require_struct_size(given, sizeof given.size, name);
  const size_t size = given.size;
  value.size = size;
  std::memcpy(static_cast<void *>(pointer), &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<unsigned char *>(pointer) + sizeof(T), 0, size - sizeof(T));
}

// The init functions: the macro's bytes, no more than the caller says there is room for.
template <class T>
void init_struct(T *pointer, size_t size, const T &macro, const char *name) {
  require_pointer(pointer, name);
  if (size < kFirstSize<T> || size > kLargestStruct || size % alignof(T) != 0)
    throw fail(LASP_ERROR_INVALID_STRUCT, "size = %zu: pass sizeof(%s)", size, name);
  std::memcpy(static_cast<void *>(pointer), &macro, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<unsigned char *>(pointer) + sizeof(T), 0, size - sizeof(T));
  std::memcpy(static_cast<void *>(pointer), &size, sizeof size);
}

}  // namespace lasp
