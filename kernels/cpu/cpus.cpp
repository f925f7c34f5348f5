#include "cpus.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ldf {
namespace {

#if defined(__x86_64__)

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(uint32_t number, uint32_t part) {
  Leaf leaf;
  __get_cpuid_count(number, part, &leaf.eax, &leaf.ebx, &leaf.ecx, &leaf.edx);
  return leaf;
}

bool has_all(uint64_t bits, uint64_t mask) { return (bits & mask) == mask; }

constexpr uint32_t bit(int number) { return 1u << number; }

// Registers that the operating system saves and restores, as bits of XCR0.
constexpr uint32_t YMM = bit(1) | bit(2), ZMM = YMM | bit(5) | bit(6) | bit(7);

bool os_saves(uint32_t registers) {
  constexpr uint32_t OSXSAVE = bit(27);
  if (!has_all(cpuid(1, 0).ecx, OSXSAVE)) return false;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has_all(low, registers);
}

bool has_avx2() {
  constexpr uint32_t FMA = bit(12), AVX = bit(28), F16C = bit(29), AVX2 = bit(5);
  return has_all(cpuid(1, 0).ecx, FMA | AVX | F16C) && has_all(cpuid(7, 0).ebx, AVX2) && os_saves(YMM);
}

bool has_avxvnni() {
  constexpr uint32_t AVX_VNNI = bit(4);
  return has_avx2() && cpuid(7, 0).eax >= 1 && has_all(cpuid(7, 1).eax, AVX_VNNI);
}

bool has_avx512vnni() {
  constexpr uint32_t F = bit(16), DQ = bit(17), BW = bit(30), VL = bit(31), VNNI = bit(11);
  const Leaf leaf = cpuid(7, 0);
  return has_avx2() && has_all(leaf.ebx, F | DQ | BW | VL) && has_all(leaf.ecx, VNNI) && os_saves(ZMM);
}

bool has(const char* name) {
  if (!strcmp(name, "avx2")) return has_avx2();
  if (!strcmp(name, "avxvnni")) return has_avxvnni();
  return !strcmp(name, "avx512vnni") && has_avx512vnni();
}

#elif defined(__aarch64__)

bool has_dot_product() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}

bool has(const char* name) { return !strcmp(name, "neon") && has_dot_product(); }

#else

bool has(const char*) { return false; }

#endif

}  // namespace

bool cpu_has(const char* instruction_set) { return !strcmp(instruction_set, "portable") || has(instruction_set); }

}  // namespace ldf
