// Functions that Python calls by name.
#include <string.h>

#include "cpus.h"
#include "kernels.h"
#include "threads.h"
#include "workspace.h"

#define LDF_API extern "C" __attribute__((visibility("default")))

namespace {

using ldf::Kernels;

// Compiled instruction sets (see sources.py), from the best to the portable one.
const Kernels* const TABLES[] = {LDF_TABLES};

}  // namespace

// Returns the functions of an instruction set; null if it is unknown or this processor lacks it.
LDF_API const Kernels* ldf_kernels(const char* name) {
  for (const Kernels* table : TABLES) {
    if (!strcmp(table->name, name)) return ldf::cpu_has(name) ? table : nullptr;
  }
  return nullptr;
}

// Returns the n-th best instruction set of this processor; null after the last.
LDF_API const char* ldf_instruction_set(int n) {
  for (const Kernels* table : TABLES) {
    if (ldf::cpu_has(table->name) && n-- == 0) return table->name;
  }
  return nullptr;
}

// Returns the size of a shared struct, to detect a library that was built from other sources.
LDF_API size_t ldf_layout(int which) {
  const size_t sizes[] = {sizeof(ldf::Matrix), sizeof(ldf::Rows), sizeof(ldf::Layer),   sizeof(ldf::Model),
                          sizeof(ldf::Pass),   sizeof(ldf::Kernels), sizeof(ldf::DeltaNet)};
  return which >= 0 && which < 7 ? sizes[which] : 0;
}

LDF_API size_t ldf_workspace_bytes(const ldf::Model* model, int threads) {
  return ldf::lay_out_workspace(*model, 0, threads, nullptr).bytes;
}

LDF_API ldf::Pool* ldf_pool_new(int threads, const int32_t* cpus, int count) {
  return ldf::pool_new(threads, cpus, count);
}

LDF_API void ldf_pool_delete(ldf::Pool* pool) { ldf::pool_delete(pool); }
