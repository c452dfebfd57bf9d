#pragma once
/// \file step_loop.hpp
/// The step loop: gradient, average (dense or compressed) and update, then checkpoint, validation and results.

#include <cmath>
#include <cstdio>
#include <string>

#include "base/activity.hpp"
#include "comm/allreduce.hpp"
#include "train/agreement.hpp"
#include "train/messages.hpp"
#include "train/replicas.hpp"
#include "train/session.hpp"
#include "train/stop_signal.hpp"

namespace onebit::train {

/// Takes the steps of a run, with all ranks together.
template <class Exec>
class StepLoop {
public:
  /// \param run restored, if the run restarts
  StepLoop(Session<Exec>& session, Run<Exec>& run, Checkpoints& checkpoints)
      : m_session(session),
        m_run(run),
        m_checkpoints(checkpoints),
        m_input(session.input),
        m_communicator(session.communicator),
        m_gradient_check(session.tensors(), session.input.comm.dense_type),
        m_progress(session.input, session.communicator.rank() == 0, run.step + 1) {}

  /// \returns `success`, or `stopped` if a signal ended the run early; its checkpoint is then complete
  /// \throws AgreedError (every rank) or another exception (one rank; the caller must abort the others)
  ExitStatus operator()() {
    const long last = m_input.train.steps;
    for (long step = m_run.step + 1; step <= last; ++step) {
      const Region region("OneBit::train::step");
      Activity::set_step(step);
      const Stopwatch watch;
      StepRecord record{};
      record.step = step;
      record.lr = optim::learning_rate(m_input, step);

      optim::StepContext context{step, record.lr, m_run.mean_square_norm};
      m_session.dense_average.begin_step(step);
      const double loss = gradient(context, record);
      const Agreement agreement = agree(loss);
      if (m_input.optimizer.clip_norm == ClipNorm::this_step) context.mean_square_norm = agreement.mean_square_norm;
      if (agreement.finite) {
        update(context, record);
        m_run.mean_square_norm = agreement.mean_square_norm;
      } else {
        skip(loss, context, record);
      }

      record.seconds = watch.seconds();
      record.loss = agreement.mean_loss;
      record.gradient_norm = std::sqrt(agreement.mean_square_norm);
      validate(record);
      check_replicas(step);
      report(record);

      m_run.step = step;
      const bool stops = agreement.stops && step < last;
      if (!stops && !m_checkpoints.due(step)) continue;
      m_deferred.rethrow(m_communicator);
      const std::string checkpoint = m_checkpoints.write(m_session.exec, m_run);
      if (!stops) continue;
      if (m_communicator.rank() == 0)
        std::printf(
            "stopped by a signal after step %ld; checkpoint: %s\n  to continue: --set checkpoint.restart=auto\n", step,
            checkpoint.c_str());
      return ExitStatus::stopped;
    }
    m_deferred.rethrow(m_communicator);
    return ExitStatus::success;
  }

private:
  /// g ← this rank's gradient. During the backward pass, buckets of g may become the average of all ranks' gradients,
  /// or the algorithm's buckets of momenta may be averaged: `context` says which. \returns this rank's loss
  double gradient(optim::StepContext& context, StepRecord& record) {
    Session<Exec>& s = m_session;
    double loss = 0;
    const auto compute = [&](const GradientProgress& final_from) {
      loss = s.workload->gradient(s.exec, s.x, context.step, s.g, record.times, final_from);
    };
    const auto check = [&](std::size_t begin, std::size_t end) { m_gradient_check(s.exec, s.g, begin, end); };
    context.averaged = s.overlapped_average && s.algorithm->averages_gradient(context.step);
    context.buckets_averaged = s.momenta.overlapped && s.algorithm->begin_buckets(context);
    comm::OverlappedAverage<Exec>* const overlapped = context.averaged           ? s.overlapped_average.get()
                                                      : context.buckets_averaged ? s.momenta.overlapped.get()
                                                                                 : nullptr;
    if (overlapped != nullptr) {
      const GradientProgress final_from = [&](std::size_t b) { overlapped->final_from(b); };
      overlapped->start(s.exec, s.g, context.step, check);
      m_deferred([&] {
        compute(final_from);
        final_from(0);
      });
      record.hidden_allreduce = overlapped->wait(record.times);
    } else {
      m_deferred([&] { compute({}); });
      check(0, s.tensors().size());
    }
    return loss;
  }

