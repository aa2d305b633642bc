// Reading a call of XLA's, and its errors.
#include "frame.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

namespace lasp::xla {
namespace {

size_t size_of(int32_t dtype) {  // of XLA's element types, as far as they come here
  switch (dtype) {
    case 5:
    case 12: return 8;  // S64, F64
    case 4:
    case 8:
    case 11: return 4;  // S32, U32, F32
    case 3:
    case 7:
    case 10:
    case 16: return 2;  // S16, U16, F16, BF16
    case 1:
    case 2:
    case 6: return 1;  // PRED, S8, U8
    default: return 0;
  }
}

std::string quoted(std::string_view name) { return "liblasp's call has no " + std::string(name); }

}  // namespace

void check(lasp_status status) {
  if (status != LASP_OK) throw Refusal(status, lasp_last_error());
}

const void *Frame::attribute(std::string_view name, int32_t type) const {
  const Attrs &attrs = frame_->attrs;
  for (int64_t at = 0; at < attrs.size; ++at)
    if (attrs.types[at] == type && std::string_view(attrs.names[at]->data, attrs.names[at]->size) == name)
      return attrs.values[at];
  throw Refusal(LASP_ERROR_INTERNAL, quoted(name));
}

int64_t Frame::integer(std::string_view name) const {
  const auto *scalar = static_cast<const Scalar *>(attribute(name, kScalar));
  if (scalar->dtype == kInt64) return *static_cast<const int64_t *>(scalar->value);
  if (scalar->dtype == kInt32) return *static_cast<const int32_t *>(scalar->value);
  throw Refusal(LASP_ERROR_INTERNAL, quoted(name));
}

float Frame::number(std::string_view name) const {
  const auto *scalar = static_cast<const Scalar *>(attribute(name, kScalar));
  if (scalar->dtype != kFloat32) throw Refusal(LASP_ERROR_INTERNAL, quoted(name));
  return *static_cast<const float *>(scalar->value);
}

Memory Frame::find(const Args &buffers, std::string_view list, std::string_view name) const {
  const auto *span = static_cast<const ByteSpan *>(attribute(list, kString));
  std::string_view rest(span->data, span->size);
  for (int64_t at = 0; at < buffers.size; ++at) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == name) {
      const auto *buffer = static_cast<const Buffer *>(buffers.buffers[at]);
      Memory found{buffer->data, 0, 1, buffer->dtype};
      for (int64_t axis = 0; axis < buffer->rank; ++axis) found.elements *= buffer->dims[axis];
      found.bytes = static_cast<size_t>(found.elements) * size_of(buffer->dtype);
      return found;
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

void *Frame::stream() const {
  StreamArgs args{sizeof args, nullptr, frame_->context, nullptr};
  if (Error *failed = frame_->api->stream_get(&args)) {
    ErrorDestroyArgs destroy{sizeof destroy, nullptr, failed};
    frame_->api->error_destroy(&destroy);
    throw Refusal(LASP_ERROR_INTERNAL, "XLA has no stream for liblasp's call");
  }
  return args.stream;
}

int32_t Frame::ordinal() const {
  const Api *api = frame_->api;
  if (api->struct_size < offsetof(Api, ordinal_get) + sizeof api->ordinal_get) return -1;
  OrdinalArgs args{offsetof(OrdinalArgs, ordinal) + sizeof args.ordinal, nullptr, frame_->context, -1};
  if (Error *failed = api->ordinal_get(&args)) {
    ErrorDestroyArgs destroy{sizeof destroy, nullptr, failed};
    api->error_destroy(&destroy);
    return -1;
  }
  return args.ordinal;
}

void copy(void *to, const void *from, size_t bytes, int32_t device, void *stream) {
  if (device == LASP_DEVICE_CPU) {
    std::memcpy(to, from, bytes);
    return;
  }
  // By the driver that XLA has loaded: this library is not linked to any of CUDA.
  using Copy = int (*)(void *, const void *, size_t, void *);
  static const Copy driver = [] {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    return library == nullptr ? nullptr : reinterpret_cast<Copy>(dlsym(library, "cuMemcpyDtoDAsync_v2"));
  }();
  if (driver == nullptr) throw Refusal(LASP_ERROR_DEVICE, "the driver's cuMemcpyDtoDAsync was not found");
  const int failed = driver(to, from, bytes, stream);
  if (failed != 0) throw Refusal(LASP_ERROR_DEVICE, "copying a state: CUDA error " + std::to_string(failed));
}

bool answer_version(CallFrame *frame) {
  Extension *extension = frame->extension_start;
  if (extension == nullptr || extension->type != kMetadata) return false;
  Metadata *metadata = reinterpret_cast<MetadataExtension *>(extension)->metadata;
  // What is used here is alike in all versions that XLA has had, so that an older one may be told its own.
  const int minor = frame->api == nullptr ? kOldestMinor : frame->api->version.minor_version;
  metadata->version.major_version = kMajor;
  metadata->version.minor_version = std::min(minor, kNewestMinor);
  metadata->traits = 0;
  return true;
}

Error *error(const CallFrame *frame, lasp_status status, const std::string &sentence) {
  const int32_t code = status == LASP_ERROR_DEVICE_MEMORY || status == LASP_ERROR_OUT_OF_MEMORY ? kResourceExhausted
                       : status < 200                                                           ? kInvalidArgument
                       : status < 300                                                           ? kUnimplemented
                       : status == LASP_ERROR_VALUES                                            ? kDataLoss
                                                                                                : kInternal;
  const std::string message = "liblasp: " + sentence;
  ErrorArgs args{offsetof(ErrorArgs, code) + sizeof args.code, nullptr, message.c_str(), code};
  return frame->api->error_create(&args);
}

}  // namespace lasp::xla
