// Compares the instruction sets of this processor with the portable one, bit by bit, on random and extreme numbers.
// A standalone program, since Python does not run under the emulator and the sanitizers.
//
//   check [instruction set...]     checks the named sets, which must be supported, or all that the processor supports
//
// Prints a line for each; exits with 0 if all agree.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <new>
#include <string>
#include <vector>

#include "kernels.h"

extern "C" const ldf::Kernels* ldf_kernels(const char* name);
extern "C" const char* ldf_instruction_set(int n);

namespace {

using namespace ldf;

// Memory that starts at a multiple of 64 bytes and ends with its last item, so that a sanitizer sees access beyond it.
template <class T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t ALIGNMENT{64};

  Aligned() = default;
  template <class U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(operator new(count * sizeof(T), ALIGNMENT)); }
  void deallocate(T* items, size_t) { operator delete(items, ALIGNMENT); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};

template <class T>
using Array = std::vector<T, Aligned<T>>;

class Random {
 public:
  uint32_t bits() {  // xorshift
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 16);
  }

  int32_t from(int32_t first, int32_t last) {
    return first + static_cast<int32_t>(bits() % static_cast<uint32_t>(last - first + 1));
  }

  float plain() { return static_cast<float>(from(-1000000, 1000000)) * 4e-6f; }

  // Mostly a plain number; sometimes zero, tiny, huge, infinite or NaN.
  float any() {
    static const float ENDS[] = {0.0f, -0.0f, 1e-40f, 1e-20f, -3e38f, 1e30f, INFINITY, -INFINITY, NAN};
    return bits() % 200 ? plain() : ENDS[bits() % 9];
  }

  // A float16: small ones, or anything finite.
  uint16_t half(bool any_exponent) {
    const uint32_t exponent = any_exponent ? bits() % 31 : 8 + bits() % 8;
    return static_cast<uint16_t>((bits() & 0x83ffu) | exponent << 10);
  }

 private:
  uint64_t state_ = 88172645463325252u;
};

template <class T>
bool same(T a, T b) {
  return a == b;
}

// Any two NaNs are equal.
bool same(float a, float b) { return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b)); }

// Describes the first difference of two arrays; empty if they are equal.
template <class T>
std::string difference(const char* what, const Array<T>& tested, const Array<T>& expected) {
  for (size_t i = 0; i < expected.size(); i++) {
    if (same(tested[i], expected[i])) continue;
    char text[120];
    snprintf(text, sizeof(text), "%s: item %zu is %.9g instead of %.9g", what, i, static_cast<double>(tested[i]),
             static_cast<double>(expected[i]));
    return text;
  }
  return "";
}

template <class T>
Array<T> array(int64_t size) {
  return Array<T>(static_cast<size_t>(size));
}

template <class Make>
Array<float> floats(int64_t size, Make make) {
  auto all = array<float>(size);
  for (float& x : all) x = make();
  return all;
}

struct Quantized {
  Array<int8_t> codes;
  Array<float> scales;
  Array<int32_t> sums;
  Array<float> totals;

  Quantized(int32_t rows, int32_t k)
      : codes(array<int8_t>(rows * k)),
        scales(array<float>(rows * k / GROUP)),
        sums(array<int32_t>(rows * k / 16)),
        totals(array<float>(rows * k / GROUP)) {}

  Rows rows() { return {codes.data(), scales.data(), sums.data(), totals.data()}; }

  std::string compare(const Quantized& expected) const {
    const std::string in_codes = difference("codes", codes, expected.codes);
    const std::string in_scales = difference("scales", scales, expected.scales);
    const std::string in_sums = difference("sums", sums, expected.sums);
    if (!in_codes.empty() || !in_scales.empty() || !in_sums.empty()) return in_codes + in_scales + in_sums;
    return difference("totals", totals, expected.totals);
  }
};

