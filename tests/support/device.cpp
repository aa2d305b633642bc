#include "support/device.h"

#include <stdexcept>

#if defined(LASP_HAVE_CUDA)

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace gpu {
namespace {

void check(cudaError_t error, const char *call) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
  }
}

// Free blocks by device and size. Never torn down: at the program's end the runtime may be gone before it.
struct Pool {
  std::mutex mutex;
  std::map<std::pair<int32_t, size_t>, std::vector<void *>> free;
};
Pool &pool() {
  static auto *const the_pool = new Pool;
  return *the_pool;
}
bool exact_memory() {
  static const bool exact = std::getenv("LASP_TEST_EXACT_MEMORY") != nullptr;
  return exact;
}
constexpr size_t kLargestPooled = size_t{1} << 28;
size_t pooled_bytes(size_t bytes) {
  size_t rounded = 512;
  while (rounded < bytes) rounded *= 2;
  return rounded;
}

}  // namespace

std::string why_unusable() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return "";
  if (error == cudaSuccess) return "this machine has no CUDA device";
  return std::string("no CUDA device can be used: ") + cudaGetErrorString(error);
}

int32_t device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool has_nvlink(int32_t device, int32_t peer) {
  int holds = 0;
  check(cudaDeviceGetP2PAttribute(&holds, cudaDevP2PAttrNativeAtomicSupported, device, peer),
        "cudaDeviceGetP2PAttribute");
  return holds != 0;
}

std::string device_name(int32_t index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return properties.name;
}

namespace {

int32_t attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, current_device()), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

int32_t capability() {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}
int32_t multiprocessors() { return attribute(cudaDevAttrMultiProcessorCount); }

size_t l2_bytes() { return static_cast<size_t>(attribute(cudaDevAttrL2CacheSize)); }

size_t free_memory() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

void use_device(int32_t index) { check(cudaSetDevice(index), "cudaSetDevice"); }

int32_t current_device() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}

lasp_stream make_stream() {
  lasp_stream stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}
void destroy_stream(lasp_stream stream) { check(cudaStreamDestroy(stream), "cudaStreamDestroy"); }
void wait(lasp_stream stream) { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

bool finished(lasp_stream stream) {
  const cudaError_t error = cudaStreamQuery(stream);
  if (error != cudaErrorNotReady) check(error, "cudaStreamQuery");
  return error == cudaSuccess;
}

void delay(lasp_stream stream) {
  const auto sleep = [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  check(cudaLaunchHostFunc(stream, sleep, nullptr), "cudaLaunchHostFunc");
}

void call(lasp_stream stream, void (*function)(void *user), void *user) {
  check(cudaLaunchHostFunc(stream, function, user), "cudaLaunchHostFunc");
}

void *allocate(size_t bytes) {
  const bool pooled = !exact_memory() && bytes <= kLargestPooled;
  const size_t size = pooled ? pooled_bytes(bytes) : bytes;
  if (pooled) {
    const std::lock_guard lock(pool().mutex);
    std::vector<void *> &free = pool().free[{current_device(), size}];
    if (!free.empty()) {
      void *const memory = free.back();
      free.pop_back();
      return memory;
    }
  }
  void *memory = nullptr;
  check(cudaMalloc(&memory, size == 0 ? 1 : size), "cudaMalloc");
  return memory;
}

void release(void *memory, size_t bytes) {
  if (memory == nullptr) return;
  if (exact_memory() || bytes > kLargestPooled) {
    cudaFree(memory);  // may be called while an exception is on its way: an error here is not news
    return;
  }
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) return;
  const std::lock_guard lock(pool().mutex);
  pool().free[{attributes.device, pooled_bytes(bytes)}].push_back(memory);
}

void copy(void *to, const void *from, size_t bytes, lasp_stream stream) {
  if (bytes != 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void fill(void *to, uint8_t value, size_t bytes, lasp_stream stream) {
  if (bytes != 0) check(cudaMemsetAsync(to, value, bytes, stream), "cudaMemsetAsync");
}

Event::Event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  event_ = event;
}
Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(event_)); }
void Event::record(lasp_stream stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream), "cudaEventRecord");
}
void Event::wait() { check(cudaEventSynchronize(static_cast<cudaEvent_t>(event_)), "cudaEventSynchronize"); }
double Event::milliseconds_since(const Event &earlier) const {
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, static_cast<cudaEvent_t>(earlier.event_), static_cast<cudaEvent_t>(event_)),
        "cudaEventElapsedTime");
  return static_cast<double>(elapsed);
}

