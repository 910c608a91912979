#!/usr/bin/env bash
# Run what needs a CUDA device: its tests, every recipe at a size that fills a GPU, and small traces for fixtures/.
#
#   benchmarks/gpu.sh OUT [MINUTES]
#
# A call starts no stage that it cannot finish within its MINUTES (8); the next call with the same OUT resumes, until one
# reports that all is done. A failed stage is retried once. Each call packs all results into OUT/gpu.tgz, from which
# another machine can resume. PYTHON is the interpreter that has torch (python3); missing packages are installed into
# it. DEVICE=cpu runs everything at small size without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: benchmarks/gpu.sh OUT [MINUTES]}
minutes=${2:-8}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
deadline=$((SECONDS + 60 * minutes))
later=() failed=()
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -d "$out/state" ] || [ ! -e "$out/gpu.tgz" ] || tar -xzf "$out/gpu.tgz" -C "$out"
mkdir -p "$out"/{state,logs,runs,answers,fixtures}

if [ "$device" = cuda ]; then
  full=3b part=base some=small batch=4 steps=128 fewest=32 memory=16384
else
  full=tiny part=tiny some=tiny batch=2 steps=16 fewest=16 memory=64
fi

# stage NAME SECONDS COMMAND...: runs a command once, with a limit of SECONDS plus a short grace period
stage() {
  local name=$1 seconds=$2 begun=$SECONDS
  shift 2
  [ -e "$out/state/$name.done" ] || [ -e "$out/state/$name.failed.twice" ] && return
  if [ $((deadline - SECONDS)) -lt "$seconds" ]; then
    later+=("$name")
    return
  fi
  if timeout --kill-after=20 "$((seconds + 30))" "$@" > "$out/logs/$name.txt" 2>&1; then
    touch "$out/state/$name.done"
    echo "done    $name ($((SECONDS - begun)) s)"
  else
    echo "FAILED  $name after $((SECONDS - begun)) s: $(tail -n 1 "$out/logs/$name.txt")"
    failed+=("$name")
    [ -e "$out/state/$name.failed" ] && mv "$out/state/$name.failed" "$out/state/$name.failed.twice"
    [ -e "$out/state/$name.failed.twice" ] || touch "$out/state/$name.failed"
  fi
}

