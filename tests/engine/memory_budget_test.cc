#include "engine/memory_budget.h"

#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/units.h"
#include "env/posix_env.h"
#include "testing/scratch_directory.h"

namespace lamina::engine {
namespace {

using base::kMiB;

// Files of a kernel's, as one machine or container shows them.
class Kernel {
 public:
  void Put(const std::string& name, const std::string& text) {
    const std::filesystem::path path = top_.path() + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void PutGroup(const std::string& group, int64_t limit, int64_t used, int64_t inactive_file, int64_t active_file) {
    const std::string directory = "/sys/fs/cgroup" + group;
    Put(directory + "/memory.max", std::to_string(limit) + "\n");
    Put(directory + "/memory.current", std::to_string(used) + "\n");
    Put(directory + "/memory.stat", "anon 1\nfile 2\ninactive_anon 77\ninactive_file " + std::to_string(inactive_file) + "\nactive_file " +
                                        std::to_string(active_file) + "\nunevictable 0\n");
  }
  std::optional<int64_t> FreeBytes() { return FreeMemoryBytes(*env_, top_.path()); }

 private:
  testing::ScratchDirectory top_;
  std::unique_ptr<env::Env> env_ = env::NewPosixEnv();
};

}  // namespace

TEST_CASE("Free memory is what the machine says is available, and nothing is known where nobody tells", "[engine]") {
  Kernel kernel;
  REQUIRE(!kernel.FreeBytes().has_value());
  kernel.Put("/proc/meminfo", "MemTotal:       9000 kB\nMemFree:        1000 kB\nMemAvailable:       4096 kB\n");
  REQUIRE(kernel.FreeBytes() == 4 * kMiB);
  kernel.Put("/sys/fs/cgroup/memory.max", "max\n");
  kernel.Put("/sys/fs/cgroup/memory.current", "8000000\n");
  REQUIRE(kernel.FreeBytes() == 4 * kMiB);
}

TEST_CASE("Files that a control group caches count as free memory", "[engine]") {
  Kernel kernel;
  kernel.Put("/proc/meminfo", "MemAvailable: 1000000000 kB\n");
  SECTION("in version 2") {
    kernel.PutGroup("", 100 * kMiB, 90 * kMiB, 40 * kMiB, 20 * kMiB);
    REQUIRE(kernel.FreeBytes() == 70 * kMiB);
    kernel.PutGroup("", 100 * kMiB, 130 * kMiB, 0, 0);  // the limit was lowered meanwhile
    REQUIRE(kernel.FreeBytes() == 0);
    kernel.PutGroup("", 100 * kMiB, 10 * kMiB, 40 * kMiB, 20 * kMiB);  // the files were read at different moments
    REQUIRE(kernel.FreeBytes() == 100 * kMiB);
  }
  SECTION("in version 1, with those of the groups below") {
    const std::string directory = "/sys/fs/cgroup/memory/";
    kernel.Put(directory + "memory.limit_in_bytes", std::to_string(100 * kMiB) + "\n");
    kernel.Put(directory + "memory.usage_in_bytes", std::to_string(90 * kMiB) + "\n");
    kernel.Put(directory + "memory.stat", "inactive_file 1\nactive_file 2\ntotal_inactive_file " + std::to_string(30 * kMiB) +
                                              "\ntotal_active_file " + std::to_string(5 * kMiB) + "\n");
    REQUIRE(kernel.FreeBytes() == 45 * kMiB);
  }
}

TEST_CASE("The tightest of the control groups around this process counts", "[engine]") {
  Kernel kernel;
  kernel.Put("/proc/meminfo", "MemAvailable: 1000000000 kB\n");
  SECTION("in version 2") {
    kernel.Put("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    kernel.PutGroup("/slurm", 900 * kMiB, 100 * kMiB, 0, 0);
    kernel.PutGroup("/slurm/job_7", 200 * kMiB, 50 * kMiB, 10 * kMiB, 0);
    kernel.PutGroup("/slurm/job_8", 1 * kMiB, 0, 0, 0);  // another job's
    kernel.PutGroup("/slurm/job_7/step_0", 500 * kMiB, 50 * kMiB, 0, 0);
    REQUIRE(kernel.FreeBytes() == 160 * kMiB);
    kernel.PutGroup("/slurm/job_7/step_0", 70 * kMiB, 50 * kMiB, 0, 0);
    REQUIRE(kernel.FreeBytes() == 20 * kMiB);
    kernel.PutGroup("/slurm", 110 * kMiB, 100 * kMiB, 0, 0);
    REQUIRE(kernel.FreeBytes() == 10 * kMiB);
  }
  SECTION("in version 1, beside the groups of other controllers") {
    kernel.Put("/proc/self/cgroup", "3:cpu,cpuacct:/elsewhere\n2:hugetlb,memory:/slurm/job_7\n0::/\n");
    kernel.Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    kernel.Put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n");
    kernel.Put("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", std::to_string(100 * kMiB) + "\n");
    kernel.Put("/sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", std::to_string(40 * kMiB) + "\n");
    REQUIRE(kernel.FreeBytes() == 60 * kMiB);
  }
  SECTION("a group that does not show here, as in a container, leaves the one at the top") {
    kernel.Put("/proc/self/cgroup", GENERATE("0::/docker/4711\n", "0::/../../elsewhere\n", "0::\n", "nonsense"));
    kernel.PutGroup("", 100 * kMiB, 40 * kMiB, 0, 0);
    REQUIRE(kernel.FreeBytes() == 60 * kMiB);
  }
}

}  // namespace lamina::engine
