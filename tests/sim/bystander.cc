#include "sim/bystander.h"

#include <cerrno>
#include <utility>

#include "base/status.h"
#include "engine/collect.h"
#include "engine/store.h"
#include "testing/direct_queue.h"
#include "testing/job.h"
#include "tier/file_tier.h"

namespace lamina::sim {
namespace {

absl::Status ReadStep(env::Env& env, engine::Store& store, int64_t step, int64_t linger_ns) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<engine::StepReader> reader, store.OpenStep(step));
  env.SleepNs(linger_ns);
  return testing::CheckOpenStep(store, *reader).status();
}

absl::Status ReadAllSteps(env::Env& env, Reading& reading, const Look& look) {
  testing::DirectQueue queue;
  tier::FileTier tier(env, kRoot, queue);
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Store> store, engine::Store::Open(env, tier));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<engine::ListedStep> steps, store->Steps(/*all=*/true));
  for (const engine::ListedStep& step : steps) {
    const absl::Status read = ReadStep(env, *store, step.entry.attempt.step, reading.plan.linger_ns);
    if (reading.process->dead()) return absl::OkStatus();  // its helpers ended in the midst of their work: it has read nothing
    reading.steps.push_back({read, look(*reading.process)});
    if (!read.ok() && !absl::IsNotFound(read)) return read;
  }
  return absl::OkStatus();
}

absl::Status Collect(env::Env& env, Collecting& collecting) {
  const GcPlan& plan = collecting.plan;
  testing::DirectQueue queue;
  tier::FileTier tier(env, kRoot, queue);
  tier::Log log(env, tier);
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, log.Newest());
  LAMINA_ASSIGN_OR_RETURN(const bool held, log.IsHeld());
  collecting.incarnation = held ? newest.incarnation : 0;
  std::vector<int64_t> steps;
  for (const format::StepEntry& step : newest.steps) {
    if (step.state != format::StepState::kDropped) steps.push_back(step.attempt.step);
  }
  engine::Collector collector(env, tier);
  if (plan.kind == GcPlan::Kind::kPin || plan.kind == GcPlan::Kind::kLetGo) {
    for (int64_t i = 0; i < plan.pin_count && !steps.empty(); ++i) {
      LAMINA_RETURN_IF_ERROR(collector.Pin(steps[plan.pick % steps.size()], (plan.kind == GcPlan::Kind::kPin) == (i % 2 == 0)));
    }
    return absl::OkStatus();
  }
  engine::CollectRequest request;
  request.reader_grace_ns = static_cast<int64_t>(plan.gc_grace_s * 1e9);
  request.dry_run = plan.dry_run;
  if (plan.kind == GcPlan::Kind::kRetire) request.policy = {plan.keep, static_cast<int64_t>(plan.abandoned_grace_s * 1e9)};
  if (plan.kind == GcPlan::Kind::kDropStep && !steps.empty()) request.step = steps[plan.pick % steps.size()];
  for (int64_t round = 0; round < plan.rounds; ++round) {
    if (round > 0) env.SleepNs(plan.between_ns);
    LAMINA_RETURN_IF_ERROR(collector.Collect(request).status());
    request.step = std::nullopt;
    request.policy = {};
  }
  return absl::OkStatus();
}

}  // namespace

std::shared_ptr<Reading> StartReader(env::SimWorld& world, const std::string& name, const ReaderPlan& plan, Look look) {
  const auto reading = std::make_shared<Reading>(Reading{.plan = plan, .process = &world.NewProcess(name)});
  if (!plan.may_write) {
    world.AddFault({.what = "touch", .path = "/readers", .process = name, .count = INT64_MAX / 2, .error_number = EACCES});
  }
  world.Start(*reading->process, [reading, look = std::move(look)](env::Env& env) {
    env.SleepNs(reading->plan.delay_ns);
    absl::Status status = ReadAllSteps(env, *reading, look);
    if (status.ok()) status = ReadAllSteps(env, *reading, look);
    reading->status = std::move(status);
  });
  return reading;
}

std::shared_ptr<Collecting> StartGc(env::SimWorld& world, const std::string& name, const GcPlan& plan) {
  const auto collecting = std::make_shared<Collecting>(Collecting{.plan = plan, .process = &world.NewProcess(name)});
  world.Start(*collecting->process, [collecting](env::Env& env) {
    env.SleepNs(collecting->plan.delay_ns);
    absl::Status status = Collect(env, *collecting);
    collecting->status = std::move(status);
  });
  return collecting;
}

}  // namespace lamina::sim
