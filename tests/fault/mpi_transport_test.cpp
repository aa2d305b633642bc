// The MPI transport, driven through its table of functions with no engine above it: run by mpirun with 2 to 8
// processes (4 exercises everything). This program stands in for liblasp: its own lasp_comm_create_custom keeps the
// table, so that the transport can be tested, and broken, alone. Exits with 1 when any check failed on any rank.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_call.h"
#include "mpi_rig.h"
#include "support/sleeper.h"
#include "support/watchdog.h"

namespace {

using namespace mpi_rig;

lasp_status refuse_comm_with = LASP_OK;
int communicators_alive = 0;  // made by the transport and not freed

}  // namespace

extern "C" lasp_status lasp_comm_create_custom(const lasp_transport *table, void *user, lasp_comm **comm) {
  if (refuse_comm_with != LASP_OK) return refuse_comm_with;
  *comm = new lasp_comm{*table, user};
  return LASP_OK;
}

// MPI's profiling interface: these stand in front of the library's, and count.
extern "C" int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made) {
  ++communicators_alive;
  return PMPI_Comm_dup(comm, made);
}
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made) {
  ++communicators_alive;
  return PMPI_Comm_split_type(comm, type, key, info, made);
}
extern "C" int MPI_Comm_free(MPI_Comm *comm) {
  --communicators_alive;
  return PMPI_Comm_free(comm);
}

namespace {

void refuses_bad_arguments() {
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_mpi_comm_create(MPI_COMM_WORLD, nullptr), LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(lasp_mpi_comm_create(MPI_COMM_NULL, &comm), LASP_ERROR_INVALID_ARGUMENT);

  MPI_Comm half, between;
  MPI_Comm_split(MPI_COMM_WORLD, my_rank % 2, my_rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - my_rank % 2, 7, &between);
  EXPECT_EQ(lasp_mpi_comm_create(between, &comm), LASP_ERROR_INVALID_ARGUMENT);
  PMPI_Comm_free(&between);
  PMPI_Comm_free(&half);

  refuse_comm_with = LASP_ERROR_OUT_OF_MEMORY;  // what liblasp refuses is handed on
  EXPECT_EQ(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm), LASP_ERROR_OUT_OF_MEMORY);
  refuse_comm_with = LASP_OK;
  EXPECT_TRUE(comm == nullptr);
}

void describes_the_group() {
  End end;
  EXPECT_EQ(end.table().size, sizeof(lasp_transport));
  EXPECT_EQ(end.rank(), my_rank);
  EXPECT_EQ(end.nranks(), world_size);
  EXPECT_EQ(end.table().local_ranks, world_size);  // mpirun on one machine
  EXPECT_EQ(end.table().memory, LASP_DEVICE_CPU);
  EXPECT_TRUE(end.table().latency_us > 0 && end.table().bandwidth_gbs > 0);
}

void follows_the_ranks_of_the_communicator() {
  MPI_Comm reversed;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -my_rank, &reversed);
  {
    End end(reversed);
    EXPECT_EQ(end.rank(), world_size - 1 - my_rank);
    int sent = end.rank(), received = -1;
    const int next = (end.rank() + 1) % end.nranks(), before = (end.rank() + end.nranks() - 1) % end.nranks();
    void *receive = end.receive(&received, sizeof received, before);
    EXPECT_EQ(end.wait(end.send(&sent, sizeof sent, next), -1), LASP_OK);
    EXPECT_EQ(end.wait(receive, -1), LASP_OK);
    EXPECT_EQ(received, before);
  }
  MPI_Comm_free(&reversed);
  ++communicators_alive;  // `reversed` itself is this test's
}

void keeps_order_and_tags() {
  End end;
  const int next = (my_rank + 1) % world_size, before = (my_rank + world_size - 1) % world_size;
  std::vector<int> sent(40), received(40, -1);
  std::vector<void *> sends, receives;
  for (int i = 0; i < 40; ++i) {
    sent[i] = 1000 * my_rank + i;
    sends.push_back(end.send(&sent[i], sizeof(int), next, i % 2));
  }
  // Tag 1 first: messages of one tag keep their order, tags do not mix.
  for (int tag : {1, 0}) {
    for (int i = tag; i < 40; i += 2) receives.push_back(end.receive(&received[i], sizeof(int), before, tag));
  }
  for (size_t i = receives.size(); i-- > 0;) EXPECT_EQ(end.wait(receives[i]), LASP_OK);
  for (void *request : sends) EXPECT_EQ(end.wait(request), LASP_OK);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(received[i], 1000 * before + i);
}

