// CUDA graphs: nodes, each after others, and their replay.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "tasks.h"

struct CUgraphNode_st {
  std::string label;
  std::vector<CUgraphNode_st*> before;
  standin::Body body;
  size_t index = 0;  // in the graph, in the order of capture
  bool is_immediate = false;  // see capture.h, add_immediate
};

namespace standin {
using Nodes = std::vector<std::shared_ptr<CUgraphNode_st>>;
}

struct CUgraph_st {
  standin::Nodes nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const standin::Nodes> nodes;  // shared with replays that are under way
  standin::TaskPointer last_replay;
};

namespace standin {

CUgraphNode_st* add_node(cudaGraph_t graph, std::string label, std::vector<CUgraphNode_st*> before,
                         Body body);

// Adds to a list of nodes those of another that it lacks.
void join_nodes(std::vector<CUgraphNode_st*>& nodes, const std::vector<CUgraphNode_st*>& more);

}  // namespace standin
