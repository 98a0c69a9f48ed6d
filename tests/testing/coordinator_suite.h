// What every Coordinator must do. `one` and `two` are two ranks' views of the same empty store.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "coord/coordinator.h"

namespace lamina::testing {

inline void CheckCoordinator(coord::Coordinator& one, coord::Coordinator& two) {
  SECTION("What one sets the other gets, byte for byte") {
    const std::string value("\0\xff a\n", 5);
    REQUIRE(one.Set("job/1/vote", value).ok());
    REQUIRE(two.Get("job/1/vote").value() == value);
    REQUIRE(one.Get("job/1/vote").value() == value);
    REQUIRE(two.Check("job/1/vote").value());
  }
  SECTION("A key that nobody set is not there, and asking does not wait") {
    REQUIRE_FALSE(one.Get("missing")->has_value());
    REQUIRE_FALSE(one.Check("missing").value());
  }
  SECTION("An empty value is a value") {
    REQUIRE(one.Set("empty", "").ok());
    REQUIRE(two.Check("empty").value());
    REQUIRE(two.Get("empty").value() == "");
  }
  SECTION("The last one wins") {
    REQUIRE(one.Set("key", "first, and longer").ok());
    REQUIRE(two.Set("key", "second").ok());
    REQUIRE(one.Get("key").value() == "second");
  }
  SECTION("A key is deleted for all, and once is enough") {
    REQUIRE(one.Set("key", "value").ok());
    REQUIRE(two.Delete("key").ok());
    REQUIRE_FALSE(one.Get("key")->has_value());
    REQUIRE_FALSE(one.Check("key").value());
    REQUIRE(two.Delete("key").ok());
    REQUIRE(one.Set("key", "again").ok());
    REQUIRE(two.Get("key").value() == "again");
  }
  SECTION("Keys are told apart whole") {
    REQUIRE(one.Set("a", "1").ok());
    REQUIRE(one.Set("a/b", "2").ok());
    REQUIRE(two.Get("a").value() == "1");
    REQUIRE(two.Get("a/b").value() == "2");
    REQUIRE(two.Delete("a").ok());
    REQUIRE(one.Get("a/b").value() == "2");
  }
  SECTION("A value of 1 MiB goes") {
    const std::string value(1 << 20, 'x');
    REQUIRE(one.Set("large", value).ok());
    REQUIRE(two.Get("large").value() == value);
  }
}

}  // namespace lamina::testing