  /// Tells the other ranks about this one's loss, gradient and state: the one small message of a step beside the
  /// algorithm's own. \throws AgreedError if any rank failed
  Agreement agree(double loss) {
    double sums[4] = {loss, m_gradient_check.square_norm(m_session.exec), m_deferred.failed() ? 1.0 : 0.0,
                      StopSignal::received() ? 1.0 : 0.0};
    m_communicator.sum(sums, 4);
    if (sums[2] > 0) m_deferred.rethrow(m_communicator);
    const double ranks = m_communicator.size();
    return {sums[0] / ranks, sums[1] / ranks, std::isfinite(sums[0]) && std::isfinite(sums[1]), sums[3] > 0};
  }

  /// x ← the algorithm's update, which averages what is not averaged yet, dense or compressed.
  void update(const optim::StepContext& context, StepRecord& record) {
    const bool was_frozen = m_run.last.frozen_at > 0;
    m_run.last = m_session.algorithm->step(m_session.exec, m_session.x, m_session.g, context, record.times);
    if (m_communicator.rank() == 0 && m_run.last.frozen_at > 0 && !was_frozen) announce_freeze(m_input, m_run.last);
  }

  /// Leaves x unchanged, because a loss or a gradient is not finite; ends the run if the input asks for that.
  void skip(double loss, const optim::StepContext& context, StepRecord& record) {
    if (m_input.optimizer.on_nonfinite == OnNonfinite::abort)
      abort_nonfinite(m_communicator, loss, m_gradient_check.nonfinite_tensor(), record.step);
    if (context.buckets_averaged) m_session.algorithm->take_back();
    record.skipped = true;
    // All ranks end with the same parameters, even if the last step is skipped.
    if (record.step == m_input.train.steps && !m_run.last.synchronised) {
      comm::average(m_session.exec, *m_session.averaging.transport, m_session.x, record.times);
      m_run.last.synchronised = true;
    }
  }

  /// Records means over all ranks' validation samples, in steps that validate.
  void validate(StepRecord& record) {
    if (!config::validates(m_input.train, record.step)) return;
    const Region region("OneBit::train::validate");
    workload::LossSum mine;
    m_deferred([&] { mine = m_session.workload->validation_loss(m_session.exec, m_session.x); });
    double sums[3] = {mine.sum, mine.right, mine.samples};
    m_communicator.sum(sums, 3);
    if (!(sums[2] > 0)) return;
    record.validated = true;
    record.validation_loss = sums[0] / sums[2];
    record.validation_accuracy = sums[1] / sums[2];
  }

  void check_replicas(long step) {
    const int every = m_input.run.check_replicas_every;
    if (m_communicator.size() > 1 && every > 0 && m_run.last.synchronised &&
        (step % every == 0 || step == m_input.train.steps))
      train::check_replicas(m_session.exec, m_communicator, m_session.x, step);
  }

  void report(StepRecord& record) {
    const Region region("OneBit::train::results");
    const comm::Transport<Exec>& transport = *m_session.averaging.transport;
    record.state = m_run.last;
    record.quantization = m_session.workload->quantization();
    record.tokens = m_session.workload->tokens_per_step();
    record.traffic = transport.traffic();
    record.traffic_within_host = transport.traffic_within_host().total();
    if (m_session.overlapped_average) {
      record.traffic += m_session.overlapped_average->traffic();
      record.traffic_within_host += m_session.overlapped_average->traffic_within_host().total();
    }
    if (m_session.momenta.buckets) record.traffic += m_session.momenta.buckets->traffic();
    m_deferred([&] { m_run.results.add(record); });
    m_progress(record, m_run.results.tokens_per_second());
  }

  Session<Exec>& m_session;
  Run<Exec>& m_run;
  Checkpoints& m_checkpoints;
  const config::Input& m_input;
  const Communicator& m_communicator;
  GradientCheck<Exec> m_gradient_check;
  Deferred m_deferred;
  Progress m_progress;
};

}  // namespace onebit::train
