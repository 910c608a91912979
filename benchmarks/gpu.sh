#!/usr/bin/env bash
# What only a CUDA device can run: its tests, every recipe at a size that fills a card, and small traces for fixtures/.
#
#   benchmarks/gpu.sh OUT [MINUTES]
#
# A call begins nothing that it cannot finish within its MINUTES (8), and the next call with the same OUT goes on from
# there, until one says that all is done. What failed is tried again once more. PYTHON is the interpreter that has
# torch (python3). DEVICE=cpu rehearses everything, small, where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: benchmarks/gpu.sh OUT [MINUTES]}
minutes=${2:-8}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
deadline=$((SECONDS + 60 * minutes))
later=() failed=()
mkdir -p "$out"/{state,logs,runs,answers,fixtures}
out=$(cd "$out" && pwd)

if [ "$device" = cuda ]; then
  full=3b part=base batch=16 steps=256 fewer=128
else
  full=tiny part=tiny batch=2 steps=16 fewer=16
fi

# stage NAME SECONDS COMMAND...: runs once; SECONDS is what it may take, and it is ended a little after that.
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

# answer NAME RECIPE OPTIONS...: records a run and keeps what diff and show say of it
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

# fixture RECIPE OPTIONS...: two traced steps of every arm, kept where they are small enough for the repository
fixture() {
  local recipe=$1 run=$out/runs/fixture-$1 file
  shift
  rm -rf "$run"
  "$python" -m traceq record --recipe "$recipe" --device "$device" --ranks 1 --steps 0 --trace-steps 2 --out "$run" \
    --set size=tiny "$@" || return
  for file in "$run"/*/rank0*.json.gz; do
    mkdir -p "$out/fixtures/$recipe/$(basename "$(dirname "$file")")"
    [ "$(stat -c %s "$file")" -lt 2000000 ] && cp "$file" "$out/fixtures/$recipe/$(basename "$(dirname "$file")")/"
  done
  cp "$run/run.json" "$out/fixtures/$recipe/"
}

if ! "$python" -c 'import traceq.recorder.world, accelerate, pytest' 2> /dev/null; then
  "$python" -m venv --system-site-packages "$out/venv" && python=$out/venv/bin/python
  "$python" -m pip install -q -e '.[record]' pytest hypothesis || exit 1
fi
if [ "$device" = cuda ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "$python: its torch finds no CUDA device; PYTHON=... names another, DEVICE=cpu rehearses" >&2
  exit 1
fi

export -f machine answer fixture
export out python device
run() { stage "$1" "$2" bash -c '"$@"' _ "${@:3}"; }

run machine 20 machine
run tests 240 "$python" -m pytest -m cuda tests/test_cuda.py --deselect tests/test_cuda.py::test_every_recipe_runs_on_a_gpu

# the question, at the size it was asked for
run outlier_ab 420 answer outlier_ab outlier_ab --ranks 1 --set size=$full --set batch_size=$batch --steps $steps

# every other recipe
for recipe in $("$python" -m traceq recipes | awk '/^[a-z_]+ /{print $1}' | grep -v outlier_ab); do
  size=() fits=$part ranks=1
  case $recipe in
    prefetch_ab | fused_adamw_ab) fits=$full ;;
    sharding | scaling_ab) ranks=2 ;;
  esac
  "$python" -m traceq recipes "$recipe" | grep -q 'size=' && size=(--set "size=$fits")
  run "$recipe" 300 answer "$recipe" "$recipe" --ranks $ranks "${size[@]}" --steps $fewer
done

# collectives, where two ranks share the card
for recipe in outlier_ab metrics_sync_ab branch_sync_ab; do
  run "two-ranks-$recipe" 200 answer "two-ranks-$recipe" "$recipe" --ranks 2 --set size=tiny --steps $fewer
done

# small traces of every arm, with stacks beside them
for recipe in outlier_ab prefetch_ab fused_adamw_ab checkpoint_ab master_weights_ab attention_ab compile_ab; do
  run "fixture-$recipe" 90 fixture "$recipe"
done

"$python" benchmarks/gpu.py "$out" > "$out/answers/truth.txt" 2>&1 && cat "$out/answers/truth.txt"
if [ ${#later[@]} -gt 0 ]; then
  echo "time is up; still to run: ${later[*]}"
elif [ ${#failed[@]} -gt 0 ]; then
  echo "failed, see $out/logs: ${failed[*]}"
  exit 1
else
  echo "all done: answers in $out/answers, traces for fixtures in $out/fixtures"
fi
