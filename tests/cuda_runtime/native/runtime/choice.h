// Which of the tasks that may run does run next.
#pragma once
#include <cstdint>
#include <map>
#include <unordered_set>

#include "settings.h"
#include "tasks.h"

namespace standin {

using Ready = std::map<uint64_t, Task*>;  // by number, in the order of issue
using Needed = std::unordered_set<const Task*>;

Mode mode();
void choose_by(Mode mode, unsigned seed);
unsigned draw(unsigned n);  // a random number below n

Task* any_of(const Ready& ready);

// One of those that are needed; by mode the first, the last, or any, and then at times one that is
// not needed, as a device would run it meanwhile.
Task* next_of(const Ready& ready, const Needed& needed);

}  // namespace standin
