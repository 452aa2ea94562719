#include "philox.h"

#include <cstring>
#include <vector>

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

// The types of a kernel's parameters, from its demangled name, which ends with them.
std::vector<std::string> parameter_types(const std::string& kernel) {
  std::vector<std::string> types;
  int depth = 0;
  size_t end = kernel.size() - 1;
  for (size_t i = kernel.size(); i-- > 0;) {
    const char c = kernel[i];
    if (is_opening(c)) --depth;
    const bool is_first = depth == 0 && is_opening(c);
    if (is_first || (c == ',' && depth == 1)) {
      types.insert(types.begin(), kernel.substr(i + 1, end - i - 1));
      end = i;
    }
    if (is_first) break;
    if (is_closing(c)) ++depth;
  }
  return types;
}

}  // namespace

int standin::philox_parameter(const std::string& kernel) {
  const std::string type = "at::PhiloxCudaState";
  const std::vector<std::string> types = parameter_types(kernel);
  int lambda = -1;
  for (size_t i = 0; i < types.size(); ++i) {
    const size_t at = types[i].rfind(type);
    if (at == std::string::npos) continue;
    if (at + type.size() == types[i].size()) return i;
    lambda = i;
  }
  return lambda;
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
