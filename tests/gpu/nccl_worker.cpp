#include "gpu/nccl_worker.h"

#include <cstdlib>
#include <iostream>

#include "gpu/message_socket.h"
#include "gpu/nccl_messages.h"
#include "support/device.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

void choose_transports(int32_t host) {
  setenv("NCCL_HOSTID", ("lasp-test-host-" + std::to_string(host)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MNNVL_ENABLE", "0", 0);
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  setenv("NCCL_DEBUG", "WARN", 0);  // what NCCL says of its errors is more than their names
}

// Takes the rank's GPU, before NCCL is looked for: it reads the environment then.
Hello introduce(int32_t rank) {
  Hello hello;
  hello.why_unusable = gpu::why_unusable();
  if (!hello.why_unusable.empty()) return hello;
  hello.gpus = gpu::device_count();
  choose_transports(rank / hello.gpus);
  hello.why_unusable = gpu::why_no_nccl();
  if (!hello.why_unusable.empty()) return hello;
  gpu::use_device(rank % hello.gpus);
  hello.machine = std::to_string(hello.gpus) + " x " + gpu::device_name(0) + ", NCCL " + gpu::nccl_version();
  if (rank == 0) hello.id = gpu::make_nccl_id();
  return hello;
}

RankResult run(const Case &c, const CaseData &data, const gpu::NcclRank &nccl, const RunOptions &options) {
  RankResult result;
  lasp_comm *comm = nullptr;
  if (lasp_comm_create_nccl(nccl.get(), nullptr, &comm) != LASP_OK) {
    result.complaints = std::string("lasp_comm_create_nccl: ") + lasp_last_error() + "\n";
    return result;
  }
  result = run_rank(c, data, comm, options);
  if (lasp_comm_destroy(comm) != LASP_OK)
    result.complaints += std::string("lasp_comm_destroy: ") + lasp_last_error() + "\n";
  return result;
}

RankResult run(const Task &task, const gpu::NcclRank &nccl) {
  if (!task.stored) {
    const Case &c = case_named(task.name);
    return run(c, cached_data(c), nccl, task.options);
  }
  for (const Vector &vector : all_vectors()) {
    if (vector.problem.name == task.name) return run(vector.problem, vector.data, nccl, task.options);
  }
  throw std::runtime_error("no vector named " + task.name);
}

void serve(int socket, int32_t rank, int32_t nranks) {
  const Hello hello = introduce(rank);
  Bytes message;
  if (!send_message(socket, bytes_of(hello)) || !receive_message(socket, message)) return;
  gpu::NcclId id{};
  ByteReader(message).value(id);
  const gpu::NcclRank nccl(id, rank, nranks);
  bool heard = send_message(socket, {});
  while (heard && receive_message(socket, message)) {
    Task task = from_bytes<Task>(message);
    task.options.device_index = rank % hello.gpus;
    heard = send_message(socket, bytes_of(run(task, nccl)));
  }
}

}  // namespace

int nccl_worker(int socket, int32_t rank, int32_t nranks) {
  setenv("LASP_TEST_DEVICE", "cuda", 1);
  try {
    serve(socket, rank, nranks);
    return 0;
  } catch (const std::exception &error) {
    std::cerr << "rank " << rank << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace lasp_test