uint32_t mix(uint32_t value) {
  value ^= value >> 16;
  value *= 0x7feb352du;
  value ^= value >> 15;
  value *= 0x846ca68bu;
  return value ^ (value >> 16);
}

uint32_t seed(int from, int to, uint32_t round) { return mix(from * 7919u + to * 104729u + round); }

// Sizes from 0 to 160 KB: both of MPI's protocols.
void exchanges_all_to_all() {
  End end;
  constexpr uint32_t kMostWords = 40000;
  std::vector<std::vector<uint32_t>> out(world_size, std::vector<uint32_t>(kMostWords)), in = out;
  std::vector<void *> requests;
  for (uint32_t round = 0; round < 200; ++round) {
    requests.clear();
    for (int peer = 0; peer < world_size; ++peer) {
      const uint32_t words = seed(peer, my_rank, round) % (kMostWords + 1);
      for (uint32_t i = 0; i < words; ++i) out[peer][i] = seed(my_rank, peer, round) + i;
      requests.push_back(end.receive(in[peer].data(), 4 * (seed(my_rank, peer, round) % (kMostWords + 1)), peer));
      requests.push_back(end.send(out[peer].data(), 4 * words, peer));
      std::memset(out[peer].data(), 0xff, 4 * words);  // it was staged
    }
    for (size_t left = requests.size(); left > 0; --left) {
      std::swap(requests[mix(round + 977 * my_rank + left) % left], requests[left - 1]);
      EXPECT_EQ(end.wait(requests[left - 1]), LASP_OK);
    }
    for (int peer = 0; peer < world_size; ++peer) {
      uint32_t sum = 0, expected = 0;
      for (uint32_t i = 0; i < seed(my_rank, peer, round) % (kMostWords + 1); ++i) {
        sum += mix(in[peer][i] + i);
        expected += mix(seed(peer, my_rank, round) + 2 * i);
      }
      EXPECT_EQ(sum, expected);
    }
    if (failures) return;
  }
}

void test_advances_a_message() {
  End end;
  std::vector<char> big(1 << 20, static_cast<char>(my_rank + 1)), got(1 << 20);
  const int next = (my_rank + 1) % world_size, before = (my_rank + world_size - 1) % world_size;
  void *receive = end.receive(got.data(), got.size(), before);
  void *send = end.send(big.data(), big.size(), next);
  const auto start = Clock::now();
  bool received = false, sent = false;
  while (!(received && sent) && seconds_since(start) < 60) {
    received = received || end.test(receive);
    sent = sent || end.test(send);
    sched_yield();
  }
  EXPECT_TRUE(received && sent);
  EXPECT_EQ(end.wait(receive, 0), LASP_OK);
  EXPECT_EQ(end.wait(send, 0), LASP_OK);
  EXPECT_EQ(got.front(), before + 1);
  EXPECT_EQ(got.back(), before + 1);
}

// Receiver asks for fewer, then for more bytes than come; everybody is told.
void tells_a_size_mismatch_to_both_sides() {
  for (uint64_t asked : {4, 16}) {
    End end;
    int64_t data[2] = {-1, -1};
    int64_t answer = 0;
    // A small send is done before the receiver has seen it, so the sender learns of it by what it waits for next.
    void *request = my_rank == 0 ? end.send(data, 8, 1) : end.receive(data, my_rank == 1 ? asked : 8, 0);
    void *next = my_rank == 0 ? end.receive(&answer, 8, 1) : nullptr;
    if (next) end.expect_failure(__LINE__, next, kLongMs, LASP_ERROR_TRANSPORT, -1);
    end.expect_failure(__LINE__, request, kLongMs, LASP_ERROR_TRANSPORT, -1);
    EXPECT_EQ(data[0], -1);
    EXPECT_EQ(data[1], -1);
  }
}

