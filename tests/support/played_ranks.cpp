#include "support/played_ranks.h"

#include "support/device.h"
#include "support/group.h"

namespace lasp_test {

PlayedRanks::PlayedRanks(const Case &c, const CaseData &data, int32_t nranks, bool detached,
                         const RunOptions &options, const CaseData *other)
    : case_(c), data_(data), other_(other), options_(options), ranks_(static_cast<size_t>(nranks)) {
  std::vector<lasp_comm *> comms(ranks_.size(), nullptr);
  if (!detached) ok(lasp_comm_create_threads(nranks, comms.data()), "lasp_comm_create_threads");
  for (int32_t rank = 0; detached && rank < nranks; ++rank)
    ok(lasp_comm_create_detached(rank, nranks, &comms[static_cast<size_t>(rank)]), "lasp_comm_create_detached");
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i].comm = comms[i];
  if (!complaints_.empty()) return;
  std::vector<std::string> complaints(ranks_.size());
  const auto make_one = [&](int32_t rank) { make(rank, complaints[static_cast<size_t>(rank)]); };
  if (detached) {
    for (int32_t rank = 0; rank < nranks; ++rank) make_one(rank);
  } else {
    on_threads(nranks, make_one);
  }
  for (const std::string &complaint : complaints) complaints_ += complaint;
  if (!complaints_.empty()) return;
  maps_ = std::make_unique<GuardedBuffer>(maps_bytes() * ranks_.size(), info(0).alignment);
}

PlayedRanks::~PlayedRanks() {
  for (Rank &rank : ranks_) {
    lasp_plan_destroy(rank.plan);
    lasp_context_destroy(rank.context);
    lasp_comm_destroy(rank.comm);
  }
}

void PlayedRanks::ok(lasp_status status, const char *call) {
  if (status != LASP_OK)
    complaints_ += std::string(call) + ": " + lasp_status_name(status) + ": " + lasp_last_error() + "\n";
}

void PlayedRanks::make(int32_t rank, std::string &complaints) {
  Rank &r = ranks_[static_cast<size_t>(rank)];
  const lasp_context_options options = test_context_options(case_, options_.device_index);
  const auto must = [&](lasp_status status) {
    if (status != LASP_OK) complaints += std::string(lasp_last_error()) + "\n";
    return status == LASP_OK;
  };
  r.memory = std::make_unique<RankMemory>(case_, data_, rank, nranks(), options_);
  lasp_problem p = problem_of(case_, rank, nranks(), options_);
  r.memory->set_strides(p);
  if (!must(lasp_context_create(LASP_ABI, r.comm, &options, &r.context)) ||
      !must(lasp_plan_create(r.context, &p, &r.plan)) || !must(lasp_plan_get_info(r.plan, &r.info)))
    return;
  r.memory->make_for(r.info);
  const auto make_stages = [&](std::unique_ptr<StageMemory>(&stages)[2]) {
    for (const bool backward : {false, true})
      stages[backward] = std::make_unique<StageMemory>(r.info, r.memory->state_bytes_of_run(), backward);
  };
  make_stages(r.stages);
  if (other_ == nullptr) return;
  r.other = std::make_unique<RankMemory>(case_, *other_, rank, nranks(), options_);
  r.other->make_for(r.info);
  make_stages(r.other_stages);
}

void PlayedRanks::prepare(lasp_stream stream) {
  maps_->poison();
  maps_->upload(stream);
  for (Rank &rank : ranks_) {
    rank.memory->poison_forward(0);
    rank.memory->poison_backward(0);
    rank.memory->upload(stream);
    if (rank.other) rank.other->upload(stream);
    for (const auto &stages : rank.stages)
      for (const auto *buffer : {&stages->incoming, &stages->carry, &stages->moved}) {
        (*buffer)->poison();
        (*buffer)->upload(stream);
      }
  }
}

// Both stages of the other data, as if zero entered.
template <class ArgsOf>
void PlayedRanks::disturb(const Rank &rank, bool backward, lasp_stream stream, ArgsOf args_of) {
  const auto whole_args = args_of(*rank.other);
  const auto first = for_summarize(whole_args, *rank.other_stages[backward], true);
  ok(summarize(rank.plan, &first, stream), "summarize of other data");
  auto second = whole_args;
  second.carry = first.carry;
  ok(apply(rank.plan, &second, stream), "apply of other data");
}

// What the library does not do, an all-gather, is here that each rank writes its map to its place among all.
template <class ArgsOf>
void PlayedRanks::direction(bool backward, lasp_stream stream, const Fold &fold, ArgsOf args_of) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank &rank = ranks_[i];
    auto args = for_summarize(args_of(*rank.memory), *rank.stages[backward], options_.carry);
    args.maps = {maps_->call_data() + i * maps_bytes(), maps_bytes()};
    ok(summarize(rank.plan, &args, stream), "summarize");
    if (rank.other) disturb(rank, backward, stream, args_of);
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank &rank = ranks_[i];
    const StageMemory &stages = *rank.stages[backward];
    if (fold) {
      fold(static_cast<int32_t>(i), backward, maps_->data(), reinterpret_cast<float *>(stages.incoming->data()));
    } else {
      lasp_maps_args maps = LASP_MAPS_ARGS_INIT;
      maps.maps = {maps_->call_data(), maps_->bytes()};
      maps.incoming = whole(stages.incoming);
      maps.backward = backward ? 1 : 0;
      ok(lasp_maps_apply(rank.plan, &maps, stream), "lasp_maps_apply");
    }
    move_bytes(stages.moved->call_data(), stages.carry->call_data(), stages.carry->bytes(), stream);
    const auto whole_args = args_of(*rank.memory);
    spoil_between(whole_args, options_.carry, stream);
    const auto args = for_apply(whole_args, stages, options_.carry);
    ok(apply(rank.plan, &args, stream), "apply");
  }
}

void PlayedRanks::run(lasp_stream stream, const Fold &fold) {
  direction(false, stream, fold, [](const RankMemory &memory) { return memory.forward_args(); });
  if (options_.backward)
    direction(true, stream, fold, [](const RankMemory &memory) { return memory.backward_args(); });
}

std::vector<std::array<std::vector<float>, kTensors>> PlayedRanks::results(lasp_stream stream) {
  std::vector<std::array<std::vector<float>, kTensors>> all;
  maps_->download(stream);
  for (Rank &rank : ranks_) {
    rank.memory->download(stream);
    complaints_ += rank.memory->misdeeds("a stage") + rank.memory->foreign_final_states() +
                   rank.memory->foreign_initial_gradients();
    for (const auto &stages : rank.stages) {
      for (const auto *buffer : {&stages->incoming, &stages->carry, &stages->moved}) (*buffer)->download(stream);
      complaints_ += stages->misdeeds();
    }
    all.push_back(rank.memory->results());
  }
  if (!maps_->canaries_intact()) complaints_ += "a stage wrote outside the maps\n";
  return all;
}

}  // namespace lasp_test
