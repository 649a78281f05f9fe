#!/usr/bin/env bash
# All that needs an NVIDIA GPU, in one command of at most 12 minutes; the first part, of 4 minutes, is complete by itself.
#
#     benchmarks/gpu/session.sh FOLDER            both parts; results in FOLDER, at most 8 files
#     benchmarks/gpu/session.sh FOLDER --first    the first part only
#     benchmarks/gpu/session.sh FOLDER --dry      every step on a CPU with a few samples, to see that it works
#
# Nothing is installed: PYTHON names the Python with torch and this project's packages, else .venv's or `python3`.
# No power limit, clock or other setting is changed. A step that fails or takes too long does not stop the others.
set -uo pipefail

usage() { sed -n '4,6s/^#  *//p' "$0" >&2; exit 1; }

folder='' dry='' first=''
for argument in "$@"; do
    case $argument in
    --dry) dry=1 ;;
    --first) first=1 ;;
    -*) usage ;;
    *) folder=$argument ;;
    esac
done
[[ $folder ]] || usage

root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder/logs" && folder=$(cd "$folder" && pwd) || exit 1
cd "$root" || exit 1
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo "$root/.venv/bin/python" || command -v python3)}
export PYTHONPATH=$root/src:$root/tests:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $dry ]]; then
    export CUDA_VISIBLE_DEVICES=  # also on a machine with a GPU
    # `make test` runs the tests on a CPU: here, they are only found.
    device=cpu minutes=1 rest=1 short=--short limit=300 model=lenet batch=32 found=--collect-only
else
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
        echo 'error: torch finds no GPU' >&2
        echo '  hint: --dry shows on a CPU that each step works' >&2
        exit 1
    }
    device=cuda minutes=2 rest=2 short='' limit=0 model=resnet18 batch=256 found=''
fi
keys=("machine.lock_dir=$work" "machine.state_dir=$work/state")
run=("${keys[@]}" tracking=none "device=$device" sweep.again=true)
echo 'step,seconds,code' > "$folder/steps.csv"

# step NAME SECONDS COMMAND...: run a command with a limit, and note its time and exit code.
step() {
    local name=$1 seconds=$2 begun=$SECONDS code
    shift 2
    [[ $limit == 0 ]] || seconds=$limit
    echo "$name: ${*##*/}" >&2
    timeout --kill-after=10 "$seconds" "$@" > "$folder/logs/$name.txt" 2>&1
    code=$?
    echo "$name,$((SECONDS - begun)),$code" >> "$folder/steps.csv"
}

# validation STEP MINUTES SECONDS: its locks are its own, since in a rehearsal the other steps run meanwhile.
validation() {
    step "$1" "$3" "$python" src/validate.py "machine.lock_dir=$work/validation" "${keys[1]}" "device=$device" \
        "minutes=$2" "out=$folder/validation"
}

first_steps() {
    step doctor 30 "$python" src/doctor.py "${keys[0]/lock_dir/state_dir}" "device=$device" format=json
    step tests 60 "$python" -m pytest -q -p no:cacheprovider -n0 $found tests/worker/test_device.py tests/validation/test_programs.py
}

other_steps() {
    step script 60 "$python" src/measure.py "${run[@]}" "hydra.run.dir=$work/script/0" measure.flops=true -- \
        -m epochmeter.worker.known_script training "$device"
    step trace 60 "$python" src/train.py "${run[@]}" "hydra.run.dir=$work/trace/0" "model=$model" dataset=digits \
        synthetic_batches=true "batch=$batch" epochs=3 evaluate=false profiler=torch
    step trace_view 30 "$python" src/report.py "run=$work/trace/0" view=trace "out=$work/view"
    step roofline 60 "$python" benchmarks/accuracy/roofline.py 2 $short
    if [[ $dry ]] || [[ $("$python" -c 'import torch; print(torch.cuda.device_count())') -ge 2 ]]; then
        step ranks 60 "$python" src/train.py "${run[@]}" "hydra.run.dir=$work/ranks/0" model=lenet dataset=digits \
            synthetic_batches=true batch=32 epochs=2 evaluate=false profiler=none strategy=ddp strategy.ranks=2
    fi
}

if [[ $dry ]]; then
    # A rehearsal shows that each step works, so a validation that others disturb is enough. It repeats one line only.
    {
        validation validate "$minutes" 150
        [[ $first ]] || {
            "$python" benchmarks/gpu/finish_lines.py "$folder/validation/validation.json" counters
            validation validate_rest "$rest" 160
        }
    } &
    first_steps
    [[ $first ]] || other_steps
    wait
else
    # The first part: 4 minutes. The second part: 8 minutes.
    first_steps
    validation validate "$minutes" 150
    [[ $first ]] || { validation validate_rest "$rest" 160; other_steps; }
fi

step summary 30 "$python" benchmarks/gpu/summary.py "$folder" "$work"
cp "$folder/logs/summary.txt" "$folder/summary.md"
tar -czf "$folder/records.tar.gz" -C "$work" --exclude=state --exclude='*.lock' . 2> /dev/null
tar -czf "$folder/logs.tar.gz" -C "$folder" logs && rm -rf "$folder/logs"
cat "$folder/summary.md"
! grep -qv ',0$' <(tail -n +2 "$folder/steps.csv" | sed 's/^\(validate[a-z_]*,[0-9]*\),[23]$/\1,0/')
