#include "engine/inert_in_child.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lamina::engine {
namespace {

// The process that opened the engine.
class Home {
 public:
  explicit Home(std::shared_ptr<env::Env> env) : env_(std::move(env)), pid_(env_->ProcessId()) {}

  bool IsHere() const { return env_->ProcessId() == pid_; }
  absl::Status Check() const {
    if (IsHere()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("this checkpointer belongs to process ", pid_, ", the parent of this forked process ",
                                                      env_->ProcessId(), ", and does nothing here"));
  }

 private:
  std::shared_ptr<env::Env> env_;
  int64_t pid_;
};

class HomeHandle final : public SaveHandle {
 public:
  HomeHandle(Home home, std::shared_ptr<SaveHandle> handle) : home_(std::move(home)), handle_(std::move(handle)) {}
  ~HomeHandle() override {
    if (!home_.IsHere()) static_cast<void>(new std::shared_ptr<SaveHandle>(std::move(handle_)));
  }

  absl::StatusOr<SaveReport> Wait(double timeout_s) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return handle_->Wait(timeout_s);
  }
  bool Done() override { return !home_.IsHere() || handle_->Done(); }  // Wait does not wait there

 private:
  const Home home_;
  std::shared_ptr<SaveHandle> handle_;
};

class HomeSession final : public RestoreSession {
 public:
  HomeSession(Home home, std::unique_ptr<RestoreSession> session) : home_(std::move(home)), session_(std::move(session)) {}
  ~HomeSession() override {
    if (!home_.IsHere()) static_cast<void>(session_.release());
  }

  bool found() const override { return session_->found(); }
  int64_t step() const override { return session_->step(); }
  int32_t rank_count() const override { return session_->rank_count(); }
  const Topology& topology() const override { return session_->topology(); }
  const std::vector<int64_t>& line() const override { return session_->line(); }
  const std::vector<PassedOver>& passed_over() const override { return session_->passed_over(); }
  const std::vector<StoredTensor>& tensors() const override { return session_->tensors(); }
  const std::vector<StoredBlob>& blobs() const override { return session_->blobs(); }

  absl::StatusOr<bool> Holds(std::string_view name) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return session_->Holds(name);
  }
  absl::StatusOr<Progress> Fill(std::span<const TensorView> targets) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return session_->Fill(targets);
  }
  absl::Status End() override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return session_->End();
  }
  absl::Status Fail(const absl::Status& why) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return session_->Fail(why);
  }

 private:
  const Home home_;
  std::unique_ptr<RestoreSession> session_;
};

class HomeEngine final : public Engine {
 public:
  HomeEngine(Home home, std::unique_ptr<Engine> engine) : home_(std::move(home)), engine_(std::move(engine)) {}
  ~HomeEngine() override {
    if (!home_.IsHere()) static_cast<void>(engine_.release());
  }

  absl::StatusOr<std::shared_ptr<SaveHandle>> Save(const SaveRequest& request) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<SaveHandle> handle, engine_->Save(request));
    return std::make_shared<HomeHandle>(home_, std::move(handle));
  }
  absl::StatusOr<std::unique_ptr<RestoreSession>> BeginRestore(std::optional<int64_t> step) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<RestoreSession> session, engine_->BeginRestore(step));
    return std::make_unique<HomeSession>(home_, std::move(session));
  }
  absl::StatusOr<RestoreInfo> Restore(std::span<const TensorView> targets, std::optional<int64_t> step) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return engine_->Restore(targets, step);
  }
  absl::Status Fence() override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return engine_->Fence();
  }
  absl::Status Close(double grace_s) override {
    LAMINA_RETURN_IF_ERROR(home_.Check());
    return engine_->Close(grace_s);
  }
  void Abandon() override {
    if (home_.IsHere()) engine_->Abandon();
  }

 private:
  const Home home_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

std::unique_ptr<Engine> InertInChild(std::shared_ptr<env::Env> env, std::unique_ptr<Engine> engine) {
  return std::make_unique<HomeEngine>(Home(std::move(env)), std::move(engine));
}

}  // namespace lamina::engine
