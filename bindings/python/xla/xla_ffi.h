// What this module uses of XLA's C interface for foreign functions, as xla/ffi/api/c_api.h of OpenXLA (Apache-2.0)
// lays it out in memory. jaxlib brings that header; a build of liblasp needs none of it. The interface grows at the
// end of its structs, and what stands here is the same from version 0.1 (jaxlib 0.4.38) to 0.4 (jaxlib 0.11).
// test_jax_native.py compares it with the header of the jaxlib that is there.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lasp::xla {

constexpr int kMajor = 0, kOldestMinor = 1, kNewestMinor = 4;

enum : int32_t { kMetadata = 1 };                          // of Extension::type
enum : int32_t { kBuffer = 1 };                            // of Args::types and Rets::types
enum : int32_t { kArray = 1, kScalar = 3, kString = 4 };   // of Attrs::types
enum : int32_t { kExecute = 3 };                           // of CallFrame::stage
enum : int32_t { kInt32 = 4, kInt64 = 5, kFloat32 = 11 };  // of Scalar::dtype and Buffer::dtype
enum : int32_t {
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
  kDataLoss = 15
};

struct Error;             // XLA's own
struct ExecutionContext;  // likewise

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension *next;
};
struct Version {
  size_t struct_size;
  Extension *extension_start;
  int major_version, minor_version;
};
struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata *metadata;
};
struct ByteSpan {
  const char *data;
  size_t size;
};
struct Scalar {
  int32_t dtype;
  void *value;
};
struct Buffer {
  size_t struct_size;
  Extension *extension_start;
  int32_t dtype;
  void *data;
  int64_t rank;
  int64_t *dims;
};
struct Args {  // and results, which lie alike
  size_t struct_size;
  Extension *extension_start;
  int64_t size;
  int32_t *types;
  void **buffers;
};
struct Attrs {  // sorted by name
  size_t struct_size;
  Extension *extension_start;
  int64_t size;
  int32_t *types;
  ByteSpan **names;
  void **values;
};
struct ErrorArgs {
  size_t struct_size;
  Extension *extension_start;
  const char *message;
  int32_t code;
};
struct ErrorDestroyArgs {
  size_t struct_size;
  Extension *extension_start;
  Error *error;
};
struct StreamArgs {
  size_t struct_size;
  Extension *extension_start;
  ExecutionContext *context;
  void *stream;  // out
};
struct OrdinalArgs {
  size_t struct_size;
  Extension *extension_start;
  ExecutionContext *context;
  int32_t ordinal;  // out
};
struct Api {
  size_t struct_size;
  Extension *extension_start;
  Version version;
  const void *internal;
  Error *(*error_create)(ErrorArgs *);
  void *error_get_message;
  void (*error_destroy)(ErrorDestroyArgs *);
  void *handler_register;
  Error *(*stream_get)(StreamArgs *);
  void *others[12];
  Error *(*ordinal_get)(OrdinalArgs *);  // since 0.2
};
struct CallFrame {
  size_t struct_size;
  Extension *extension_start;
  const Api *api;
  ExecutionContext *context;
  int32_t stage;
  Args args, results;
  Attrs attrs;
};

}  // namespace lasp::xla
