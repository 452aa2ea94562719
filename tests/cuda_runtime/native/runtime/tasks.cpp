#include "tasks.h"

#include <algorithm>
#include <map>
#include <thread>
#include <unordered_set>

#include "choice.h"
#include "lock.h"

namespace standin {
namespace {

uint64_t n_issued = 0;
const Task* running = nullptr;
std::thread::id runner;
char running_label[256] = "no task";

// All that are not finished, by number. Never destroyed: threads may outlive static objects.
std::map<uint64_t, TaskPointer>& pending() {
  static auto* tasks = new std::map<uint64_t, TaskPointer>;
  return *tasks;
}

Ready& ready() {
  static auto* tasks = new Ready;
  return *tasks;
}

// What all later tasks come after; null if there is none.
TaskPointer& barrier() {
  static auto* task = new TaskPointer;
  return *task;
}

void run_body(const Task& task, bool is_locked) {
  trace("run %s", task.label.c_str());
  if (!task.body) return;
  if (is_locked) return task.body();
  Unlocked unlocked;
  task.body();
}

void becomes_ready(Task* task);

void complete(Task* task) {
  const TaskPointer kept = pending().at(task->number);
  pending().erase(task->number);
  task->is_finished = true;
  task->before.clear();
  task->body = nullptr;
  std::vector<Task*> others;
  for (Task* next : task->after)
    if (--next->n_before == 0) (next->is_immediate ? becomes_ready(next) : others.push_back(next));
  for (Task* next : others) becomes_ready(next);
}

void becomes_ready(Task* task) {
  if (!task->is_immediate) {
    ready()[task->number] = task;
    return;
  }
  run_body(*task, true);
  complete(task);
}

void run(Task* task) {
  const TaskPointer kept = pending().at(task->number);
  ready().erase(task->number);
  running = task;
  runner = std::this_thread::get_id();
  const size_t n = task->label.copy(running_label, sizeof running_label - 1);
  running_label[n] = 0;
  run_body(*task, false);
  running = nullptr;
  complete(task);
}

Needed needed_for(const Tasks& tasks) {
  Needed found;
  Tasks left = unfinished(tasks);
  while (!left.empty()) {
    const TaskPointer task = left.back();
    left.pop_back();
    if (!found.insert(task.get()).second) continue;
    for (const auto& earlier : task->before)
      if (!earlier->is_finished) left.push_back(earlier);
  }
  return found;
}

}  // namespace

TaskPointer issue(std::string label, const Tasks& before, Body body, bool is_immediate) {
  auto task = std::make_shared<Task>();
  task->label = std::move(label);
  task->body = std::move(body);
  task->number = ++n_issued;
  task->is_immediate = is_immediate;
  Tasks earlier = before;
  if (barrier()) earlier.push_back(barrier());
  task->before = unfinished(earlier);
  task->n_before = task->before.size();
  pending()[task->number] = task;
  for (const auto& earlier : task->before) earlier->after.push_back(task.get());
  if (task->n_before == 0) becomes_ready(task.get());
  return task;
}

void issue_barrier(std::string label, Body body) {
  barrier() = issue(std::move(label), all_unfinished(), std::move(body), true);
}

void advance() {
  if (running) return;  // who runs it goes on with what is ready by then
  if (mode() == Mode::eager)
    while (!running && !ready().empty()) run(ready().begin()->second);
  if (mode() == Mode::random)
    for (int n = draw(3); n > 0 && !running && !ready().empty(); --n) run(any_of(ready()));
}

void finish(const Tasks& tasks) {
  const Tasks kept = unfinished(tasks);
  const Needed needed = needed_for(kept);
  while (!are_finished(kept)) {
    if (is_in_task()) return;
    if (running)
      wait_for_other_threads();
    else
      run(next_of(ready(), needed));
  }
  if (mode() == Mode::eager) advance();
}

Tasks all_unfinished() {
  Tasks all;
  for (const auto& [number, task] : pending()) all.push_back(task);
  return all;
}

void finish_all() { finish(all_unfinished()); }

void poll(const Tasks& tasks) {
  if (running) return;
  const Tasks kept = unfinished(tasks);
  if (!kept.empty()) run(next_of(ready(), needed_for(kept)));
}

bool are_finished(const Tasks& tasks) { return unfinished(tasks).empty(); }

Tasks unfinished(const Tasks& tasks) {
  Tasks left;
  for (const auto& task : tasks)
    if (!task->is_finished && std::find(left.begin(), left.end(), task) == left.end())
      left.push_back(task);
  return left;
}

bool is_in_task() { return running && runner == std::this_thread::get_id(); }

const char* current_label() { return running_label; }

void set_mode(Mode mode, unsigned seed) {
  finish_all();
  choose_by(mode, seed);
}

}  // namespace standin