machine() {
  nvidia-smi 2> /dev/null || echo "no nvidia-smi"
  "$python" -c 'import platform, torch
print(platform.platform(), "Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)'
  git rev-parse HEAD 2> /dev/null || true
}

# answer NAME RECIPE OPTIONS...: records a run and saves the output of diff and show
answer() {
  local name=$1 recipe=$2
  shift 2
  rm -rf "$out/runs/$name"
  "$python" -m traceq record --recipe "$recipe" --device "$device" --out "$out/runs/$name" "$@" || return
  local answers=$out/answers/$name
  "$python" -m traceq diff "$out/runs/$name" --markdown > "$answers.diff.md" &&
    "$python" -m traceq diff "$out/runs/$name" --json > "$answers.diff.json" || rm -f "$answers".diff.*
  "$python" -m traceq show "$out/runs/$name" --markdown > "$answers.show.md"
}

# fixture "RECIPE OPTIONS" FILE...: records two traced steps of every arm; copies these files of the run, if present
fixture() {
  local recipe=$1 name run kept file
  name=$(basename "${recipe%% *}" .py)
  run=$out/runs/fixture-$name kept=$out/fixtures/$name
  shift
  rm -rf "$run" "$kept"
  "$python" -m traceq record --recipe $recipe --device "$device" --ranks 1 --steps 0 --trace-steps 2 --out "$run" || return
  for file in "$@" run.json; do
    mkdir -p "$kept/$(dirname "$file")"
    [ ! -e "$run/$file" ] || cp "$run/$file" "$kept/$file"
  done
}

needed='import traceq.recipes, msgspec, nvtx, isal, perfetto, rich, typer, accelerate, pytest, hypothesis'
if ! "$python" -c "$needed" 2> /dev/null; then
  "$python" -m pip install -q -e '.[record]' pytest hypothesis ||
    "$python" -m pip install -q --no-index --no-build-isolation --no-deps -e . # without a network
  "$python" -c "$needed" || exit 1
fi
if [ "$device" = cuda ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "$python: torch finds no CUDA device; choose another interpreter by PYTHON=..., or run on a CPU by DEVICE=cpu" >&2
  exit 1
fi

export -f machine answer fixture
export out python device
run() { stage "$1" "$2" bash -c '"$@"' _ "${@:3}"; }

run machine 20 machine
run tests 420 "$python" -m pytest -m cuda tests/recipes/test_cuda.py tests/recorder/test_cuda_jobs.py --deselect tests/recipes/test_cuda.py::test_every_recipe_runs_on_a_gpu

# the outlier check at full size
run outlier_ab 430 answer outlier_ab outlier_ab --ranks 1 --set size=$full --set batch_size=$batch --steps $steps

# small traces for the repository
rank0=rank0.json.gz
run fixture-outlier_ab 90 fixture outlier_ab {off,on,deferred}/$rank0 on/rank0.stacks.json.gz
run fixture-prefetch_ab 90 fixture prefetch_ab {naive,pinned,prefetch}/$rank0
run fixture-fused_adamw_ab 90 fixture fused_adamw_ab {foreach,fused}/$rank0
run fixture-checkpoint_ab 90 fixture checkpoint_ab {off,on}/$rank0
run fixture-master_weights_ab 90 fixture master_weights_ab masters_on_cpu/$rank0
run fixture-attention_ab 120 fixture "attention_ab --replicates 1" {eager,sdpa}/$rank0
run fixture-compile_ab 180 fixture "compile_ab --replicates 1" on/$rank0
run fixture-cuda_graph 90 fixture "fixtures/cuda_graph.py --replicates 1" {launched,graph}/$rank0

# collectives of two ranks that share the GPU
for recipe in outlier_ab metrics_sync_ab branch_sync_ab; do
  run "two-ranks-$recipe" 200 answer "two-ranks-$recipe" "$recipe" --ranks 2 --set size=tiny --steps $fewest
done

# every other recipe
recipes=$("$python" -m traceq recipes | awk '/^[a-z_]+ /{print $1}' | grep -v outlier_ab)
[ -n "$recipes" ] || exit 1
for recipe in $recipes; do
  seconds=300 options=(--ranks 1 --steps $steps)
  case $recipe in
    prefetch_ab) seconds=420 options+=(--set size=$full) ;;
    fused_adamw_ab) options+=(--set size=$full --set scaler=false) ;; # GradScaler cannot unscale bfloat16 gradients
    attention_ab | compile_ab) seconds=420 options=(--ranks 1 --steps $fewest --set size=$part) ;;
    master_weights_ab) options+=(--set size=$some) ;; # AdamW on the host
    batch_probe) seconds=420 options=(--ranks 1 --set size=$part --set memory_limit=$memory --set num_workers=8) ;;
    sharding | scaling_ab) options=(--ranks 2 --replicates 1 --steps 16 --set size=tiny) ;; # they share the GPU
    *) ! "$python" -m traceq recipes "$recipe" | grep -q 'size=' || options+=(--set size=$part) ;;
  esac
  run "$recipe" $seconds answer "$recipe" "$recipe" "${options[@]}"
done

echo "fixtures: $(find "$out/fixtures" -name '*.gz' | wc -l) traces, $(du -sk "$out/fixtures" | cut -f1) KB, the largest" \
  "$(find "$out/fixtures" -name '*.gz' -printf '%k\n' | sort -n | tail -n 1) KB"
truth=$out/answers/truth-$(find "$out/answers" -name 'truth-*' | wc -l).txt # of the runs on this machine
"$python" benchmarks/gpu.py "$out" > "$truth" 2>&1 && cat "$truth"
tar -czf "$out/gpu.tgz" -C "$out" state logs answers fixtures
if [ ${#later[@]} -gt 0 ]; then
  echo "time is up; still to run: ${later[*]}"
elif [ ${#failed[@]} -gt 0 ]; then
  echo "failed, see $out/logs: ${failed[*]}"
  exit 1
else
  echo "all done: answers in $out/answers, traces for fixtures in $out/fixtures"
fi
