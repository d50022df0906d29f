#include "races.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "settings.h"

namespace card {

std::size_t races_found = 0;
std::vector<std::string> race_texts;

namespace {

constexpr std::size_t MOST_TEXTS = 200;

struct Access {
  int stream = 0;  // 0: none yet
  std::uint64_t at = 0;
  std::string what;
  bool before(const Order& order) const {
    return stream == 0 || (order.size() > std::size_t(stream) && order[stream] >= at);
  }
};

struct Range {
  std::uintptr_t end;
  Access write;
  std::map<int, Access> reads;  // by stream, since that write
};

std::map<std::uintptr_t, Range> shadow;  // by start; ranges do not overlap

void split(std::uintptr_t at) {
  auto it = shadow.upper_bound(at);
  if (it == shadow.begin()) return;
  --it;
  if (it->first < at && at < it->second.end) {
    Range right = it->second;
    it->second.end = at;
    shadow[at] = right;
  }
}

void found(const char* kind, const Access& earlier, Stream* stream, const std::string& what, std::uintptr_t at) {
  races_found++;
  char text[600];
  std::snprintf(text, sizeof text, "%s: '%s' on stream %d touches %#lx while '%s' on stream %d was not waited for", kind,
                what.c_str(), stream->id, (unsigned long)at, earlier.what.c_str(), earlier.stream);
  if (race_texts.size() < MOST_TEXTS) race_texts.push_back(text);
  if (settings.races > 1) {
    std::fprintf(stderr, "race: %s\n", text);
    std::abort();
  }
}

// The first thing in a range that is not over before this access.
bool check(const Range& range, Stream* stream, bool writes, const std::string& what, std::uintptr_t at) {
  if (!range.write.before(stream->order)) {
    found(writes ? "write after write" : "read after write", range.write, stream, what, at);
    return true;
  }
  if (!writes) return false;
  for (const auto& [id, read] : range.reads)
    if (!read.before(stream->order)) {
      found("write after read", read, stream, what, at);
      return true;
    }
  return false;
}

template <class Visit>
void over(std::uintptr_t start, std::uintptr_t end, Visit visit) {
  split(start);
  split(end);
  for (std::uintptr_t at = start; at < end;) {
    auto it = shadow.lower_bound(at);
    std::uintptr_t known = it == shadow.end() ? end : std::min(end, it->first);
    if (known > at) it = shadow.emplace(at, Range{known, {}, {}}).first;
    visit(at, it->second);
    at = it->second.end;
  }
}

void touch(Stream* stream, const void* start, std::size_t size, bool writes, const std::string& what, bool leaves_trace) {
  if (!settings.races || !size) return;
  auto from = reinterpret_cast<std::uintptr_t>(start);
  bool told = false;
  over(from, from + size, [&](std::uintptr_t at, Range& range) {
    told = told || check(range, stream, writes, what, at);
    if (!leaves_trace) return;
    Access now{stream->id, stream->order[stream->id], what};
    if (writes) {
      range.reads.clear();
      range.write = now;
    } else {
      range.reads[stream->id] = now;
    }
  });
}

}  // namespace

void access(Stream* stream, const void* start, std::size_t size, bool writes, const std::string& what) {
  touch(stream, start, size, writes, what, true);
}

void require_quiet(Stream* stream, const void* start, std::size_t size, const std::string& what) {
  touch(stream, start, size, true, what, false);
}

void forget(std::uintptr_t start, std::size_t size) {
  split(start);
  split(start + size);
  shadow.erase(shadow.lower_bound(start), shadow.lower_bound(start + size));
}

void forget_all() { shadow.clear(); }

}  // namespace card
