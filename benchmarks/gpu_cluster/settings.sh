# Shared by the scripts of the cluster on a GPU machine. Sourced, never run. What the machine has is said by the variables that have no
# default here:
#
#   IMAGE_PYTHON   CPython 3.12 of the machine, which both images run
#   POD_MOUNTS     directories of the machine that pods see, read-only: "NAME=DIRECTORY:PATH_IN_POD ..." (torch, vLLM, driver, compiler)
#   TRAINER_ENV    environment of the trainer's image: one NAME=VALUE a line
#   DATA           what examples/arithmetic/prepare.py made: the pods' /data

SOURCES=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export GPU_CLUSTER=${GPU_CLUSTER:-$HOME/gpu_cluster}     # everything that is made here lies below it
export TOOLS=$GPU_CLUSTER/tools IMAGES=$GPU_CLUSTER/images RLJOB_CACHE=$GPU_CLUSTER/cache
export SCRIPTS=$SOURCES/e2e/cluster/scripts
export KUBECONFIG=$RLJOB_CACHE/cluster/kubeconfig
export PATH=$TOOLS/run:$RLJOB_CACHE/bin:$PATH
export PYTHONPATH=$SOURCES:$SOURCES/operator:$TOOLS/packages

began=$(date +%s.%N)
say() { printf '%6.1f s  %s\n' "$(echo "$(date +%s.%N) $began" | awk '{print $1 - $2}')" "$*"; }
