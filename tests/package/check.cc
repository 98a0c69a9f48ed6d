// What package_test.py asks of an installed Lamina: lamina/torch.h, and roots that C++ and Python exchange.
#include "lamina/torch.h"  // first: it stands alone

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "lamina/engine.h"

namespace {

#define HOLDS(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) return absl::InternalError(std::string("does not hold: ") + #condition); \
  } while (false)

bool Refused(const at::Tensor& tensor, absl::StatusCode code) { return lamina::ViewOf("t", tensor).status().code() == code; }

// Prints each dtype of libtorch with the one that Lamina takes it for.
absl::Status CheckViews() {
  for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number) {
    const auto type = static_cast<at::ScalarType>(number);
    const absl::StatusOr<lamina::DType> dtype = lamina::DTypeOf(type);
    HOLDS(dtype.ok() || dtype.status().code() == absl::StatusCode::kUnimplemented);
    std::printf("dtype %s %s\n", c10::toString(type), dtype.ok() ? std::string(lamina::DTypeName(*dtype)).c_str() : "-");
  }
  const at::Tensor matrix = at::arange(12, at::kFloat).reshape({3, 4}).t();
  const absl::StatusOr<lamina::TensorView> view = lamina::ViewOf("m", matrix);
  HOLDS(view.ok() && view->name == "m" && view->dtype == lamina::DType::kFloat32);
  HOLDS((view->global_shape == std::vector<int64_t>{4, 3} && view->boxes.size() == 1));
  HOLDS((view->boxes[0].strides == std::vector<int64_t>{1, 4} && view->boxes[0].data == matrix.data_ptr()));
  HOLDS((view->boxes[0].box == lamina::Box{{0, 0}, {4, 3}}));
  HOLDS(lamina::ViewOf("empty", at::zeros({0, 3})).ok());
  HOLDS(lamina::ViewOf("scalar", at::zeros({}))->global_shape.empty());

  using Code = absl::StatusCode;
  HOLDS(Refused(at::Tensor(), Code::kInvalidArgument));
  HOLDS(Refused(at::eye(2).to_sparse(), Code::kUnimplemented));
  HOLDS(Refused(at::quantize_per_tensor(at::ones({2}), 0.5, 0, at::kQInt8), Code::kUnimplemented));
  HOLDS(Refused(at::empty({2}, at::TensorOptions().device(at::kMeta)), Code::kUnimplemented));
  HOLDS(Refused(at::ones({2}, at::kComplexFloat).conj(), Code::kInvalidArgument));
  const lamina::TensorPart small{{{0, 0}, {2, 3}}, at::zeros({2, 2})};
  HOLDS(lamina::ViewOfParts("t", {4, 3}, {&small, 1}).status().code() == Code::kInvalidArgument);
  HOLDS(lamina::ViewOfParts("t", {4, 3}, {}).status().code() == Code::kInvalidArgument);

  const at::Tensor written = at::zeros({2});
  const auto version = written._version();
  lamina::WasWritten(written);
  HOLDS(written._version() == version + 1);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<lamina::Engine>> Open(const std::string& root) {
  lamina::Options options;
  options.root = root;
  if (const absl::Status status = options.FromEnvironment(); !status.ok()) return status;
  return lamina::Engine::Open(options);
}

// What package_test.py expects: a matrix in two parts, one of them transposed in memory, under two names; a part of a list; a bfloat16.
absl::Status Save(const std::string& root) {
  const at::Tensor whole = at::arange(12, at::kFloat).reshape({4, 3});
  const std::vector<lamina::TensorPart> parts = {{{{0, 0}, {1, 3}}, whole.slice(0, 0, 1)},
                                                 {{{1, 0}, {3, 3}}, whole.slice(0, 1, 4).t().contiguous().t()}};
  std::vector<lamina::TensorView> views = {*lamina::ViewOfParts("matrix", {4, 3}, parts), *lamina::ViewOfParts("tied", {4, 3}, parts)};
  views[1].alias_of = "matrix";
  const at::Tensor flags = at::tensor({1, 0, 1}).to(at::kBool);
  const at::Tensor bias = at::tensor({1.5, -2.0}).to(at::kBFloat16);
  views.push_back(*lamina::ViewOf("layers[0].flags", flags));
  views.push_back(*lamina::ViewOf("layers[1].bias", bias));
  const std::vector<lamina::BlobView> blobs = {{"trainer", "any bytes"}};
  const auto engine = Open(root);
  if (!engine.ok()) return engine.status();
  const auto handle = (*engine)->Save({3, views, blobs, {{"dp", 1}}});
  if (!handle.ok()) return handle.status();
  if (const absl::Status status = (*handle)->Wait(-1).status(); !status.ok()) return status;
  return (*engine)->Close(-1);
}

// What package_test.py has saved with lamina.Checkpointer: "w" under two names, and plain values, which are bytes here.
absl::Status Restore(const std::string& root) {
  const auto engine = Open(root);
  if (!engine.ok()) return engine.status();
  const at::Tensor w = at::zeros({2, 3});
  const at::Tensor n = at::zeros({}, at::kLong);
  const std::vector<lamina::TensorView> few = {*lamina::ViewOf("w", w)};
  const absl::Status misfit = (*engine)->Restore(few).status();
  HOLDS(misfit.code() == absl::StatusCode::kInvalidArgument);
  HOLDS(std::string(misfit.message()).find("unexpected in the checkpoint: 'more.n'") != std::string::npos);
  const std::vector<lamina::TensorView> targets = {*lamina::ViewOf("w", w), *lamina::ViewOf("more.n", n)};
  const auto info = (*engine)->Restore(targets);
  if (!info.ok()) return info.status();
  HOLDS(info->step == 5 && info->next_step == 6);
  HOLDS(at::equal(w, at::arange(6, at::kFloat).reshape({2, 3})) && n.item<int64_t>() == 7);
  std::map<std::string, std::string> blobs;
  for (const lamina::StoredBlob& blob : info->blobs) blobs[blob.name] = blob.bytes;
  HOLDS(blobs.count("tree") == 1 && blobs.count("place") == 1 && blobs["tree"].find("\"hello\"") != std::string::npos);
  return (*engine)->Close(-1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  absl::Status status = absl::InvalidArgumentError("usage: check views | save ROOT | restore ROOT");
  if (what == "views" && argc == 2) status = CheckViews();
  if (what == "save" && argc == 3) status = Save(argv[2]);
  if (what == "restore" && argc == 3) status = Restore(argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "check: %s\n", status.ToString().c_str());
  return 1;
}
