# Shared by the scripts of the local cluster. Sourced, never run.
#
# Everything that the cluster needs lies under $CACHE; nothing is written elsewhere on the host, so that removing the
# directory removes all of it. A cluster is a set of "machines" (the control plane `cp` and the nodes `node1`, ...):
# a machine is one process that is PID 1 of its own network, mount and pid namespaces. Killing that process ends
# every process in it, and with the last of them go its mounts, its interfaces and its firewall rules.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${RLJOB_CACHE:-$HOME/.cache/rljob}
BIN=${RLJOB_BIN:-$CACHE/bin}  # what we compile
STATE=$CACHE/cluster          # what a running cluster writes
IMAGES=$CACHE/images          # buildah's store, and the containerd store that nodes are seeded from
VOLUMES=$CACHE/volumes        # what PersistentVolumes point to
PKI=$STATE/pki
KUBECONFIG_ADMIN=$STATE/kubeconfig

NAME=rljob                    # of the cluster, and of its control group
NODE_NET=10.99.0              # /24; .1 is the control plane, .10+N is node N
POD_NET=10.244                # /16; pods of node N have $POD_NET.N.0/24
SERVICE_NET=10.96             # /16; .0.10 is DNS
API_PORT=16443                # on the host's loopback
PAUSE_IMAGE=registry.k8s.io/pause:3.10.1
COREDNS_IMAGE=registry.k8s.io/coredns/coredns:v1.12.4
BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm

export PATH="$BIN:$PATH" KUBECONFIG=$KUBECONFIG_ADMIN

log() { printf '%(%T)T %s\n' -1 "$*" >&2; }
die() { log "error: $*"; exit 1; }

# wait_for SECONDS WHAT COMMAND...   poll until the command succeeds
wait_for() {
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || die "gave up waiting for $what"; sleep 0.1; done
}

alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }   # alive PIDFILE
machine_pid() { cat "$STATE/$1.machine"; }
machine_up() { alive "$STATE/$1.machine"; }

# machine_start NAME   bash is PID 1, because it reaps orphans; it says so when all its namespaces are made
machine_start() {
  rm -f "$STATE/$1".*.pid "$STATE/$1.started"
  setsid unshare --net --mount --pid --fork --mount-proc --propagation private --kill-child=KILL \
    bash -c 'touch "$1"; trap "" HUP; while :; do sleep 3600 & wait $!; done' machine "$STATE/$1.started" >"$STATE/log/$1.machine.log" 2>&1 </dev/null &
  wait_for 10 "machine $1" test -e "$STATE/$1.started"
  rm "$STATE/$1.started"
  pgrep -P $! >"$STATE/$1.machine"
}

# machine_stop NAME   returns when nothing of it runs any more
machine_stop() {
  if machine_up "$1"; then
    kill -KILL "$(machine_pid "$1")"
    wait_for 20 "machine $1 to end" bash -c "! kill -0 $(machine_pid "$1") 2>/dev/null"
  fi
  rm -f "$STATE/$1.machine" "$STATE/$1".*.pid
}

# in_machine NAME COMMAND...   not `ip netns exec`, which hides the control group mounts
in_machine() { local machine=$1; shift; nsenter -t "$(machine_pid "$machine")" --net --mount --pid -- "$@"; }

# daemon MACHINE NAME COMMAND...   start unless it runs; its pid file has the pid as seen inside the machine
daemon() {
  local machine=$1 name=$2; shift 2
  daemon_up "$machine" "$name" && return
  in_machine "$machine" bash -c 'log=$1 pid=$2; shift 2; setsid "$@" >>"$log" 2>&1 </dev/null & echo $! >"$pid"' _ \
    "$STATE/log/$machine.$name.log" "$STATE/$machine.$name.pid" "$@"
}
daemon_up() { [ -s "$STATE/$1.$2.pid" ] && in_machine "$1" kill -0 "$(cat "$STATE/$1.$2.pid")" 2>/dev/null; }
daemon_stop() { in_machine "$1" kill "$(cat "$STATE/$1.$2.pid")"; rm -f "$STATE/$1.$2.pid"; }

# Directories of the control group controllers: one on version 2, one per controller on version 1
control_groups() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; return; fi
  for d in /sys/fs/cgroup/*; do if [ -e "$d/cgroup.procs" ]; then echo "$d"; fi; done
}
remove_control_groups() {   # remove_control_groups [NODE]
  local d
  for d in $(control_groups); do
    if [ -d "$d/$NAME/${1:-}" ]; then find "$d/$NAME/${1:-}" -depth -type d -exec rmdir {} + 2>/dev/null || true; fi
  done
}

# certificate NAME SUBJECT [ALTERNATIVE NAMES]   random serials: two files with one serial are refused by some clients
certificate() {
  [ ! -s "$PKI/$1.crt" ] || return 0
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$PKI/$1.key" -out "$PKI/$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -set_serial "0x$(openssl rand -hex 16)" -days 30 -out "$PKI/$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=clientAuth,serverAuth\n' "${3:-DNS:localhost}") 2>/dev/null
}

# kubeconfig FILE CERTIFICATE SERVER   self-contained, so that it may be copied
kubeconfig() {
  cat >"$1" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: $NAME, cluster: {server: "$3", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}}]
users: [{name: $2, user: {client-certificate-data: $(base64 -w0 "$PKI/$2.crt"), client-key-data: $(base64 -w0 "$PKI/$2.key")}}]
contexts: [{name: $NAME, context: {cluster: $NAME, user: $2}}]
current-context: $NAME
YAML
}

# The store of the images that we build. Under $CACHE, and apart from any other that the host may have.
STORE=(--root "$IMAGES/store" --runroot "$IMAGES/store-run" --storage-driver overlay)
store_image() { echo "containers-storage:[overlay@$IMAGES/store+$IMAGES/store-run]$1"; }
have_image() { buildah "${STORE[@]}" inspect --type image "$1" >/dev/null 2>&1; }