void abort_reaches_everybody() {
  for (bool from_another_thread : {false, true}) {
    End end;
    int value = 0;
    MPI_Barrier(MPI_COMM_WORLD);  // all but rank 1 wait from here on
    if (my_rank == 1 && !from_another_thread) {
      end.abort(-1);  // outside any call: told at once, though this rank makes no further call for a while
      sleep_ms(1500);
    }
    lasp_test::Sleeper sleeper;
    std::thread breaker;
    if (my_rank == 1 && from_another_thread) {
      breaker = std::thread([&] {
        EXPECT_TRUE(sleeper.until_asleep());
        end.abort(-1);
      });
    }
    void *request = end.receive(&value, sizeof value, (my_rank + 1) % world_size);
    const auto start = Clock::now();
    sleeper.begin();
    end.expect_failure(__LINE__, request, 30'000, LASP_ERROR_ABORTED, -1);
    sleeper.end();
    if (my_rank != 1) EXPECT_TRUE(seconds_since(start) < 1.2);
    if (breaker.joinable()) breaker.join();
  }
}

// Every rank waits for the one before it, and rank 1 does not come. All name 1, whether all limits pass at once or
// only that of the rank at the end of the chain; and 1 itself is told, when it does come.
void names_the_lost_rank_through_a_chain() {
  for (bool one_limit : {false, true}) {
    End end;
    int value = 0;
    const int before = (my_rank + world_size - 1) % world_size;
    const auto start = Clock::now();
    if (my_rank == 1) sleep_ms(2500);
    void *request = my_rank == 1 ? end.send(&value, sizeof value, 0) : end.receive(&value, sizeof value, before);
    // The end of the chain is rank 0, which waits for the last rank.
    const int64_t limit_ms = one_limit && my_rank != 0 ? kLongMs : 1000;
    end.expect_failure(__LINE__, request, limit_ms, LASP_ERROR_PEER_LOST, 1);
    EXPECT_TRUE(seconds_since(start) >= 0.999);
    if (my_rank != 1) EXPECT_TRUE(seconds_since(start) < 2.4);  // before 1 comes: limit, a quarter of it, slack
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

void names_the_direct_peer_in_a_circle() {
  End end;
  int value = 0;
  void *request = end.receive(&value, sizeof value, (my_rank + 1) % world_size);
  end.expect_failure(__LINE__, request, my_rank == 0 ? 200 : kLongMs, LASP_ERROR_PEER_LOST, 1);
}

// Rank 1 stops dead in the middle of large messages. The others name it, and may free their memory and their ends.
void survives_a_stopped_process() {
  std::vector<int> pids(world_size);
  int pid = getpid();
  MPI_Allgather(&pid, 1, MPI_INT, pids.data(), 1, MPI_INT, MPI_COMM_WORLD);
  constexpr size_t kBytes = 32 << 20;
  {
    End end;
    auto out = std::make_unique<char[]>(kBytes);
    auto in = std::make_unique<char[]>(kBytes);
    std::memset(in.get(), 0x55, kBytes);
    if (my_rank == 1) raise(SIGSTOP);
    const int peer = my_rank == 1 ? 0 : 1;
    void *send = end.send(out.get(), kBytes, peer);
    void *receive = end.receive(in.get(), kBytes, peer);
    end.expect_failure(__LINE__, my_rank == 0 ? send : receive, 400, LASP_ERROR_PEER_LOST, 1);
    end.cancel(my_rank == 0 ? receive : send);
    bool touched = false;
    for (size_t i = 0; i < kBytes; ++i) touched |= in[i] != 0x55;
    EXPECT_EQ(touched, false);
  }
  int done = 1;  // rank 1 goes on when no other rank waits for it any more
  if (my_rank > 1) MPI_Send(&done, 1, MPI_INT, 0, 11, MPI_COMM_WORLD);
  for (int rank = 2; my_rank == 0 && rank < world_size; ++rank)
    MPI_Recv(&done, 1, MPI_INT, rank, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (my_rank == 0) kill(pids[1], SIGCONT);
  MPI_Barrier(MPI_COMM_WORLD);
}

void cancels_without_breaking_the_group() {
  End end;
  const int next = (my_rank + 1) % world_size, before = (my_rank + world_size - 1) % world_size;
  {
    auto big = std::make_unique<char[]>(1 << 22);
    end.cancel(end.receive(big.get(), 1 << 22, before, 5));
    end.cancel(end.send(big.get(), 1 << 22, next, 6));
  }
  int sent = my_rank, received = -1;
  void *receive = end.receive(&received, sizeof received, before);
  EXPECT_EQ(end.wait(end.send(&sent, sizeof sent, next)), LASP_OK);
  EXPECT_EQ(end.wait(receive), LASP_OK);
  EXPECT_EQ(received, before);
  MPI_Barrier(MPI_COMM_WORLD);
}

// A receive that was given up does not take the next message of its tag.
void a_cancelled_receive_takes_nothing() {
  End end;
  const int next = (my_rank + 1) % world_size, before = (my_rank + world_size - 1) % world_size;
  int given_up = -1, sent = 100 + my_rank, received = -1;
  end.cancel(end.receive(&given_up, sizeof given_up, before, 7));
  MPI_Barrier(MPI_COMM_WORLD);  // nobody has sent yet
  void *receive = end.receive(&received, sizeof received, before, 7);
  void *send = end.send(&sent, sizeof sent, next, 7);
  if (EXPECT_EQ(end.wait(receive, 5000), LASP_OK)) {
    EXPECT_EQ(received, 100 + before);
  } else {
    end.cancel(receive);
  }
  EXPECT_EQ(given_up, -1);
  if (end.wait(send, 5000) != LASP_OK) end.cancel(send);
  MPI_Barrier(MPI_COMM_WORLD);
}

// The type for messages beyond the range of MPI's counts, at a thousandth of a millionth of its size.
void builds_large_messages_from_blocks() {
  const int next = (my_rank + 1) % world_size, before = (my_rank + world_size - 1) % world_size;
  for (uint64_t bytes : {1000, 1001, 1024, 12345}) {
    std::vector<unsigned char> out(bytes), in(bytes + 1, 0xee);
    for (uint64_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(mix(static_cast<uint32_t>(i)));
    const lasp::mpi::ByteRun run(bytes, 1000, 256);
    EXPECT_EQ(run.count() == 1, bytes > 1000);
    MPI_Status status;
    MPI_Sendrecv(out.data(), run.count(), run.type(), next, 0, in.data(), run.count(), run.type(), before, 0,
                 MPI_COMM_WORLD, &status);
    MPI_Count received = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &received);
    EXPECT_EQ(static_cast<uint64_t>(received), bytes);
    EXPECT_EQ(std::memcmp(out.data(), in.data(), bytes), 0);
    EXPECT_EQ(in[bytes], 0xee);
  }
}

// Groups made and destroyed again and again, in another order on odd ranks, do not use MPI up.
void frees_what_it_makes() {
  MPI_Comm own;
  MPI_Comm_split(MPI_COMM_WORLD, 0, my_rank, &own);
  const int before = communicators_alive;
  int most = 0;
  for (int round = 0; round < 30; ++round) {
    auto a = std::make_unique<End>(own);
    auto b = std::make_unique<End>(own);
    int sent = round, received = -1;
    void *receive = b->receive(&received, sizeof received, (my_rank + 1) % world_size);
    EXPECT_EQ(b->wait(b->send(&sent, sizeof sent, (my_rank + world_size - 1) % world_size)), LASP_OK);
    EXPECT_EQ(b->wait(receive), LASP_OK);
    EXPECT_EQ(received, round);
    (my_rank % 2 ? a : b).reset();
    most = std::max(most, communicators_alive - before);
  }
  EXPECT_TRUE(most <= 8);  // two live groups and two retired ones, of two communicators each
  MPI_Comm_free(&own);
  ++communicators_alive;
  EXPECT_EQ(communicators_alive, before);
}

void run(const char *name, void (*scenario)()) {
  const auto start = Clock::now();
  const int before = failures;
  {
    const lasp_test::Watchdog watchdog(std::chrono::seconds(40), [name] {
      std::printf("FAILED %s: on rank %d it did not end within 40 s\n", name, my_rank);
    });
    scenario();
  }
  int failed = failures - before, anywhere = 0;
  MPI_Allreduce(&failed, &anywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (my_rank == 0) std::printf("%-6s %s (%.2f s)\n", anywhere ? "FAILED" : "ok", name, seconds_since(start));
  std::fflush(stdout);
}
#define RUN(scenario) run(#scenario, scenario)

}  // namespace

int main(int argc, char **argv) {
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm), LASP_ERROR_INVALID_ARGUMENT);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (world_size < 2) {
    std::fprintf(stderr, "run with mpirun -n 2 or more\n");
    MPI_Finalize();
    return 1;
  }
  alarm(180);  // a watchdog: a hang is a failure
  RUN(refuses_bad_arguments);
  RUN(describes_the_group);
  RUN(follows_the_ranks_of_the_communicator);
  RUN(keeps_order_and_tags);
  RUN(exchanges_all_to_all);
  RUN(test_advances_a_message);
  RUN(tells_a_size_mismatch_to_both_sides);
  RUN(abort_reaches_everybody);
  RUN(names_the_lost_rank_through_a_chain);
  RUN(names_the_direct_peer_in_a_circle);
  RUN(survives_a_stopped_process);
  RUN(cancels_without_breaking_the_group);
  RUN(a_cancelled_receive_takes_nothing);
  RUN(builds_large_messages_from_blocks);
  RUN(frees_what_it_makes);
  int anywhere = 0;
  MPI_Allreduce(&failures, &anywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  EXPECT_EQ(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm), LASP_ERROR_INVALID_ARGUMENT);
  return anywhere || failures ? 1 : 0;
}
