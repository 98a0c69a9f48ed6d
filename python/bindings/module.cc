// lamina._core: converts, releases the interpreter's lock, calls the core. python/lamina/_core.pyi is its surface.
#include <pybind11/pybind11.h>

#include "engine.h"
#include "store_coordinator.h"
#include "tensor.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The core of Lamina. Not for direct use: its surface changes without notice.";
  lamina::bindings::BindShard(module);
  lamina::bindings::BindStoreQueue(module);
  lamina::bindings::BindTesting(module);
  lamina::bindings::BindEngine(module);
  lamina::bindings::BindStore(module);
  lamina::bindings::BindPreflight(module);
  lamina::bindings::BindExit(module);
}
