#pragma once
/// \file step_loop.hpp
/// The step loop: gradient, average (dense or compressed) and update, then checkpoint, validation and results.

#include <cmath>
#include <cstdio>
#include <string>

#include "base/system/activity.hpp"
#include "base/system/stop_signal.hpp"
#include "train/agreement.hpp"
#include "train/replicas.hpp"
#include "train/results/messages.hpp"
#include "train/session.hpp"
#include "train/validation.hpp"

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
        m_gradient_check(session.tensors(), gradient_limit(session.input, session.communicator.size())),
        m_progress(session.input, session.communicator.rank() == 0, run.step + 1) {}

  /// \returns `success`, or `stopped` if a signal ended the run early; its checkpoint is then complete
  /// \throws AgreedError (every rank) or another exception (one rank; the caller must abort the others)
  ExitStatus operator()() {
    StopSignal::begin_steps();
    if (m_run.owes_validation && !catch_up()) return stop();
    const long last = m_input.train.steps;
    for (long step = m_run.step + 1; step <= last; ++step) {
      const Region region("OneBit::train::step");
      Activity::set_step(step);
      const Stopwatch watch;
      StepRecord record{};
      record.step = step;
      record.lr = optim::learning_rate(m_input, step);

      optim::StepContext context{step, record.lr, m_run.mean_square_norm};
      const double loss = gradient(context, record);
      Agreement agreement{};
      record.times.add_rest(Phase::agree, [&] { agreement = agree(loss, record); });
      record.loss = agreement.mean_loss;
      record.gradient_norm = std::sqrt(agreement.mean_square_norm);
      record.quantization = m_session.workload->quantization();
      if (m_input.optimizer.clip_norm == ClipNorm::this_step) context.mean_square_norm = agreement.mean_square_norm;
      if (agreement.finite) {
        update(context, record);
        m_run.mean_square_norm = agreement.mean_square_norm;
      } else {
        skip(context, loss, record);
      }
      m_run.step = step;
      bool stops = agreement.stops && step < last;
      record.seconds = watch.seconds();

      m_run.owes_validation = config::validates(m_input.train, step) &&
                              (stops || !validate(m_session, m_run.result(), m_local_errors, record));
      stops = stops || m_run.owes_validation;
      check_replicas(record);
      report(record);
      if (stops) return stop();
      if (!m_checkpoints.due(step)) continue;
      m_local_errors.rethrow(m_communicator);
      m_checkpoints.write(m_session.exec, m_run);
    }
    m_local_errors.rethrow(m_communicator);
    return ExitStatus::success;
  }

