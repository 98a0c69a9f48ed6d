#include "io/range_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lamina::io {

absl::StatusOr<std::unique_ptr<RangeWriter>> RangeWriter::Create(env::Env& env, IoQueue& queue, const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<env::File> file, env.files().CreateNew(path));
  return std::make_unique<RangeWriter>(env, queue, std::move(file));
}

RangeWriter::RangeWriter(env::Env& env, IoQueue& queue, std::unique_ptr<env::File> file)
    : queue_(queue), file_(std::move(file)), batch_(env) {}

absl::Status RangeWriter::Append(std::span<const std::byte> part) {
  if (finished_) return absl::FailedPreconditionError("append to a file that is finished");
  while (!part.empty()) {
    LAMINA_RETURN_IF_ERROR(batch_.status());
    const auto piece = part.first(std::min(part.size(), static_cast<size_t>(kRequestBytesMax)));
    queue_.Submit(batch_, {.file = file_.get(), .offset = bytes_appended(), .source = piece, .target = {}});
    bytes_appended_.fetch_add(static_cast<int64_t>(piece.size()), std::memory_order_relaxed);
    part = part.subspan(piece.size());
  }
  return batch_.status();
}

absl::Status RangeWriter::Finish() {
  if (!finished_) outcome_ = Settle();
  finished_ = true;
  return outcome_;
}

absl::Status RangeWriter::Settle() {
  LAMINA_RETURN_IF_ERROR(batch_.Wait());
  LAMINA_ASSIGN_OR_RETURN(const int64_t bytes, file_->Size());
  if (bytes != bytes_appended()) {
    return absl::DataLossError(absl::StrCat("file has ", bytes, " bytes after ", bytes_appended(), " were written"));
  }
  return file_->Sync();
}

}  // namespace lamina::io
