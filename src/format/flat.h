// What all FlatBuffers payloads need: aligned and verified reading, a budget against shared references, and conversions of common structs.
// For the sources of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "format/common_generated.h"
#include "format/frame.h"
#include "format/paths.h"
#include "format/version.h"

namespace lamina::format {

inline flat::Digest ToFlat(const Digest& digest) { return {digest.low, digest.high}; }
inline Digest FromFlat(const flat::Digest& digest) { return {.low = digest.low(), .high = digest.high()}; }
inline flat::Attempt ToFlat(const AttemptId& id) { return {id.step, id.incarnation, id.attempt, 0}; }
inline AttemptId FromFlat(const flat::Attempt& id) { return {.step = id.step(), .incarnation = id.incarnation(), .attempt = id.attempt()}; }

// A payload with its structure verified. Borrowed where it is aligned as FlatBuffers demands, as in a file that was read whole; else
// copied.
template <typename Root>
class FlatPayload {
 public:
  static absl::StatusOr<FlatPayload> Read(const FrameKind& kind, std::span<const std::byte> payload) {
    FlatPayload flat(payload);
    flatbuffers::Verifier::Options options;
    options.max_depth = 8;
    // A table takes at least an offset that refers to it and one to its own layout.
    options.max_tables = static_cast<flatbuffers::uoffset_t>(payload.size() / 8 + 1);
    flatbuffers::Verifier verifier(flat.data(), payload.size(), options);
    if (!verifier.VerifyBuffer<Root>(nullptr)) return Damaged(kind, "structure of the payload", "broken", "a sound FlatBuffer");
    return flat;
  }
  const Root& root() const { return *flatbuffers::GetRoot<Root>(data()); }

 private:
  explicit FlatPayload(std::span<const std::byte> payload) : borrowed_(payload.data()) {
    if (reinterpret_cast<uintptr_t>(borrowed_) % alignof(uint64_t) == 0 && borrowed_ != nullptr) return;
    borrowed_ = nullptr;
    words_.resize(payload.size() / sizeof(uint64_t) + 1);
    if (!payload.empty()) std::memcpy(words_.data(), payload.data(), payload.size());
  }
  const uint8_t* data() const {
    return borrowed_ != nullptr ? reinterpret_cast<const uint8_t*>(borrowed_) : reinterpret_cast<const uint8_t*>(words_.data());
  }

  const std::byte* borrowed_;
  std::vector<uint64_t> words_;
};

// Memory that a decoder may still take. References may share bytes, so that a small payload can say a lot: what is taken over in all is
// never more than twice the payload and 32 MiB. With as much again for checking it, a decoder stays below 2 × payload + 64 MiB.
class Budget {
 public:
  explicit Budget(size_t payload_bytes) : left_(2 * payload_bytes + kSlackBytes) {}

  // Appends to `target` what a vector of scalars or of structs of its layout holds; false when the budget does not allow it. A missing
  // vector is an empty one.
  template <typename Source, typename T>
  bool Take(const flatbuffers::Vector<Source>* source, std::vector<T>& target) {
    static_assert(sizeof(std::remove_pointer_t<Source>) == sizeof(T) && std::is_trivially_copyable_v<T>);
    if (source == nullptr) return true;
    if (!IsAligned(*source) || !Spend(size_t{source->size()} * sizeof(T))) return false;
    target.resize(source->size());
    if (!target.empty()) std::memcpy(target.data(), source->Data(), target.size() * sizeof(T));
    return true;
  }
  bool Take(const flatbuffers::String* source, std::string& target) {
    if (source == nullptr) return true;
    if (!Spend(CostOf({source->c_str(), source->size()}))) return false;
    target.assign(source->c_str(), source->size());
    return true;
  }
  // Room for the elements of a vector that may be missing; each counts as wide as it is in the file, or kHeldBytes of what is made of a
  // table.
  template <typename Source, typename T>
  bool Reserve(const flatbuffers::Vector<Source>* source, std::vector<T>& target, size_t cost = sizeof(std::remove_pointer_t<Source>)) {
    if (source == nullptr) return true;
    if (!IsAligned(*source) || !Spend(size_t{source->size()} * cost)) return false;
    target.reserve(source->size());
    return true;
  }
  bool Spend(size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  static size_t CostOf(std::string_view text) { return text.size() + 1; }

 private:
  // The verifier looks at the alignment of a vector's length alone.
  template <typename Source>
  static bool IsAligned(const flatbuffers::Vector<Source>& source) {
    return source.size() == 0 || reinterpret_cast<uintptr_t>(source.Data()) % alignof(std::remove_pointer_t<Source>) == 0;
  }

  static constexpr size_t kSlackBytes = size_t{32} << 20;
  size_t left_;
};

inline absl::Status OverBudget(const FrameKind& kind) {
  return Damaged(kind, "content", "more than its payload can hold, or not aligned",
                 "no bytes that are referred to twice, and all in place");
}

// Calls take(element) for each struct of a vector that may be missing.
template <typename T, typename Take>
void ForEachStruct(const flatbuffers::Vector<const T*>* source, const Take& take) {
  if (source == nullptr) return;
  for (size_t i = 0; i < source->size(); ++i) {
    take(*source->Get(static_cast<flatbuffers::uoffset_t>(i)));
  }
}

// Whether a payload of at most `bytes` fits. A FlatBuffer cannot outgrow 2 GiB, so that this has to be known before it is built.
inline bool Fits(uint64_t bytes) { return bytes <= static_cast<uint64_t>(kMetadataBytesMax) - kFrameBytes; }

inline std::string FramedFlat(const FrameKind& kind, const flatbuffers::FlatBufferBuilder& builder) {
  return Framed(kind, {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()});
}

inline flatbuffers::Offset<flatbuffers::String> Text(flatbuffers::FlatBufferBuilder& builder, std::string_view text) {
  return builder.CreateString(text.data(), text.size());
}

}  // namespace lamina::format
