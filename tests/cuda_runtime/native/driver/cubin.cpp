#include "cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace standin {
namespace {

// Records of a section .nv.info.KERNEL, of which NVIDIA's cuobjdump and nvdisasm print the names:
// a format, an attribute, and a size; of this format, with so many bytes behind it.
constexpr unsigned char WITH_PAYLOAD = 4;
constexpr unsigned char KPARAM_INFO = 0x17, KPARAM_INFO_V2 = 0x45;

struct Record {
  unsigned char format, attribute;
  uint16_t size;
};

struct ParameterRecord {
  uint32_t index;
  uint16_t position, offset;
  uint32_t flags;
};

template <class T>
T read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void read_parameters(Kernel& kernel, const char* at, const char* end) {
  while (at + sizeof(Record) <= end) {
    const auto record = read<Record>(at);
    at += sizeof(Record);
    if (record.format != WITH_PAYLOAD) continue;
    const bool is_v2 = record.attribute == KPARAM_INFO_V2;
    if (is_v2 || record.attribute == KPARAM_INFO) {
      const auto found = read<ParameterRecord>(at);
      const int size = is_v2 ? found.flags >> 16 & 0xffff : found.flags >> 18;
      kernel.parameters[found.position] = {found.offset, size};
    }
    at += record.size;
  }
}

const Elf64_Shdr* sections(const char* image) {
  return reinterpret_cast<const Elf64_Shdr*>(image + read<Elf64_Ehdr>(image).e_shoff);
}

// The rest of a name that begins so; empty if it does not.
std::string after_prefix(const std::string& name, const std::string& prefix) {
  return name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : "";
}

}  // namespace

bool is_elf(const std::string& image) {
  return image.size() >= sizeof(Elf64_Ehdr) && !std::memcmp(image.data(), ELFMAG, SELFMAG);
}

size_t elf_size(const char* image) {
  if (std::memcmp(image, ELFMAG, SELFMAG)) return std::strlen(image);  // PTX, which is refused
  const auto header = read<Elf64_Ehdr>(image);
  size_t size = header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr);
  size = std::max<size_t>(size, header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr));
  const auto* section = sections(image);
  for (int i = 0; i < header.e_shnum; ++i)
    if (section[i].sh_type != SHT_NOBITS)
      size = std::max<size_t>(size, section[i].sh_offset + section[i].sh_size);
  return size;
}

Kernels read_kernels(const std::string& image) {
  Kernels kernels;
  const char* start = image.data();
  const auto header = read<Elf64_Ehdr>(start);
  const auto* section = sections(start);
  const char* names = start + section[header.e_shstrndx].sh_offset;
  for (int i = 0; i < header.e_shnum; ++i) {
    const char* at = start + section[i].sh_offset;
    const auto code = after_prefix(names + section[i].sh_name, ".text.");
    const auto info = after_prefix(names + section[i].sh_name, ".nv.info.");
    if (!code.empty()) kernels[code].registers = std::max(1u, section[i].sh_info >> 24);
    if (!info.empty()) read_parameters(kernels[info], at, at + section[i].sh_size);
  }
  for (auto& [name, kernel] : kernels) kernel.name = name;
  return kernels;
}

}  // namespace standin
