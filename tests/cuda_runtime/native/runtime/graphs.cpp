// CUDA Runtime API, section "Graph Management".
#include "graphs.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "capture.h"
#include "counters.h"
#include "errors.h"
#include "lock.h"

namespace standin {
namespace {

// Issues each node as a task of its own, between one that begins the replay and one that ends it.
TaskPointer replay(const std::shared_ptr<const Nodes>& nodes, const Tasks& before) {
  const auto begin = issue("begin of a graph", before, nullptr);
  Tasks tasks, all = {begin};
  for (const auto& node : *nodes) {
    Tasks earlier = {begin};
    for (const auto* each : node->before) earlier.push_back(tasks[each->index]);
    auto body = [nodes, node = node.get()] {
      if (node->body) node->body();
    };
    tasks.push_back(issue("replay of " + node->label, earlier, body, node->is_immediate));
    if (!node->is_immediate) all.push_back(tasks.back());
  }
  counters().replayed += nodes->size();
  return issue("end of a graph", all, nullptr);
}

std::vector<cudaGraphNode_t> visible(const Nodes& nodes) {
  std::vector<cudaGraphNode_t> found;
  for (const auto& node : nodes)
    if (!node->is_immediate) found.push_back(node.get());
  return found;
}

void copy_out(const std::vector<cudaGraphNode_t>& nodes, cudaGraphNode_t* out, size_t* n) {
  if (out) std::copy_n(nodes.begin(), std::min(*n, nodes.size()), out);
  *n = nodes.size();
}

}  // namespace

CUgraphNode_st* add_node(cudaGraph_t graph, std::string label, std::vector<CUgraphNode_st*> before,
                         Body body) {
  auto node = std::make_shared<CUgraphNode_st>();
  node->label = std::move(label);
  node->before = std::move(before);
  node->body = std::move(body);
  node->index = graph->nodes.size();
  graph->nodes.push_back(node);
  return node.get();
}

void join_nodes(std::vector<CUgraphNode_st*>& nodes, const std::vector<CUgraphNode_st*>& more) {
  for (auto* node : more)
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
}

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Locked locked;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  Locked locked;
  *executable = new CUgraphExec_st{std::make_shared<const Nodes>(graph->nodes), nullptr};
  ++counters().graphs;
  return cudaSuccess;
}

// CUDA Driver API, cuGraphExecDestroy: "If the executable graph is in-flight, it will not be
// terminated, but rather freed asynchronously on completion."
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Locked locked;
  delete executable;
  return cudaSuccess;
}

// cudaGraphLaunch: "Only one instance of graphExec may be executing at a time. Each launch is
// ordered behind both any previous work in stream and any previous launches of graphExec."
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  Locked locked;
  auto* stream = resolved(handle);
  if (stream->capture) STANDIN_RETURN(cudaErrorStreamCaptureUnsupported);  // CUDA 13.0, an H100
  STANDIN_RETURN_IF(legacy_use(stream, __func__));
  Tasks before = position(stream);
  if (executable->last_replay) before.push_back(executable->last_replay);
  executable->last_replay = replay(executable->nodes, before);
  stream->last = {executable->last_replay};
  ++counters().graph_launches;
  advance();
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* n) {
  Locked locked;
  copy_out(visible(graph->nodes), nodes, n);
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* before,
                                         cudaGraphEdgeData* edges, size_t* n) {
  Locked locked;
  if (before && edges) std::memset(edges, 0, std::min(*n, node->before.size()) * sizeof *edges);
  copy_out(node->before, before, n);
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  Locked locked;
  std::ofstream file(path);
  file << "digraph {\n";
  for (const auto* node : visible(graph->nodes)) {
    std::string label = node->label.substr(0, 200);
    std::replace(label.begin(), label.end(), '"', '\'');
    file << "n" << node->index << " [label=\"" << label << "\"];\n";
    for (const auto* earlier : node->before)
      file << "n" << earlier->index << " -> n" << node->index << ";\n";
  }
  file << "}\n";
  return cudaSuccess;
}

}  // extern "C"
