#include "settings.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace standin {
namespace {

long number(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : otherwise;
}

}  // namespace

Mode mode_named(const std::string& name) {
  if (name == "eager") return Mode::eager;
  if (name == "lazy") return Mode::lazy;
  if (name == "random") return Mode::random;
  std::fprintf(stderr, "STANDIN_MODE is %s, not eager, lazy or random\n", name.c_str());
  std::exit(2);
}

int number_of_devices() {
  static const int n = number("STANDIN_DEVICES", 1);
  return n;
}

size_t memory_per_device() {
  static const size_t n = number("STANDIN_MEMORY", 8L << 30);
  return n;
}

int compute_capability() {
  static const int n = number("STANDIN_COMPUTE_CAPABILITY", 80);
  return n;
}

int multiprocessors() {
  static const int n = number("STANDIN_MULTIPROCESSORS", 8);
  return n;
}

bool is_traced() {
  static const bool is = number("STANDIN_TRACE", 0);
  return is;
}

std::string mode_in_environment() {
  const char* name = std::getenv("STANDIN_MODE");
  return name ? name : "eager";
}

unsigned seed_in_environment() { return number("STANDIN_SEED", 1); }

void trace(const char* format, ...) {
  if (!is_traced()) return;
  va_list arguments;
  va_start(arguments, format);
  std::fputs("[stand-in] ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

}  // namespace standin
