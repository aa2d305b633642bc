// Graphs of the stand-in CUDA runtime: their nodes run one after the other, in the order of capture.
#include "runtime/stream.h"

using namespace emulator::runtime;

namespace {

void run_all(const Nodes &nodes) {
  for (const auto &node : nodes) run_guarded(node->run);
}

}  // namespace

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
  return call([&] {
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call(
      [&] { return enqueue(stream, cudaGraphNodeTypeGraph, [nodes = executable->nodes] { run_all(nodes); }); });
}

// The work in flight keeps its nodes.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return note(broken());
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return note(broken());
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return call([&] {
    const size_t there = graph->nodes.size();
    if (nodes == nullptr) return *count = there, cudaSuccess;
    for (size_t n = 0; n < *count; ++n) nodes[n] = n < there ? graph->nodes[n].get() : nullptr;
    if (*count > there) *count = there;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type) {
  *type = node->type;
  return note(broken());
}
