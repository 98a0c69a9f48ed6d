// Looks at each operation of a simulated history: whether what is deleted may go (I4, I5), and which readers the files have to wait for.
// The rules are told a second time here, from what truly is on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/sim_env.h"
#include "format/log_record.h"

namespace lamina::sim {

class DeletionWatch {
 public:
  explicit DeletionWatch(env::SimWorld& world) : world_(world) {}

  void set_gc_grace_ns(int64_t gc_grace_ns) { gc_grace_ns_ = gc_grace_ns; }
  int64_t gc_grace_ns() const { return gc_grace_ns_; }

  void OnOp(const env::SimOp& op);
  // The first deletion that broke a rule.
  const absl::Status& status() const { return status_; }
  int64_t deletion_count() const { return deletion_count_; }  // of steps' files, tried

  // Whether files wait for what the process has chosen to read last: false where its lease could not be put, or has run out for a while.
  bool IsProtected(const env::SimProcess& process);
  // Who tried to put the record.
  const std::set<const env::SimProcess*>& PublishersOf(uint64_t number) { return publishers_[number]; }
  // After a power cut: what was not durable is not there any more, and its numbers may be taken again.
  void Reboot(bool still_lost);
  // The newest record has gone bad in both copies. Who has not looked at the log since may go on deleting by it.
  void Lose(format::LogRecord record);
  // Records that have been deleted since they no longer count: by name, as files.
  const std::map<std::string, std::string>& old_records() const { return old_records_; }
  // When the attempt was dropped, by the server's clock; nullopt: it is not, as far as the log tells.
  std::optional<int64_t> DroppedNs(const format::AttemptId& attempt);

 private:
  struct Lease {
    int64_t held_ns = 0;  // when its file was last touched for certain
    bool put = true;
    bool lost = false;  // it was untouched for long once
  };
  struct Drop {
    uint64_t number = 0;
    int64_t written_ns = 0;
  };

  void NoteReader(const env::SimOp& op);
  void NotePut(const env::SimOp& op);
  void NoteRecord(const env::SimOp& op);
  absl::Status MayGo(const env::SimOp& op);
  absl::Status MayGoRecord(const env::SimOp& op);
  absl::Status MayGoDropped(const format::AttemptId& attempt);
  bool Holds(const std::string& path);  // a reader's file does, now
  uint64_t NewestNumber();
  const format::LogRecord* Record(uint64_t number);  // null: it is not there, or bad in both copies
  std::optional<Drop> DropOf(const format::AttemptId& attempt);

  env::SimWorld& world_;
  int64_t gc_grace_ns_ = 0;
  absl::Status status_;
  int64_t deletion_count_ = 0;
  std::map<std::string, Lease> leases_;                                              // by path
  std::map<const env::SimProcess*, std::string> reads_under_;                        // its newest lease
  std::map<std::pair<const env::SimProcess*, std::string>, std::string> being_put_;  // by process and task
  std::map<uint64_t, std::set<std::string>> readers_before_;                         // who was there when the record was first put
  std::map<uint64_t, std::set<const env::SimProcess*>> publishers_;
  std::map<uint64_t, format::LogRecord> records_;
  std::map<std::string, std::string> old_records_;
  std::optional<format::LogRecord> lost_;
  std::set<std::pair<const env::SimProcess*, std::string>> aware_;  // tasks that have looked at the log since
};

}  // namespace lamina::sim
