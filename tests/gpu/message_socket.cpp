#include "gpu/message_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace lasp_test {
namespace {

[[noreturn]] void failed(const char *what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

bool send_all(int socket, const char *from, size_t count) {
  while (count > 0) {
    const ssize_t sent = send(socket, from, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return false;
    if (sent < 0) failed("sending to another process");
    from += sent;
    count -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

bool send_message(int socket, const Bytes &message) {
  ByteWriter head;
  head.value(static_cast<uint64_t>(message.size()));
  return send_all(socket, head.bytes.data(), head.bytes.size()) && send_all(socket, message.data(), message.size());
}

bool IncomingMessage::read_some(int socket) {
  char *const to = have_ < kHead ? head_ + have_ : bytes_.data() + (have_ - kHead);
  const size_t wanted = have_ < kHead ? kHead - have_ : kHead + bytes_.size() - have_;
  ssize_t count = -1;
  do count = recv(socket, to, wanted, 0);
  while (count < 0 && errno == EINTR);
  if (count == 0 || (count < 0 && errno == ECONNRESET)) return false;
  if (count < 0) failed("receiving from another process");
  have_ += static_cast<size_t>(count);
  if (have_ == kHead) {
    uint64_t length = 0;
    std::memcpy(&length, head_, sizeof length);
    bytes_.resize(length);
  }
  return true;
}

Bytes IncomingMessage::take() {
  Bytes taken = std::move(bytes_);
  *this = IncomingMessage();
  return taken;
}

bool receive_message(int socket, Bytes &message) {
  IncomingMessage incoming;
  while (!incoming.complete()) {
    if (!incoming.read_some(socket)) return false;
  }
  message = incoming.take();
  return true;
}

}  // namespace lasp_test
