// What a card is and how it is watched: from environment variables EMU_*, changed later by emu_set.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <string>

namespace card {

constexpr std::size_t MB = 1 << 20;

inline double variable(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atof(text) : otherwise;
}

// The kinds of arithmetic whose rates differ on a card; operators.cpp says which one a kernel uses.
enum Rate { DOUBLE, SINGLE, TF32, HALF, EIGHT, RATES };

struct Settings {
  std::size_t capacity = std::size_t(variable("EMU_VRAM_MB", 8192) * MB);
  std::size_t context = std::size_t(variable("EMU_CONTEXT_MB", 0) * MB);  // what a CUDA context takes before anything else
  int capability = int(variable("EMU_SM", 86));
  int multiprocessors = int(variable("EMU_MULTIPROCESSORS", 28));
  bool tells_clocks = variable("EMU_TELLS_CLOCKS", 1) != 0;  // to who asks for the device's properties

  // The virtual clock's rates, per second. Their sources are in tools/card/cards.py and README.md.
  double host_to_device = variable("EMU_H2D_GBPS", 25) * 1e9;
  double device_to_host = variable("EMU_D2H_GBPS", 25) * 1e9;
  double pageable = variable("EMU_PAGEABLE_GBPS", 6) * 1e9;
  double memory = variable("EMU_HBM_GBPS", 360) * 1e9;
  double single = variable("EMU_TFLOPS", 12.7) * 1e12;
  double flops[RATES] = {
      variable("EMU_TFLOPS_DOUBLE", single / 64e12) * 1e12, single,
      variable("EMU_TFLOPS_TF32", single / 1e12) * 1e12,
      variable("EMU_TFLOPS_HALF", 2 * single / 1e12) * 1e12,
      variable("EMU_TFLOPS_EIGHT", 4 * single / 1e12) * 1e12};
  double dispatch = variable("EMU_DISPATCH_US", 5) * 1e-6;  // of the host, for an operator or an asynchronous copy
  double kernel = variable("EMU_KERNEL_US", 2) * 1e-6;      // of the device, for the smallest kernel
  bool waves = variable("EMU_WAVES", 1) != 0;               // products too small to fill the card run below its rate

  bool lazy = variable("EMU_LAZY", 0) != 0;     // copies are done as late as the order of streams permits
  int races = int(variable("EMU_RACE", 0));     // 1: accesses that nothing orders are counted; 2: the first one aborts
  bool poison = variable("EMU_POISON", 1) != 0; // freed memory is filled with NaN
  bool shapes_alone = variable("EMU_SHAPES", 0) != 0;  // products leave out their arithmetic
  double workspace = variable("EMU_WORKSPACE", 0);     // of a convolution, times the bytes of input, weight and result

  bool set(const std::string& key, double value);
};

extern Settings settings;

}  // namespace card
