// One object of a FileTier while it is written or read.
#pragma once

#include <memory>
#include <string>

#include "env/env.h"
#include "tier/tier.h"

namespace lamina::io {
class IoQueue;
}

namespace lamina::tier {

// `directory` holds `path`, a new file.
std::unique_ptr<ObjectWriter> NewFileWriter(env::Env& env, io::IoQueue& queue, std::unique_ptr<env::File> file, std::string path,
                                            std::string directory);
// Opens `path`; a handle that the server has forgotten (ESTALE) is opened anew, once in each call.
absl::StatusOr<std::unique_ptr<ObjectReader>> OpenFileReader(env::Env& env, std::string path);

}  // namespace lamina::tier
