#include "device/pinned_window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::device {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kWindowBytesMax = int64_t{1} << 46;
// Pages are faulted in by slices of this size, so that no call holds the address space for long.
constexpr size_t kFaultBytes = 64 * base::kMiB;
constexpr int kMadvPopulateWrite = 23;  // since Linux 5.14; headers of older systems lack the name

void TouchPages(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) *const_cast<volatile std::byte*>(bytes.data() + at) = std::byte{0};
}

// A kernel without the call says EINVAL; one that cannot find the memory says so here rather than by a signal on the first write.
absl::Status FaultIn(std::span<std::byte> memory) {
  for (size_t at = 0; at < memory.size(); at += kFaultBytes) {
    const std::span<std::byte> slice = memory.subspan(at, std::min(kFaultBytes, memory.size() - at));
    int result = 0;
    do {
      result = madvise(slice.data(), slice.size(), kMadvPopulateWrite);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) continue;
    if (errno != EINVAL) return base::ErrnoStatus(errno, "faulting in pages");
    TouchPages(slice);
  }
  return absl::OkStatus();
}

absl::Status NoMemory(int64_t bytes, const absl::Status& cause) {
  return absl::ResourceExhaustedError(
      absl::StrCat("window of ", bytes, " bytes: ", cause.message(), "; set memory=<bytes> to less than the system has free"));
}

}  // namespace

WindowLease::WindowLease(WindowLease&& other) noexcept
    : window_(std::exchange(other.window_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}

WindowLease& WindowLease::operator=(WindowLease&& other) noexcept {
  std::swap(window_, other.window_);
  std::swap(bytes_, other.bytes_);
  // The old range goes back now, not when `other` happens to end.
  WindowLease old(std::move(other));
  return *this;
}

WindowLease::~WindowLease() {
  if (window_ != nullptr) window_->GiveBack(bytes_);
}

// A place in the queue of those who wait, left however Acquire ends. Made and destroyed under the window's mutex.
class PinnedWindow::Turn {
 public:
  explicit Turn(PinnedWindow& window) : window_(window) { window_.turns_.push_back(this); }
  ~Turn() {
    window_.turns_.remove(this);
    window_.changed_.NotifyAll();
  }
  bool First() const { return window_.turns_.front() == this; }

 private:
  PinnedWindow& window_;
};

absl::StatusOr<std::unique_ptr<PinnedWindow>> PinnedWindow::Create(env::Env& env, int64_t bytes) {
  if (bytes <= 0 || bytes > kWindowBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("window of ", bytes, " bytes: expected 1 to ", kWindowBytesMax));
  }
  const size_t mapped_bytes = static_cast<size_t>(base::AlignUp(bytes, std::max<int64_t>(kPageBytes, sysconf(_SC_PAGESIZE))));
  void* const address = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return NoMemory(bytes, base::ErrnoStatus(errno, "mmap"));
  const std::span<std::byte> memory(static_cast<std::byte*>(address), mapped_bytes);
  std::unique_ptr<PinnedWindow> window(new PinnedWindow(env, memory));
  // Huge pages are a wish; a fork that copied pages under a device's or a ring's writes would be a fault.
  madvise(address, mapped_bytes, MADV_HUGEPAGE);
  if (madvise(address, mapped_bytes, MADV_DONTFORK) != 0) return base::ErrnoStatus(errno, "madvise(MADV_DONTFORK)");
  return window;
}

PinnedWindow::~PinnedWindow() { munmap(memory_.data(), memory_.size()); }

int64_t PinnedWindow::leased_bytes() const {
  env::MutexLock lock(mutex_);
  int64_t sum = 0;
  for (const auto& [offset, bytes] : leased_) sum += bytes;
  return sum;
}

int64_t PinnedWindow::waiting_count() const {
  env::MutexLock lock(mutex_);
  return std::ssize(turns_);
}

absl::StatusOr<WindowLease> PinnedWindow::Acquire(int64_t bytes, int64_t deadline_ns) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a lease of ", bytes, " bytes: expected 0 or more"));
  if (bytes > this->bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a snapshot needs ", bytes, " bytes, the window has ", this->bytes(), "; set memory=", bytes, " or more"));
  }
  WindowLease lease;
  if (bytes == 0) return lease;
  const int64_t region_bytes = base::AlignUp(bytes, kPageBytes);
  LAMINA_ASSIGN_OR_RETURN(const int64_t offset, WaitForRoom(region_bytes, deadline_ns));
  lease.window_ = this;
  lease.bytes_ = memory_.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
  LAMINA_RETURN_IF_ERROR(TouchFirst(offset, offset + region_bytes));
  return lease;
}

absl::StatusOr<int64_t> PinnedWindow::WaitForRoom(int64_t bytes, int64_t deadline_ns) {
  env::MutexLock lock(mutex_);
  const Turn turn(*this);
  for (bool in_time = true;;) {
    if (const std::optional<int64_t> offset = turn.First() ? FindRoom(bytes) : std::nullopt; offset.has_value()) {
      leased_.emplace(*offset, bytes);
      return *offset;
    }
    if (!in_time) break;
    in_time = changed_.WaitUntil(mutex_, deadline_ns);
  }
  return absl::DeadlineExceededError(absl::StrCat("a snapshot needs ", bytes, " bytes and found no room by its deadline, as ",
                                                  leased_.size(), " earlier ones still hold the window of ", this->bytes(),
                                                  " bytes; set memory=", this->bytes() + bytes, " or save less often"));
}

absl::Status PinnedWindow::TouchFirst(int64_t begin, int64_t end) {
  {
    env::MutexLock lock(mutex_);
    begin = std::max(begin, touched_bytes_);
    if (begin >= end) return absl::OkStatus();
  }
  // Without the mutex: it takes a while, and all of it is the caller's range, as leases begin at or before what was touched.
  const absl::Status status = FaultIn(memory_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  if (!status.ok()) return NoMemory(bytes(), status);
  env::MutexLock lock(mutex_);
  touched_bytes_ = std::max(touched_bytes_, end);
  return absl::OkStatus();
}

std::optional<int64_t> PinnedWindow::FindRoom(int64_t bytes) const {
  int64_t free_begin = 0;
  for (const auto& [offset, leased_bytes] : leased_) {
    if (offset - free_begin >= bytes) return free_begin;
    free_begin = offset + leased_bytes;
  }
  if (this->bytes() - free_begin >= bytes) return free_begin;
  return std::nullopt;
}

void PinnedWindow::GiveBack(std::span<std::byte> bytes) {
  {
    env::MutexLock lock(mutex_);
    leased_.erase(bytes.data() - memory_.data());
  }
  changed_.NotifyAll();
}

}  // namespace lamina::device
