#include "tier/file_object.h"

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "env/sync.h"
#include "io/range_writer.h"

namespace lamina::tier {
namespace {

class FileWriter : public ObjectWriter {
 public:
  FileWriter(env::Env& env, io::IoQueue& queue, std::unique_ptr<env::File> file, std::string path, std::string directory)
      : env_(env), path_(std::move(path)), directory_(std::move(directory)), writer_(std::in_place, env, queue, std::move(file)) {}

  absl::Status Append(std::span<const std::byte> part) override {
    LAMINA_RETURN_IF_ERROR(CheckOpen());
    return writer_->Append(part);
  }
  int64_t bytes_appended() const override { return writer_.has_value() ? writer_->bytes_appended() : bytes_; }
  int64_t bytes_written() const override { return writer_.has_value() ? writer_->bytes_written() : bytes_; }

  absl::Status Finish() override {
    LAMINA_RETURN_IF_ERROR(CheckOpen());
    const absl::Status status = writer_->Finish();
    Close();
    return status.ok() ? env_.files().SyncDirectory(directory_) : status;
  }

  absl::Status Abort() override {
    Close();
    const absl::Status status = env_.files().Unlink(path_);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

 private:
  absl::Status CheckOpen() const {
    return writer_.has_value() ? absl::OkStatus() : absl::FailedPreconditionError(absl::StrCat("'", path_, "' is finished or given up"));
  }
  void Close() {
    bytes_ = bytes_written();
    writer_.reset();
  }

  env::Env& env_;
  const std::string path_;
  const std::string directory_;
  int64_t bytes_ = 0;  // once it is closed
  std::optional<io::RangeWriter> writer_;
};

class FileReader : public ObjectReader {
 public:
  FileReader(env::Env& env, std::string path, std::shared_ptr<env::File> file, int64_t bytes)
      : env_(env), path_(std::move(path)), bytes_(bytes), mutex_(env), file_(std::move(file)) {}

  int64_t bytes() const override { return bytes_; }

  absl::Status ReadRange(int64_t offset, std::span<std::byte> target) override {
    if (offset < 0) return absl::InvalidArgumentError(absl::StrCat("'", path_, "': offset ", offset, " is negative"));
    absl::StatusOr<int64_t> count = Present()->ReadAt(offset, target);
    if (base::ErrnoOf(count.status()) == ESTALE) {
      LAMINA_RETURN_IF_ERROR(Reopen());
      count = Present()->ReadAt(offset, target);
    }
    LAMINA_RETURN_IF_ERROR(count.status());
    if (*count == static_cast<int64_t>(target.size())) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("'", path_, "' ends at ", offset + *count, ", expected ", target.size(), " bytes at ", offset));
  }

 private:
  std::shared_ptr<env::File> Present() {
    const env::MutexLock lock(mutex_);
    return file_;
  }
  absl::Status Reopen() {
    LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<env::File> file, env_.files().OpenForRead(path_));
    const env::MutexLock lock(mutex_);
    file_ = std::move(file);
    return absl::OkStatus();
  }

  env::Env& env_;
  const std::string path_;
  const int64_t bytes_;
  env::Mutex mutex_;
  std::shared_ptr<env::File> file_ ABSL_GUARDED_BY(mutex_);  // shared with the reads under way when it is opened anew
};

}  // namespace

std::unique_ptr<ObjectWriter> NewFileWriter(env::Env& env, io::IoQueue& queue, std::unique_ptr<env::File> file, std::string path,
                                            std::string directory) {
  return std::make_unique<FileWriter>(env, queue, std::move(file), std::move(path), std::move(directory));
}

absl::StatusOr<std::unique_ptr<ObjectReader>> OpenFileReader(env::Env& env, std::string path) {
  absl::StatusOr<std::unique_ptr<env::File>> opened = env.files().OpenForRead(path);
  if (base::ErrnoOf(opened.status()) == ESTALE) opened = env.files().OpenForRead(path);
  LAMINA_RETURN_IF_ERROR(opened.status());
  std::shared_ptr<env::File> file = *std::move(opened);
  LAMINA_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
  return std::make_unique<FileReader>(env, std::move(path), std::move(file), bytes);
}

}  // namespace lamina::tier