// Random rows of codes and scales; some rows have only extreme codes, some scales are NaN.
Quantized random_rows(Random& random, int32_t rows, int32_t k) {
  Quantized x(rows, k);
  for (int32_t row = 0; row < rows; row++) {
    const bool largest = random.bits() % 4 == 0;
    for (int32_t i = 0; i < k; i++) {
      const int32_t code = largest ? (random.bits() % 2 ? 127 : -127) : random.from(-127, 127);
      x.codes[static_cast<size_t>(row * k + i)] = static_cast<int8_t>(code);
      x.sums[static_cast<size_t>((row * k + i) / 16)] += code;
    }
  }
  for (float& scale : x.scales) scale = random.bits() % 2000 ? fabsf(random.plain()) : NAN;
  for (size_t i = 0; i < x.scales.size(); i++) {
    x.totals[i] = static_cast<float>(x.sums[2 * i] + x.sums[2 * i + 1]) * x.scales[i];
  }
  return x;
}

// Sizes of a weight type: bytes of codes and of scales per group of a panel, supers per eight groups.
struct KindLayout {
  const char* name;
  int32_t kind, codes, scales, supers;
  bool halves;     // scales are float16
  bool by_super;   // k is a multiple of SUPER
  uint32_t codes_end = 255;
};

const KindLayout LAYOUTS[] = {
    {"Q8_0", Q8_0, 512, 32, 0, true, false},       {"Q4_0", Q4_0, 256, 32, 0, true, false},
    {"Q4_1", Q4_1, 256, 32, 128, true, false},     {"Q5_0", Q5_0, 320, 32, 0, true, false},
    {"Q5_1", Q5_1, 320, 32, 128, true, false},     {"IQ4_NL", IQ4_NL, 256, 32, 0, true, false},
    {"MXFP4", MXFP4, 256, 16, 0, false, false},    {"Q2_K", Q2_K, 128, 32, 32, false, true},
    {"Q3_K", Q3_K, 192, 32, 16, false, true},      {"Q4_K", Q4_K, 256, 32, 32, false, true},
    {"Q5_K", Q5_K, 320, 32, 32, false, true},      {"Q6_K", Q6_K, 512, 32, 16, false, true, 63},
    {"IQ4_XS", IQ4_XS, 256, 16, 16, false, true},
};

struct Weights {
  Array<uint8_t> codes, scales;
  Array<uint16_t> supers;
  Matrix matrix;

  Weights(Random& random, const KindLayout& layout, int32_t n, int32_t k) {
    const int64_t panels = (n + PANEL - 1) / PANEL, groups = panels * (k / GROUP);
    const bool any_exponent = random.bits() % 2, largest = random.bits() % 4 == 0;
    codes = array<uint8_t>(groups * layout.codes);
    for (uint8_t& code : codes) code = static_cast<uint8_t>((largest ? 255 : random.bits()) & layout.codes_end);
    scales = array<uint8_t>(groups * layout.scales);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random.bits() % 255);  // 255 is no exponent
    for (size_t i = 0; layout.halves && i < scales.size(); i += 2) {
      const uint16_t half = random.half(any_exponent);
      memcpy(&scales[i], &half, 2);
    }
    supers = array<uint16_t>(groups * layout.supers / (SUPER / GROUP));
    for (uint16_t& super : supers) super = random.half(any_exponent);
    matrix = {layout.kind, n, k, codes.data(), scales.data(), supers.empty() ? nullptr : supers.data()};
  }
};

std::string check_product(const Kernels& tested, const Kernels& expected) {
  static const int32_t SHAPES[][2] = {{40, 32}, {56, 288}, {40, 256}, {24, 1024}};  // n, k
  constexpr int32_t MARGIN = 3;                                                     // columns that must not be written
  Random random;
  for (const KindLayout& layout : LAYOUTS) {
    for (const auto& [n, k] : SHAPES) {
      if (k % SUPER && layout.by_super) continue;
      const Weights weights(random, layout, n, k);
      const int32_t panels = (n + PANEL - 1) / PANEL;
      for (int32_t rows = 1; rows <= MAX_ROWS; rows += rows == 33 ? 31 : 1) {
        Quantized x = random_rows(random, rows, k);
        const Rows inputs = x.rows();
        const int32_t first = rows % 2, stride = (panels - first) * PANEL + MARGIN;
        auto out = floats(rows * stride, [] { return 7.5f; }), reference = out;
        tested.product(&weights.matrix, &inputs, rows, first, panels, out.data(), stride);
        expected.product(&weights.matrix, &inputs, rows, first, panels, reference.data(), stride);
        const std::string where = "product " + std::string(layout.name) + " [" + std::to_string(n) + ", " +
                                  std::to_string(k) + "], " + std::to_string(rows) + " rows";
        const std::string mismatch = difference(where.c_str(), out, reference);
        if (!mismatch.empty()) return mismatch;
      }
    }
  }
  return "";
}

