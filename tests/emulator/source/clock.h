// The virtual clock: a host that dispatches, streams that wait, and engines that do one thing at a time.
//
// A kernel takes the longer of its arithmetic and its memory traffic (the roofline of Williams, Waterman and Patterson,
// CACM 52/4, 2009), and never less than the smallest kernel. Nothing on the clock depends on how long the CPU took.
#pragma once
#include <cstddef>
#include <map>

#include "settings.h"

namespace card {

// What a kernel does, as operators.cpp counts it from shapes.
struct Kernel {
  double flops = 0;
  double bytes = 0;
  double tiles = 0;  // blocks of 64 x 64 results of a product, which multiprocessors work on side by side; 0: no product
  int rate = SINGLE;
};

// A piece of hardware that does one thing at a time: the multiprocessors, or a copy engine of one direction.
class Engine {
 public:
  // The end of a piece of work that may begin at `ready`: in the first gap that holds it. Work of another stream that was
  // issued earlier and still waits for something does not hold it up, as on a card. `issued`: nothing new begins before.
  double reserve(double ready, double seconds, double issued);
  double end() const { return busy_.empty() ? last_ : busy_.rbegin()->second; }
  double total = 0;

 private:
  std::map<double, double> busy_;  // start -> end
  double last_ = 0;
};

struct Clock {
  double host = 0;
  Engine compute, to_device, to_host;
  double seconds_of(const Kernel& kernel) const;
  double end() const;
};

extern Clock clock;

}  // namespace card