Graph::~Graph() {
  if (cudaGraph_t unfinished = nullptr; capturing_ != nullptr) {
    if (cudaStreamEndCapture(capturing_, &unfinished) == cudaSuccess) cudaGraphDestroy(unfinished);
  }
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  if (graph_ != nullptr) cudaGraphDestroy(static_cast<cudaGraph_t>(graph_));
}
// Ranks in other threads go on allocating meanwhile: only this thread is held to what may be captured.
void Graph::begin(lasp_stream stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  capturing_ = stream;
}
void Graph::end(lasp_stream stream) {
  cudaGraph_t graph = nullptr;
  capturing_ = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  graph_ = graph;
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  executable_ = executable;
}
void Graph::launch(lasp_stream stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream), "cudaGraphLaunch");
}
namespace {

// By the driver: the kernels are of another library's runtime than this one's.
std::string kernel_name(cudaGraphNode_t node) {
  const auto entry = [](const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion(name, &function, 12030, cudaEnableDefault, &found), name);
    return function;
  };
  struct Params {  // CUDA_KERNEL_NODE_PARAMS_v2, of which the end is not used
    void *function;
    unsigned sizes[7];
    void **arguments, **extra;
    void *kernel, *context;
  } params{};
  using GetParams = int (*)(cudaGraphNode_t, Params *);
  using GetName = int (*)(const char **, void *);
  static const auto get_params = reinterpret_cast<GetParams>(entry("cuGraphKernelNodeGetParams"));
  static const auto function_name = reinterpret_cast<GetName>(entry("cuFuncGetName"));
  static const auto kernel_name = reinterpret_cast<GetName>(entry("cuKernelGetName"));
  if (get_params(node, &params) != 0) return "kernel";
  const char *mangled = nullptr;
  const int error =
      params.function != nullptr ? function_name(&mangled, params.function) : kernel_name(&mangled, params.kernel);
  if (error != 0 || mangled == nullptr) return "kernel";
  int status = 0;
  char *const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = text != nullptr ? text : mangled;
  std::free(text);
  for (const std::string nobody = "(anonymous namespace)::"; name.find(nobody) != std::string::npos;)
    name.erase(name.find(nobody), nobody.size());
  name = name.substr(0, name.find_first_of("<("));  // of "void lasp::gpu::f<..>(..)"
  return name.substr(name.find_last_of(": ") + 1);
}

}  // namespace

std::vector<std::string> Graph::launches() const {
  size_t count = 0;
  check(cudaGraphGetNodes(static_cast<cudaGraph_t>(graph_), nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(static_cast<cudaGraph_t>(graph_), nodes.data(), &count), "cudaGraphGetNodes");
  std::vector<std::string> launches;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type == cudaGraphNodeTypeKernel) launches.push_back(kernel_name(node));
    if (type == cudaGraphNodeTypeMemset) launches.push_back("memset");
    if (type == cudaGraphNodeTypeMemcpy) launches.push_back("memcpy");
  }
  return launches;
}

int32_t leave_error() { return cudaSetDevice(1 << 20); }
int32_t last_error() { return cudaPeekAtLastError(); }
void clear_error() { cudaGetLastError(); }

}  // namespace gpu

#else

namespace gpu {
namespace {
[[noreturn]] void absent() { throw std::runtime_error(why_unusable()); }
}  // namespace

std::string why_unusable() { return "this build has no CUDA"; }
int32_t device_count() { return 0; }
std::string device_name(int32_t) { absent(); }
bool has_nvlink(int32_t, int32_t) { absent(); }
size_t l2_bytes() { absent(); }
int32_t capability() { absent(); }
int32_t multiprocessors() { absent(); }
size_t free_memory() { absent(); }
void use_device(int32_t) { absent(); }
int32_t current_device() { absent(); }
lasp_stream make_stream() { absent(); }
void destroy_stream(lasp_stream) { absent(); }
void wait(lasp_stream) { absent(); }
bool finished(lasp_stream) { absent(); }
void delay(lasp_stream) { absent(); }
void call(lasp_stream, void (*)(void *), void *) { absent(); }
void *allocate(size_t) { absent(); }
void release(void *, size_t) {}
void copy(void *, const void *, size_t, lasp_stream) { absent(); }
void fill(void *, uint8_t, size_t, lasp_stream) { absent(); }
Event::Event() { absent(); }
Event::~Event() = default;
void Event::record(lasp_stream) { absent(); }
void Event::wait() { absent(); }
double Event::milliseconds_since(const Event &) const { absent(); }
Graph::~Graph() = default;
void Graph::begin(lasp_stream) { absent(); }
void Graph::end(lasp_stream) { absent(); }
void Graph::launch(lasp_stream) { absent(); }
std::vector<std::string> Graph::launches() const { absent(); }
int32_t leave_error() { absent(); }
int32_t last_error() { absent(); }
void clear_error() { absent(); }

}  // namespace gpu

#endif