std::string check_quantize(const Kernels& tested, const Kernels& expected) {
  Random random;
  for (const int32_t k : {32, 256, 1056}) {
    for (const int32_t rows : {1, 2, 7}) {
      const auto x = floats(rows * k, [&] { return random.any(); });
      Quantized result(rows, k), reference(rows, k);
      Rows result_rows = result.rows(), reference_rows = reference.rows();
      tested.quantize(x.data(), rows, k, &result_rows);
      expected.quantize(x.data(), rows, k, &reference_rows);
      const std::string mismatch = result.compare(reference);
      if (!mismatch.empty()) return "quantize " + mismatch;
    }
  }
  return "";
}

std::string check_norm(const Kernels& tested, const Kernels& expected) {
  Random random;
  for (const int32_t size : {16, 64, 80, 1024, 1024, 4096}) {
    const bool ends = random.bits() % 2;
    const auto x = floats(size, [&] { return ends ? random.any() : random.plain(); });
    const auto weight = floats(size, [&] { return random.plain(); });
    auto out = array<float>(size), reference = out;
    tested.norm(x.data(), weight.data(), 1e-6f, size, out.data());
    expected.norm(x.data(), weight.data(), 1e-6f, size, reference.data());
    const std::string mismatch = difference("norm", out, reference);
    if (!mismatch.empty()) return mismatch;
  }
  return "";
}

std::string check_rotate(const Kernels& tested, const Kernels& expected) {
  Random random;
  for (const int32_t head_dim : {16, 32, 48, 64, 128, 256}) {
    const auto cosines = floats(head_dim / 2, [&] { return random.plain(); });
    const auto sines = floats(head_dim / 2, [&] { return random.plain(); });
    auto x = floats(head_dim, [&] { return random.any(); }), reference = x;
    tested.rotate(x.data(), cosines.data(), sines.data(), head_dim);
    expected.rotate(reference.data(), cosines.data(), sines.data(), head_dim);
    const std::string mismatch = difference("rotate", x, reference);
    if (!mismatch.empty()) return mismatch;
  }
  return "";
}

std::string check_swiglu(const Kernels& tested, const Kernels& expected) {
  Random random;
  for (const int32_t size : {16, 48, 4096}) {
    const auto gate = floats(size, [&] { return 40.0f * random.any(); });
    const auto up = floats(size, [&] { return random.any(); });
    auto out = array<float>(size), reference = out;
    tested.swiglu(gate.data(), up.data(), size, out.data());
    expected.swiglu(gate.data(), up.data(), size, reference.data());
    const std::string mismatch = difference("swiglu", out, reference);
    if (!mismatch.empty()) return mismatch;
  }
  return "";
}

// Memory of a KV cache, in float16 or in codes with scales.
struct StoredCache {
  Array<uint8_t> keys, values;
  Array<float> key_scales, value_scales;

  int32_t value_bits;

  StoredCache(int32_t bits, int32_t capacity, int32_t head_dim)
      : keys(array<uint8_t>(capacity * head_dim * (bits == 16 ? 2 : 1))),
        values(array<uint8_t>(capacity * head_dim * bits / 8)),
        key_scales(array<float>(bits == 16 ? 0 : capacity * head_dim / GROUP)),
        value_scales(array<float>(bits == 16 ? 0 : capacity)),
        value_bits(bits) {}

  Cache cache() {
    return {keys.data(), values.data(), key_scales.empty() ? nullptr : key_scales.data(), value_scales.data(),
            value_bits};
  }

