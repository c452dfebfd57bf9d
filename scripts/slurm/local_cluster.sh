#!/usr/bin/env bash
# A real Slurm of one node on this machine, to try batch scripts on. Not for production: no accounting, no limits.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/slurm/local_cluster.sh start|stop|status

  start   starts munged, slurmctld and slurmd with a configuration of their own;
          installs Debian's packages of them if they are missing
  stop    ends exactly what 'start' started
  status  shows it; fails when it is not running

Environment:
  ONEBIT_SLURM_DIR  where configuration, state and logs lie
                    (default: /tmp/onebit-slurm-USER)

After 'start', point Slurm's commands at it:
  export SLURM_CONF=$ONEBIT_SLURM_DIR/slurm.conf
TEXT
}

dir=${ONEBIT_SLURM_DIR:-/tmp/onebit-slurm-$(id -un)}
conf=$dir/slurm.conf
# Debian keeps the daemons out of an ordinary user's PATH.
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'local Slurm: %s\n' "$*"; }
fail() { printf 'local Slurm: %s\n' "$*" >&2; exit 1; }

install_missing() {
  local program missing=no
  for program in munged slurmctld slurmd sbatch; do
    command -v "$program" >/dev/null || missing=yes
  done
  [[ $missing == yes ]] || return 0
  command -v apt-get >/dev/null || fail "munge and Slurm are missing; install them"
  [[ $(id -u) -eq 0 ]] || fail "run as root: apt-get install slurmctld slurmd slurm-client munge"
  say "installing slurmctld slurmd slurm-client munge"
  apt-get -q -o DPkg::Lock::Timeout=600 update >"$dir/install.log" 2>&1 ||
    { tail -n 20 "$dir/install.log" >&2; fail "apt-get update failed"; }
  # Run level 1 tells Debian's packages not to start the system's daemons.
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 \
    install --no-install-recommends slurmctld slurmd slurm-client munge >"$dir/install.log" 2>&1 ||
    { tail -n 20 "$dir/install.log" >&2; fail "could not install Slurm"; }
}

# Prints a free TCP port.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 10000))
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

write_configuration() {
  local host memory cores
  host=$(hostname -s)
  memory=$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # nproc believes them
  mkdir -p "$dir"/{munge,state,spool,run}
  head -c 1024 /dev/urandom >"$dir/munge/key"
  chmod 700 "$dir/munge"
  chmod 400 "$dir/munge/key"
  cat >"$conf" <<TEXT
ClusterName=onebit
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
# A requeued job waits until its credential has expired: 120 s without this.
AuthInfo=socket=$dir/run/munge,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
# Without cgroups, which a container may not give.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# A node that was lost comes back by itself, for example after a suspend.
ReturnToService=2
# A job that asks for more cores than there are is refused; without this it waits for ever.
EnforcePartLimits=ALL
MpiDefault=none
# A job in 'urgent' takes the cores of jobs in 'local', which get a minute to
# write a checkpoint after the signal that they asked for with --signal.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory
PartitionName=local Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
TEXT
}

pid_of() { cat "$dir/run/$1.pid" 2>/dev/null; }

# True when the process lives and is still the one that was started: pids are reused.
is_running() {
  local pid
  pid=$(pid_of "$1") && [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == "$1" ]] &&
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$dir"
}

stop_daemon() {
  local pid
  is_running "$1" || { rm -f "$dir/run/$1.pid"; return 0; }
  pid=$(pid_of "$1")
  kill "$pid"
  for _ in {1..50}; do
    is_running "$1" || break
    sleep 0.1
  done
  if is_running "$1"; then
    kill -KILL "$pid"
  fi
  rm -f "$dir/run/$1.pid"
}

start() {
  local state
  if is_running munged && is_running slurmctld && is_running slurmd; then
    say "is running; SLURM_CONF=$conf"
    return 0
  fi
  stop # what is left of an earlier start
  mkdir -p "$dir"
  install_missing
  rm -rf "${dir:?}"/{munge,state,spool,run,slurmctld.log,slurmd.log,munged.log}
  write_configuration
  export SLURM_CONF=$conf

  # --force: munged dislikes a parent that others may write to, such as /tmp.
  munged --force --num-threads=2 --key-file="$dir/munge/key" --socket="$dir/run/munge" \
    --pid-file="$dir/run/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munge/seed" \
    2>>"$dir/munged.log" || fail "munged did not start: see $dir/munged.log"
  slurmctld -i -f "$conf" || { stop; fail "slurmctld did not start: see $dir/slurmctld.log"; }
  slurmd -f "$conf" || { stop; fail "slurmd did not start: see $dir/slurmd.log"; }
  for _ in {1..100}; do
    state=$(sinfo -h -o %t 2>/dev/null || true)
    if [[ $state == idle ]]; then
      say "started in $dir; export SLURM_CONF=$conf"
      return 0
    fi
    sleep 0.2
  done
  tail -n 5 "$dir/slurmctld.log" "$dir/slurmd.log" >&2
  stop
  fail "the node did not become idle in 20 s (state '$state'): see the logs in $dir"
}

stop() {
  # Jobs outlive slurmd, so they go first.
  if is_running slurmctld; then
    SLURM_CONF=$conf timeout 10 scancel --quiet --user="$(id -un)" || true
    for _ in {1..50}; do
      [[ -n $(SLURM_CONF=$conf timeout 10 squeue --noheader || true) ]] || break
      sleep 0.2
    done
  fi
  # The controller first, so that it does not report the others as lost.
  stop_daemon slurmctld
  stop_daemon slurmd
  stop_daemon munged
}

status() {
  local daemon result=0
  for daemon in munged slurmctld slurmd; do
    if is_running "$daemon"; then
      say "$daemon runs as process $(pid_of "$daemon")"
    else
      say "$daemon is not running"
      result=1
    fi
  done
  [[ $result -eq 0 ]] || return 1
  SLURM_CONF=$conf sinfo
}

case ${1:-} in
  start) start ;;
  stop) stop; say "stopped" ;;
  status) status ;;
  --help|-h) usage ;;
  *) usage >&2; exit 2 ;;
esac
