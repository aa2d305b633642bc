// A process that is one rank of an NCCL group.
#pragma once

#include <cstdint>

namespace lasp_test {

// Does what nccl_messages.h says until the socket is closed; the process's exit status.
//
// Ranks share the GPUs there are: rank r has GPU r mod `gpus`. NCCL refuses a group with the same GPU of the same
// host twice, so every `gpus` ranks say that they are a host of their own (NCCL_HOSTID). Between such hosts NCCL
// takes the network, here sockets over the loopback, as between real ones; within one, what it takes between GPUs.
int nccl_worker(int socket, int32_t rank, int32_t nranks);

}  // namespace lasp_test
