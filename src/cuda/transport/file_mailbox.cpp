#include "cuda/transport/file_mailbox.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/status.h"

namespace lasp {
namespace {

Error failed(const char *what) { return fail(LASP_ERROR_TRANSPORT, "%s: %s", what, std::strerror(errno)); }

// A name that no file in a folder has: the kernel forgets it with the socket.
struct Address {
  sockaddr_un data{};
  socklen_t bytes = 0;

  explicit Address(const FileMailbox::Name &name) {
    std::string text = "lasp-";
    for (const uint8_t byte : name) text += "0123456789abcdef"[byte >> 4], text += "0123456789abcdef"[byte & 15];
    data.sun_family = AF_UNIX;
    std::copy(text.begin(), text.end(), data.sun_path + 1);  // behind a zero
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&data); }
};

// A message of one number and one file.
struct Letter {
  int32_t number = -1;
  iovec text{&number, sizeof number};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr head{};

  Letter() {
    head.msg_iov = &text, head.msg_iovlen = 1;
    head.msg_control = control, head.msg_controllen = sizeof control;
  }
  Letter(const Letter &) = delete;
  Letter &operator=(const Letter &) = delete;
};

}  // namespace

FileMailbox::FileMailbox() : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!socket_.is_open()) throw failed("socket");
  if (getrandom(name_.data(), name_.size(), 0) != static_cast<ssize_t>(name_.size())) throw failed("getrandom");
  const Address own(name_);
  if (bind(socket_.get(), own.get(), own.bytes) != 0) throw failed("bind");
}

void FileMailbox::send(const Name &to, const File &file, int32_t from) const {
  const Address peer(to);
  Letter letter;
  letter.number = from;
  letter.head.msg_name = const_cast<sockaddr *>(peer.get()), letter.head.msg_namelen = peer.bytes;
  cmsghdr *const control = CMSG_FIRSTHDR(&letter.head);
  control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS, control->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.get();
  std::memcpy(CMSG_DATA(control), &number, sizeof number);
  if (sendmsg(socket_.get(), &letter.head, MSG_NOSIGNAL) < 0) throw failed("sendmsg");
}

std::optional<FileMailbox::Received> FileMailbox::receive() const {
  Letter letter;
  if (recvmsg(socket_.get(), &letter.head, MSG_CMSG_CLOEXEC) < 0) return std::nullopt;
  Received received{letter.number, File()};
  const cmsghdr *const control = CMSG_FIRSTHDR(&letter.head);
  if (control != nullptr && control->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(control), sizeof number);
    received.file = File(number);
  }
  return received;
}

}  // namespace lasp