  std::string compare(const StoredCache& expected) const {
    return difference("keys", keys, expected.keys) + difference("values", values, expected.values) +
           difference("key scales", key_scales, expected.key_scales) +
           difference("value scales", value_scales, expected.value_scales);
  }
};

// Compares attention of rows that see the same keys, one more key each, or a window of them.
std::string check_attend_to(int32_t bits, int32_t head_dim, const Kernels& tested, const Kernels& expected) {
  constexpr int32_t CAPACITY = 208, MARGIN = 5;
  Random random;
  StoredCache result(bits, CAPACITY, head_dim), reference(bits, CAPACITY, head_dim);
  const Cache result_cache = result.cache(), reference_cache = reference.cache();
  for (int32_t position = 0; position < CAPACITY; position++) {
    const auto key = floats(head_dim, [&] { return random.plain(); });
    const auto value = floats(head_dim, [&] { return random.plain(); });
    tested.put_key(&result_cache, head_dim, position, key.data());
    tested.put_value(&result_cache, head_dim, position, value.data());
    expected.put_key(&reference_cache, head_dim, position, key.data());
    expected.put_value(&reference_cache, head_dim, position, value.data());
  }
  const std::string mismatch = result.compare(reference);
  if (!mismatch.empty()) return mismatch;
  for (const int32_t rows : {1, 2, 5, 16, 33, 70}) {
    const int32_t stride = head_dim + MARGIN, context = random.from(1, CAPACITY - rows);
    const auto q = floats(rows * stride, [&] { return random.plain(); });
    for (const int32_t step : {0, 1}) {
      for (const int32_t window : {0, 37}) {
        Array<int32_t> begin = array<int32_t>(rows), end = begin;
        for (int32_t row = 0; row < rows; row++) {
          const auto at = static_cast<size_t>(row);
          end[at] = context + step * row;
          begin[at] = window && end[at] > window ? end[at] - window : 0;
        }
        auto out = floats(rows * stride, [] { return 7.5f; }), same_out = out;
        tested.attend(&result_cache, q.data(), stride, begin.data(), end.data(), rows, head_dim, 0.3f, out.data(),
                      stride);
        expected.attend(&reference_cache, q.data(), stride, begin.data(), end.data(), rows, head_dim, 0.3f,
                        same_out.data(), stride);
        const std::string differs = difference("attend", out, same_out);
        if (!differs.empty()) return differs + ", " + std::to_string(rows) + " rows, " + std::to_string(bits) + " bits";
      }
    }
  }
  return "";
}

std::string check_attend(const Kernels& tested, const Kernels& expected) {
  for (const int32_t head_dim : {16, 64, 128}) {
    const std::string mismatch = check_attend_to(16, head_dim, tested, expected);
    if (!mismatch.empty()) return mismatch;
  }
  for (const int32_t head_dim : {32, 64, 96, 256}) {
    for (const int32_t bits : {8, 4}) {
      const std::string mismatch = check_attend_to(bits, head_dim, tested, expected);
      if (!mismatch.empty()) return mismatch;
    }
  }
  return "";
}

std::string check(const Kernels& tested, const Kernels& expected) {
  for (const auto part : {check_quantize, check_norm, check_rotate, check_swiglu, check_product, check_attend}) {
    const std::string mismatch = part(tested, expected);
    if (!mismatch.empty()) return mismatch;
  }
  return "";
}

// Prints and returns whether an instruction set agrees with the portable one.
bool report(const char* name) {
  const Kernels* tested = ldf_kernels(name);
  const std::string mismatch = tested ? check(*tested, *ldf_kernels("portable")) : "not supported by this processor";
  printf("%s: %s\n", name, mismatch.empty() ? "ok" : mismatch.c_str());
  fflush(stdout);
  return mismatch.empty();
}

}  // namespace

int main(int count, char** names) {
  bool all = true;
  for (int i = 1; i < count; i++) all &= report(names[i]);
  const char* name = nullptr;
  for (int i = 0; count == 1 && (name = ldf_instruction_set(i)); i++) all &= report(name);
  return all ? 0 : 1;
}
