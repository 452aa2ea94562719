// What the runtime was asked to do, for tests.
#pragma once

struct StandinCounters {
  long issued, captured, launches, replayed, graphs, graph_launches, allocations, frees, events,
      synchronizations;
};

namespace standin {
StandinCounters& counters();
}
