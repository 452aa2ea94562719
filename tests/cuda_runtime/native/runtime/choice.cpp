#include "choice.h"

#include <random>
#include <vector>

namespace standin {
namespace {

Mode current_mode = mode_named(mode_in_environment());
std::mt19937 generator(seed_in_environment());

// Uniform choices alone seldom delay one task behind many others, so that taste changes at random.
enum Taste { uniform, newest, oldest };
Taste taste = uniform;

Task* by_taste(const std::vector<Task*>& tasks) {
  if (draw(8) == 0) taste = Taste(draw(3));
  if (taste == newest) return tasks.back();
  if (taste == oldest) return tasks.front();
  return tasks[draw(tasks.size())];
}

std::vector<Task*> both(const Ready& ready, const Needed& needed) {
  std::vector<Task*> found;
  for (const auto& [number, task] : ready)
    if (needed.count(task)) found.push_back(task);
  return found;
}

}  // namespace

Mode mode() { return current_mode; }

void choose_by(Mode mode, unsigned seed) {
  current_mode = mode;
  generator.seed(seed);
  taste = uniform;
}

unsigned draw(unsigned n) { return generator() % n; }

Task* any_of(const Ready& ready) {
  std::vector<Task*> all;
  for (const auto& [number, task] : ready) all.push_back(task);
  return by_taste(all);
}

Task* next_of(const Ready& ready, const Needed& needed) {
  if (mode() == Mode::random && draw(4) == 0) return any_of(ready);
  const auto found = both(ready, needed);
  if (mode() == Mode::random) return by_taste(found);
  return mode() == Mode::lazy ? found.back() : found.front();
}

}  // namespace standin
