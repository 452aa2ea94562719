#include "philox.h"

#include <cstring>

namespace {

// at::PhiloxCudaState: a seed and an offset, or in a capture pointers to them, an offset within the
// graph, and whether it is the latter.
constexpr size_t STATE_SIZE = 25;

thread_local struct {
  long n_launches = 0;
  unsigned char state[32] = {};
} noted;

bool is_closing(char c) { return c == ')' || c == '>' || c == '}' || c == ']'; }
bool is_opening(char c) { return c == '(' || c == '<' || c == '{' || c == '['; }

}  // namespace

int standin::philox_parameter(const std::string& kernel) {
  const size_t at = kernel.rfind("at::PhiloxCudaState");
  if (at == std::string::npos) return -1;
  int depth = 0, n_before = 0;
  for (size_t i = at; i-- > 0;) {
    const char c = kernel[i];
    if (is_closing(c)) ++depth;
    if (is_opening(c) && depth-- == 0) return c == '(' ? n_before : -1;
    if (c == ',' && depth == 0) ++n_before;
  }
  return -1;
}

void standin::note_philox(const void* state) {
  ++noted.n_launches;
  std::memcpy(noted.state, state, STATE_SIZE);
}

// Copies out the state that this thread's last launch of that kind was given; returns how many
// such launches there were.
extern "C" long standin_last_philox(void* state) {
  std::memcpy(state, noted.state, sizeof noted.state);
  return noted.n_launches;
}
