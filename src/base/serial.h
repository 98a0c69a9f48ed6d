// A compact binary encoding for messages between ranks: little-endian numbers and length-prefixed texts. The reader trusts nothing: once a
// read has failed every later one fails too, so that one ok() at the end decides.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/bytes.h"

namespace lamina::base {

class Writer {
 public:
  template <typename T>
  requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>) void Put(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>, "padding would be sent");
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void PutText(std::string_view text) {
    Put<uint64_t>(text.size());
    out_.append(text);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  explicit Reader(std::string_view text) : bytes_(AsBytes(text)) {}

  template <typename T>
  requires(std::is_trivially_copyable_v<T>) T Get() {
    T value{};
    if (!ok_ || bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::string GetText() {
    const uint64_t size = Get<uint64_t>();
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    std::string text(AsText(bytes_.first(size)));
    bytes_ = bytes_.subspan(size);
    return text;
  }
  // A count of items of at least `item_bytes` each; 0 and not ok when the rest cannot hold so many.
  uint64_t GetCount(uint64_t item_bytes) {
    const uint64_t count = Get<uint64_t>();
    if (!ok_ || count > bytes_.size() / item_bytes) {
      ok_ = false;
      return 0;
    }
    return count;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && bytes_.empty(); }  // all read, nothing left over

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace lamina::base