private:
  /// g ← this rank's gradient, or what is left of it once its buckets are averaged.
  /// \param context gets whether they are \returns this rank's loss
  double gradient(optim::StepContext& context, StepRecord& record) {
    Session<Exec>& s = m_session;
    s.exchange.begin(s.exec, s.algorithm->begin(context), s.g,
                     [&](std::size_t begin, std::size_t end) { m_gradient_check(s.exec, s.g, begin, end); });
    double loss = 0;
    m_local_errors.capture([&] {
      loss = s.workload->gradient(s.exec, s.x, context.step, s.g, record.times,
                                  [&](std::size_t b) { s.exchange.gradient_ready_from(b); });
    });
    context.averaged = s.exchange.finish(record.times, record.hidden_allreduce);
    return loss;
  }

  /// Tells the other ranks about this one's loss, gradient and state: the one small message of a step beside the
  /// algorithm's own. \throws AgreedError if any rank failed
  Agreement agree(double loss, StepRecord& record) {
    double square_norm = 0;
    record.times.add_rest(Phase::check, [&] { square_norm = m_gradient_check.square_norm(m_session.exec); });
    double sums[4] = {loss, square_norm, m_local_errors.failed() ? 1.0 : 0.0, StopSignal::received() ? 1.0 : 0.0};
    m_communicator.sum(sums, 4);
    if (sums[2] > 0) m_local_errors.rethrow(m_communicator);
    const double ranks = m_communicator.size();
    return {sums[0] / ranks, sums[1] / ranks, std::isfinite(sums[0]) && std::isfinite(sums[1]), sums[3] > 0};
  }

  /// x ← the algorithm's update, which averages what is not averaged yet, dense or compressed.
  void update(const optim::StepContext& context, StepRecord& record) {
    const bool was_frozen = m_run.last.frozen_at > 0;
    // The rest is the norms of residuals: an algorithm counts all else.
    record.times.add_rest(Phase::check, [&] {
      record.state = m_session.algorithm->step(m_session.exec, m_session.x, m_session.g, context, record.times);
    });
    if (record.state.synchronised)
      record.times.add_rest(Phase::update, [&] { m_run.mean.add(m_session.exec, m_session.x); });
    if (m_communicator.rank() == 0 && record.state.frozen_at > 0 && !was_frozen) announce_freeze(m_input, record.state);
  }

  /// Leaves x unchanged, because a loss or a gradient is not finite; ends the run if the input asks for that.
  void skip(const optim::StepContext& context, double loss, StepRecord& record) {
    if (m_input.optimizer.on_nonfinite == OnNonfinite::abort)
      abort_nonfinite(m_communicator, loss, m_gradient_check.fault(), record.step);
    if (context.averaged) m_session.algorithm->roll_back();
    record.skipped = true;
    // All ranks end with the same parameters, even if the last step is skipped.
    record.state = m_run.last;
    if (record.step == m_input.train.steps && !record.state.synchronised) {
      comm::average(m_session.exec, *m_session.averaging.transport, m_session.x, record.times);
      record.state.synchronised = true;
    }
  }

  /// The validation that a signal interrupted before the restart. \returns false when a signal interrupts it again
  bool catch_up() {
    StepRecord record = m_run.results.last();
    record.step = m_run.step;
    record.lr = optim::learning_rate(m_input, m_run.step);
    record.state = m_run.last;
    if (!validate(m_session, m_run.result(), m_local_errors, record)) return false;
    m_run.owes_validation = false;
    m_local_errors.capture([&] { m_run.results.add_validation(record); });
    m_progress(record, m_run.results.tokens_per_second());
    return true;
  }

  /// Writes the checkpoint from which a later run goes on.
  ExitStatus stop() {
    m_local_errors.rethrow(m_communicator);
    const std::string checkpoint = m_checkpoints.write(m_session.exec, m_run);
    if (m_communicator.rank() == 0)
      std::printf(
          "stopped by a signal after step %ld%s; checkpoint: %s\n  to continue: --set checkpoint.restart=auto\n",
          m_run.step, m_run.owes_validation ? ", before its validation" : "", checkpoint.c_str());
    return ExitStatus::stopped;
  }

  bool checks_replicas(long step) const {
    const int every = m_input.run.check_replicas_every;
    return m_communicator.size() > 1 && every > 0 && (step % every == 0 || step == m_input.train.steps);
  }

  void check_replicas(const StepRecord& record) {
    if (checks_replicas(record.step) && record.state.synchronised)
      train::check_replicas(m_session.exec, m_communicator, m_session.x, record.step);
  }

  void report(StepRecord& record) {
    const Region region("OneBit::train::results");
    const comm::Transport<Exec>& transport = *m_session.averaging.transport;
    m_session.energy.sample();
    m_run.last = record.state;
    record.tokens = m_session.workload->tokens_per_step();
    record.traffic = transport.traffic();
    record.traffic += m_session.exchange.traffic();
    record.traffic_within_host =
        transport.traffic_within_host().total() + m_session.exchange.traffic_within_host().total();
    m_local_errors.capture([&] { m_run.results.add(record); });
    m_progress(record, m_run.results.tokens_per_second());
  }

  Session<Exec>& m_session;
  Run<Exec>& m_run;
  Checkpoints& m_checkpoints;
  const config::Input& m_input;
  const Communicator& m_communicator;
  GradientCheck<Exec> m_gradient_check;
  LocalErrors m_local_errors;
  Progress m_progress;
};

}  // namespace onebit::train
