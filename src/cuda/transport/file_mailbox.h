// Open files from one rank to another on one machine, over local sockets: a process can use another one's file only
// if the kernel hands it over.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "cuda/transport/peer_memory.h"

namespace lasp {

class FileMailbox {
 public:
  using Name = std::array<uint8_t, 16>;  // drawn at random

  FileMailbox();  // throws Error
  const Name &name() const { return name_; }
  // Puts a file into another rank's mailbox. Throws Error: there is none of that name, as on another machine, or it
  // is full.
  void send(const Name &to, const File &file, int32_t from) const;
  // The next file that has come. None: nothing has.
  struct Received {
    int32_t from;
    File file;
  };
  std::optional<Received> receive() const;

 private:
  Name name_{};
  File socket_;
};

}  // namespace lasp
