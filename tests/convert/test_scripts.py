"""A script is converted with the arguments that bash gives verl; what bash cannot know is a blank.

`SCRIPTS` holds scripts in the styles that people write, each with its arguments, worked out by
hand. A second witness is bash without ajet, with three commands that write down their arguments.
"""

import subprocess
import textwrap
from pathlib import Path

import pytest

from ajet.convert import Conversion, convert, yaml_text
from ajet.convert.command_line import read_script
from ajet.convert.conversion import SYSTEMS
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.sandbox.pool import SandboxPool

VERL = SYSTEMS["verl"].entry

SCRIPTS = {
    "continued lines": (
        """
        set -x
        python3 -m verl.trainer.main_ppo \\
            algorithm.adv_estimator=grpo \\
            data.train_files=$HOME/data/gsm8k/train.parquet \\
            data.truncation='error' \\
            trainer.logger='["console","wandb"]' \\
            actor_rollout_ref.actor.optim.lr=1e-6 "$@"
        """,
        ["algorithm.adv_estimator=grpo", "data.train_files=~/data/gsm8k/train.parquet",
         "data.truncation=error", 'trainer.logger=["console","wandb"]',
         "actor_rollout_ref.actor.optim.lr=1e-6"],
    ),
    "words in a variable": (
        """
        OPTS="
            algorithm.adv_estimator=rloo \\
            data.train_batch_size=48
            actor_rollout_ref.rollout.n=6"
        python3 -m verl.trainer.main_ppo data.seed=1 $OPTS
        """,
        ["data.seed=1", "algorithm.adv_estimator=rloo", "data.train_batch_size=48",
         "actor_rollout_ref.rollout.n=6"],
    ),
    "options without a value": (
        """
        python3 -m verl.trainer.main_ppo --config-path=here -cn ppo_trainer -- data.seed=1 \\
            +ray_kwargs.x=2 --verbose data.shuffle=True
        """,
        ["data.seed=1", "+ray_kwargs.x=2", "data.shuffle=True"],
    ),
    "a recipe by its path": (
        """
        python3 recipe/sums/prepare.py --out sums
        python3 recipe/sums/main_sums.py data.seed=1
        """,
        ["data.seed=1"],
    ),
    "a program of the user's own": (
        """
        python3 tools/prepare.py --out=sums data=here
        python3 -m my_team.train_sums --config-name=mine data.seed=1 \\
            +actor_rollout_ref.rollout.n=4
        """,
        ["data.seed=1", "+actor_rollout_ref.rollout.n=4"],
    ),
    "a command line for a scheduler": (
        """
        sbatch --nodes=2 --wrap="python3 -m verl.trainer.main_ppo data.seed=1 data.shuffle=True"
        """,
        ["data.seed=1", "data.shuffle=True"],
    ),
    "a shell that reads its input": (
        """
        bash <<'END'
        python3 -m verl.trainer.main_ppo data.seed=1
        END
        """,
        ["data.seed=1"],
    ),
    "a pipe that nobody reads": (
        """
        set -euo pipefail
        curl -L https://here/engine.tar.gz | tar xz
        python3 -m verl.trainer.main_ppo data.seed=1
        """,
        ["data.seed=1"],
    ),
    "a sum in an array": (
        """
        OPTS=(
            data.max_prompt_length=$((256 * 3))   # tokens
            # data.seed=2
            algorithm.adv_estimator=rloo
        )
        OPTS+=(actor_rollout_ref.rollout.n=$(( (2 + 1) * 2 )))
        python3 -m verl.trainer.main_ppo "${OPTS[@]}"
        """,
        ["data.max_prompt_length=768", "algorithm.adv_estimator=rloo",
         "actor_rollout_ref.rollout.n=6"],
    ),
    "sums of lengths": (
        """
        max_prompt_length=$((1024 * 2))
        max_response_length=$((1024 * 28))
        micro=$(((max_prompt_length + max_response_length) * 2))
        train=512; mini=$(( train / 16 )); let "gen = train * 3"
        python3 -m verl.trainer.main_ppo data.max_prompt_length=$max_prompt_length \\
            data.max_response_length=${max_response_length} data.gen_batch_size=$gen \\
            actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$micro \\
            actor_rollout_ref.actor.ppo_mini_batch_size=${mini}
        """,
        ["data.max_prompt_length=2048", "data.max_response_length=28672",
         "data.gen_batch_size=1536", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=61440",
         "actor_rollout_ref.actor.ppo_mini_batch_size=32"],
    ),
    "defaults of defaults": (
        """
        NNODES=${NNODES:-2}
        GPUS=${GPUS:-8}
        TP=${TP:-$((GPUS / 2))}
        MODEL_PATH=${MODEL_PATH:-"Qwen/Qwen3-8B"}
        NAME=${NAME:-${MODEL_PATH##*/}-n${NNODES}}
        : "${BATCH:=96}"
        python3 -m verl.trainer.main_ppo trainer.nnodes=$NNODES trainer.n_gpus_per_node=$GPUS \\
            actor_rollout_ref.rollout.tensor_model_parallel_size=$TP data.train_batch_size=$BATCH \\
            actor_rollout_ref.model.path="$MODEL_PATH" trainer.experiment_name=$NAME
        """,
        ["trainer.nnodes=2", "trainer.n_gpus_per_node=8",
         "actor_rollout_ref.rollout.tensor_model_parallel_size=4", "data.train_batch_size=96",
         "actor_rollout_ref.model.path=Qwen/Qwen3-8B", "trainer.experiment_name=Qwen3-8B-n2"],
    ),
    "a case of a known value": (
        """
        SIZE=${SIZE:-large}
        case "$SIZE" in
            small) BATCH=64; LR=5e-6 ;;
            large|huge) BATCH=256 LR=1e-6 ;;
            *) echo "unknown size"; exit 1 ;;
        esac
        python3 -m verl.trainer.main_ppo data.train_batch_size=$BATCH \\
            actor_rollout_ref.actor.optim.lr=$LR
        """,
        ["data.train_batch_size=256", "actor_rollout_ref.actor.optim.lr=1e-6"],
    ),
    "conditions on known values": (
        """
        USE_KL=${USE_KL:-true}
        EXTRA=()
        if [[ "$USE_KL" == "true" ]]; then
            EXTRA+=(actor_rollout_ref.actor.use_kl_loss=True
                    actor_rollout_ref.actor.kl_loss_coef=0.01)
        elif [ "$USE_KL" = reward ]; then
            EXTRA+=(algorithm.use_kl_in_reward=True)
        fi
        [ "${CP:-1}" -gt 1 ] && EXTRA+=(data.seed=9)
        [[ -n "${TAG:-}" ]] || TAG=plain
        python3 -m verl.trainer.main_ppo "${EXTRA[@]}" trainer.experiment_name=$TAG
        """,
        ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.01",
         "trainer.experiment_name=plain"],
    ),
    "functions": (
        """
        log() { echo "[run] $*" >&2; }
        data_args() { local d=$1; printf '%s\\n' "data.train_files=$d/train.jsonl" "data.seed=3"; }
        train() {
            log starting
            python3 -m verl.trainer.main_ppo "$@"
        }
        mapfile -t ARGS < <(data_args sets/sums)
        train "${ARGS[@]}" actor_rollout_ref.rollout.n=4
        """,
        ["data.train_files=sets/sums/train.jsonl", "data.seed=3", "actor_rollout_ref.rollout.n=4"],
    ),
    "a script that is written first": (
        """
        N=5
        cat > job.sh <<EOF
        #!/bin/bash
        export PYTHONUNBUFFERED=1
        python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=$N data.seed=\\$((1 + 1))
        EOF
        chmod +x job.sh
        bash job.sh
        """,
        ["actor_rollout_ref.rollout.n=5", "data.seed=2"],
    ),
    "a job of ray": (
        """
        RUNTIME_ENV=${RUNTIME_ENV:-"./runtime_env.yaml"}
        ray job submit --no-wait --address "http://127.0.0.1:8265" --runtime-env="${RUNTIME_ENV}" \\
            --working-dir "." -- python3 -m recipe.dapo.main_dapo \\
            data.gen_batch_size=$((512 * 3)) "data.train_files=['$HOME/a.parquet']" \\
            algorithm.filter_groups.enable=True
        """,
        ["data.gen_batch_size=1536", "data.train_files=['~/a.parquet']",
         "algorithm.filter_groups.enable=True"],
    ),
    "slurm": (
        """
        #SBATCH --nodes=2
        set -e
        head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        srun --nodes=1 -w "$head" ray start --head --block &
        sleep 30
        srun --overlap -w "$head" bash -lc "cd /code && python3 -u -m verl.trainer.main_ppo \\
            trainer.nnodes=2 \\
            trainer.logger='[\\"console\\"]' actor_rollout_ref.actor.optim.lr=2e-6" \\
            2>&1 | tee verl.log
        """,
        ["trainer.nnodes=2", 'trainer.logger=["console"]', "actor_rollout_ref.actor.optim.lr=2e-6"],
    ),
    "in the background": (
        """
        LOG=/mnt/logs/$(date +%s)
        mkdir -p $LOG
        HYDRA_FULL_ERROR=1 nohup python3 -m verl.trainer.main_ppo data.seed=7 \\
            'data.val_files=[a.jsonl, b.jsonl]' > $LOG/train.log 2>&1 &
        echo $! > $LOG/pid
        wait
        """,
        ["data.seed=7", "data.val_files=[a.jsonl, b.jsonl]"],
    ),
    "a launcher in an array": (
        """
        LAUNCH=(python3)
        if [ "${VERL_USE_UV:-1}" != 0 ]; then
            uv sync --extra vllm --frozen
            LAUNCH=(uv run --frozen --no-sync python3)
        fi
        "${LAUNCH[@]}" -m verl.trainer.main_ppo data.seed=11 "$@"
        """,
        ["data.seed=11"],
    ),
    "a strict shell on another machine": (
        """
        set -euo pipefail
        ulimit -n 65535
        set +u
        source /opt/conda/etc/profile.d/conda.sh
        conda activate verl
        set -u
        . ~/.bashrc
        cd /mnt/code/verl
        git pull --ff-only
        pip install -e . > /dev/null
        export PATH=/usr/bin:/bin:/opt/cuda/bin:$PATH NCCL_DEBUG=WARN
        unset ROCR_VISIBLE_DEVICES
        rm -rf checkpoints && mkdir -p checkpoints/logs
        ray stop --force || true
        exec python3 -m verl.trainer.main_ppo data.seed=13 trainer.default_local_dir=$(pwd)/out
        """,
        ["data.seed=13", "trainer.default_local_dir=/mnt/code/verl/out"],
    ),
    "a command as text": (
        """
        CMD="python3 -m verl.trainer.main_ppo"
        CMD="$CMD data.seed=17"
        CMD+=" trainer.logger='[\\"console\\"]'"
        echo "Running: $CMD"
        eval $CMD
        """,
        ["data.seed=17", 'trainer.logger=["console"]'],
    ),
    "files of a loop": (
        """
        files=()
        for set in gsm8k math; do files+=("'$HOME/data/$set/train.parquet'"); done
        list=$(IFS=,; echo "[${files[*]}]")
        python3 -m verl.trainer.main_ppo data.train_files="$list" data.val_files="[${files[1]}]"
        """,
        ["data.train_files=['~/data/gsm8k/train.parquet','~/data/math/train.parquet']",
         "data.val_files=['~/data/math/train.parquet']"],
    ),
    "a program by its path": (
        """
        VENV=/opt/venvs/verl
        PY="$VENV/bin/python"
        CUDA_VISIBLE_DEVICES=0,1 "$PY" -u -m verl.trainer.main_ppo data.seed=19 \\
            2>&1 | tee -a out.log
        """,
        ["data.seed=19"],
    ),
    "the script's own folder": (
        """
        HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
        name=$(basename "$0" .sh)
        python3 -m verl.trainer.main_ppo data.seed=23 trainer.experiment_name=$name \\
            actor_rollout_ref.rollout.multi_turn.tool_config_path="$HERE/tools.yaml" \\
            custom_reward_function.path=$PWD/reward.py
        """,
        ["data.seed=23", "trainer.experiment_name=run",
         "actor_rollout_ref.rollout.multi_turn.tool_config_path=./tools.yaml",
         "custom_reward_function.path=./reward.py"],
    ),
    "variables of one command": (
        """
        export VLLM_USE_V1=1
        env -u HTTP_PROXY WANDB_MODE=offline python3 -m verl.trainer.main_ppo data.seed=29
        """,
        ["data.seed=29"],
    ),
    "changed texts": (
        """
        MODEL=Qwen/Qwen2.5-7B-Instruct
        short=${MODEL##*/}; short=${short,,}; short=${short//[.-]/_}
        [[ $MODEL =~ ([0-9]+)B ]] && size=${BASH_REMATCH[1]}
        org=${MODEL%/*}
        printf -v name '%s-%03d' "$org" "$size"
        python3 -m verl.trainer.main_ppo trainer.experiment_name=$short \\
            trainer.project_name=$name \\
            trainer.nnodes=${#org} data.seed=${MODEL:9:1}
        """,
        ["trainer.experiment_name=qwen2_5_7b_instruct", "trainer.project_name=Qwen-007",
         "trainer.nnodes=4", "data.seed=2"],
    ),
    "sums by other commands": (
        """
        batch=64
        half=$(echo "$batch" | awk '{print $1 / 2}')
        lr=$(awk "BEGIN { printf \\"%.1e\\", 0.000001 * 2 }")
        double=$(expr $batch \\* 2)
        steps=$(seq 1 3 | wc -l)
        name=$(echo "a/b" | sed 's#/#-#g' | tr a-z A-Z)
        python3 -m verl.trainer.main_ppo data.train_batch_size=$double \\
            trainer.experiment_name=$name \\
            actor_rollout_ref.actor.ppo_mini_batch_size=$half \\
            actor_rollout_ref.actor.optim.lr=$lr \\
            trainer.total_training_steps=$steps
        """,
        ["data.train_batch_size=128", "trainer.experiment_name=A-B",
         "actor_rollout_ref.actor.ppo_mini_batch_size=32",
         "actor_rollout_ref.actor.optim.lr=2.0e-06",
         "trainer.total_training_steps=3"],
    ),
    "options with defaults": (
        """
        N=8; LR=1e-6
        while getopts "n:l:" opt; do
            case $opt in n) N=$OPTARG ;; l) LR=$OPTARG ;; esac
        done
        shift $((OPTIND - 1))
        while [[ $# -gt 0 ]]; do
            case "$1" in --lr) LR="$2"; shift 2 ;; *) echo "unknown $1"; exit 2 ;; esac
        done
        python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=$N \\
            actor_rollout_ref.actor.optim.lr=$LR
        """,
        ["actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.optim.lr=1e-6"],
    ),
    "another machine": (
        """
        HOST=node-1
        ssh -o StrictHostKeyChecking=no $HOST "cd /code/verl && python3 -m verl.trainer.main_ppo \\
            data.seed=31 trainer.n_gpus_per_node=8"
        """,
        ["data.seed=31", "trainer.n_gpus_per_node=8"],
    ),
    "quotes in quotes": (
        """
        keys='["a b", "c"]'
        python3 -m verl.trainer.main_ppo "data.prompt_key=my prompt" data.files="$keys" \\
            +data.pattern='^[a-z]+$' $'trainer.project_name=it\\'s' data.cost=\\$5 \\
            "+data.note=x > y && z" ~data.gone ++data.list="[1,2]"
        """,
        ["data.prompt_key=my prompt", 'data.files=["a b", "c"]', "+data.pattern=^[a-z]+$",
         "trainer.project_name=it's", "data.cost=$5", "+data.note=x > y && z", "~data.gone",
         "++data.list=[1,2]"],
    ),
    "named values": (
        """
        declare -A LR=([7b]=1e-6 [32b]=5e-7)
        SIZE=${SIZE:-32b}
        for key in data.seed data.shuffle; do
            case $key in data.seed) v=37 ;; *) v=False ;; esac
            ARGS+=("$key=$v")
        done
        python3 -m verl.trainer.main_ppo "${ARGS[@]}" actor_rollout_ref.actor.optim.lr=${LR[$SIZE]}
        """,
        ["data.seed=37", "data.shuffle=False", "actor_rollout_ref.actor.optim.lr=5e-7"],
    ),
    "commands that nobody has": (
        """
        my_cluster_setup --mount /data && echo ready
        command -v wandb && wandb login --relogin "$WANDB_API_KEY"
        huggingface-cli download Qwen/Qwen3-8B --local-dir /models/q || exit 1
        (python3 -m verl.trainer.main_ppo data.seed=41)
        """,
        ["data.seed=41"],
    ),
    "a preparation and a training": (
        """
        [ -f $HOME/data/train.parquet ] || python3 examples/data_preprocess/gsm8k.py --local_dir x
        python3 -m verl.trainer.main_ppo data.seed=43 data.train_files=$HOME/data/train.parquet
        python3 -m verl.model_merger merge --backend fsdp --local_dir=checkpoints
        """,
        ["data.seed=43", "data.train_files=~/data/train.parquet"],
    ),
    "nothing set from outside": (
        """
        OPTIONAL="${LORA:+actor_rollout_ref.model.lora_rank=$LORA}"
        python3 -m verl.trainer.main_ppo data.seed=47 $OPTIONAL $MORE_ARGS ${@:1}
        """,
        ["data.seed=47"],
    ),
    "braces and ranges": (
        """
        { read -r a b; } <<< "4 8"
        total=0; for ((i = 1; i <= a; i++)); do total=$((total + i)); done
        for f in {1..3}; do list="$list${list:+,}part-$f.parquet"; done
        n=1; until (( n >= b )); do (( n *= 2 )); done
        python3 -m verl.trainer.main_ppo data.seed=$total \\
            data.train_files="[$list]" trainer.nnodes=$n
        """,
        ["data.seed=10", "data.train_files=[part-1.parquet,part-2.parquet,part-3.parquet]",
         "trainer.nnodes=8"],
    ),
    "numbers in hexadecimal, ternaries and files": (
        """
        echo "batch=72" > settings.env
        source ./settings.env
        seed=$((0x10 > 15 ? 53 : 0))
        python3 -m verl.trainer.main_ppo data.train_batch_size=$batch data.seed=$seed \\
            $( [ "$batch" -ge 64 ] && echo "actor_rollout_ref.actor.use_dynamic_bsz=True" )
        """,
        ["data.train_batch_size=72", "data.seed=53",
         "actor_rollout_ref.actor.use_dynamic_bsz=True"],
    ),
}  # fmt: skip
BY_AJET_ALONE = ("slurm", "in the background", "a strict shell on another machine",
                 "another machine",
                 "a program by its path", "commands that nobody has", "a job of ray",
                 "a launcher in an array", "options without a value", "a recipe by its path",
                 "a pipe that nobody reads", "a program of the user's own",
                 "a command line for a scheduler")  # fmt: skip
"""Scripts that name what the second witness lacks."""


def written(folder: Path, script: str, name: str = "run.sh") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(script))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("style", SCRIPTS)
def test_a_script_has_the_arguments_that_bash_gives(style, folder):
    script, arguments = SCRIPTS[style]
    line = read_script(written(folder, script), VERL)
    assert line.overrides == arguments
    assert not line.unknown and not line.to_do


@pytest.mark.parametrize("style", [style for style in SCRIPTS if style not in BY_AJET_ALONE])
def test_bash_without_ajet_gives_the_same_arguments(style, folder):
    script, arguments = SCRIPTS[style]
    path = written(folder, script)
    commands = folder / "commands"
    commands.mkdir()
    for name in ("python3", "uv", "huggingface-cli"):
        line = 'case "$*" in *main_ppo*) printf "%s\\0" "$@" > "$WITNESS" ;; esac'
        (commands / name).write_text(f"#!/bin/bash\n{line}\n")
        (commands / name).chmod(0o755)
    environment = {
        "PATH": f"{commands}:/usr/bin:/bin", "HOME": str(folder / "home"),
        "WITNESS": str(folder / "witness"),
    }  # fmt: skip
    subprocess.run(["bash", path], env=environment, cwd=folder, capture_output=True, check=False)
    words = (folder / "witness").read_text().split("\0")[:-1]
    named = [word.replace(f"{folder}/home", "~").replace(str(folder), ".") for word in words]
    assert [word for word in named if "=" in word or word.startswith("~data")] == arguments


UNKNOWN = {
    "the number of GPUs": (
        """
        GPUS=$(nvidia-smi -L | wc -l)
        python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$GPUS \\
            data.train_batch_size=$((GPUS * 8)) \\
            data.seed=1
        """,
        ["data.seed=1"], {"trainer.n_gpus_per_node", "data.train_batch_size"},
    ),
    "a variable that must be set": (
        """
        model=${MODEL:?give the folder}
        python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path="$model/final" data.seed=2
        """,
        ["data.seed=2"], {"actor_rollout_ref.model.path"},
    ),
    "a sum of what is not set": (
        """
        python3 -m verl.trainer.main_ppo data.train_batch_size=$((GROUPS_OF_A_NODE * 16)) \\
            data.seed=3
        """,
        ["data.seed=3"], {"data.train_batch_size"},
    ),
    "arguments of the script": (
        """
        if [ $# -lt 2 ]; then echo "usage: $0 N FOLDER"; exit 1; fi
        n=$1; out=$2; shift 2
        python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=$n data.seed=4 \\
            trainer.default_local_dir=$out/x "$@"
        """,
        ["data.seed=4"], {"actor_rollout_ref.rollout.n", "trainer.default_local_dir"},
    ),
    "a count of the numbers in an argument": (
        """
        if [ $# -lt 1 ]; then exit 1; fi
        gpus=$(echo $1 | tr , ' ' | wc -w)
        size=2; if [ $((gpus % 2)) = 1 ]; then size=1; fi
        python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$gpus data.seed=6 \\
            actor_rollout_ref.rollout.tensor_model_parallel_size=$size
        """,
        ["data.seed=6"],
        {"trainer.n_gpus_per_node", "actor_rollout_ref.rollout.tensor_model_parallel_size"},
    ),
    "an argument that is not asked for": (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$1 data.seed=5",
        ["data.seed=5"], {"actor_rollout_ref.model.path"},
    ),
    "a branch on what a command printed": (
        """
        gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
        if [[ $gpu == *H100* ]]; then batch=256; else batch=128; fi
        case $gpu in *B200*) lr=2e-6 ;; *) lr=1e-6 ;; esac
        nvidia-smi topo -m | grep -q NVLink && n=16 || n=8
        [ "$(uname)" = Linux ] && seed=6
        python3 -m verl.trainer.main_ppo data.train_batch_size=$batch data.seed=$seed \\
            actor_rollout_ref.actor.optim.lr=$lr actor_rollout_ref.rollout.n=$n
        """,
        ["data.seed=6"],
        {"data.train_batch_size", "actor_rollout_ref.actor.optim.lr",
         "actor_rollout_ref.rollout.n"},
    ),
    "a branch on how a command ended": (
        """
        if python3 -c "import flash_attn"; then micro=8; else micro=2; fi
        python3 -m verl.trainer.main_ppo data.train_batch_size=$micro data.seed=7
        """,
        ["data.seed=7"], {"data.train_batch_size"},
    ),
    "time, chance and place": (
        """
        NAME=grpo-$(date +%m%d)-x
        python3 -m verl.trainer.main_ppo trainer.experiment_name=$NAME data.seed=$RANDOM \\
            trainer.project_name=$(hostname)-$USER data.shuffle=True \\
            data.val_batch_size=$(cat /n.txt)
        """,
        ["data.shuffle=True"],
        {"trainer.experiment_name", "data.seed", "trainer.project_name", "data.val_batch_size"},
    ),
    "a variable that is tested and used": (
        """
        [ -n "$CKPT" ] && echo "from $CKPT"
        if [ -z "$TAG" ]; then TAG=v1; fi
        python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$CKPT data.seed=8 \\
            trainer.experiment_name=$TAG
        """,
        ["data.seed=8", "trainer.experiment_name=v1"], {"actor_rollout_ref.model.path"},
    ),
    "a script that waits": (
        """
        while ! ray status | grep -q "16.0 GPU"; do sleep 5; done
        python3 -m verl.trainer.main_ppo data.seed=9 trainer.nnodes=$(ray status | grep -c node)
        """,
        ["data.seed=9"], {"trainer.nnodes"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("style", UNKNOWN)
def test_what_bash_cannot_know_is_unknown_and_the_rest_is_not(style, folder):
    script, arguments, unknown = UNKNOWN[style]
    line = read_script(written(folder, script), VERL)
    assert (line.overrides, set(line.unknown)) == (arguments, unknown)


def test_what_is_known_of_an_unknown_value_is_shown(folder):
    script, *_ = UNKNOWN["time, chance and place"]
    line = read_script(written(folder, script), VERL)
    assert line.unknown["trainer.experiment_name"] == "grpo-…-x"
    assert line.unknown["trainer.project_name"] == "…-…"
    assert line.unknown["data.val_batch_size"] == "…"


def test_a_script_reads_the_scripts_that_it_names(folder):
    written(folder, "export LR=3e-6\n", "scripts/env.sh")
    written(
        folder,
        """
        python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.lr=$LR data.seed=1 "$@"
        """,
        "scripts/base.sh",
    )
    path = written(
        folder,
        """
        cd "$(dirname "$0")/.."
        source scripts/env.sh
        bash "$(dirname "$0")/base.sh" data.seed=${SEED:-5}
        """,
        "scripts/run.sh",
    )
    assert read_script(path, VERL).overrides == [
        "actor_rollout_ref.actor.optim.lr=3e-6", "data.seed=1", "data.seed=5",
    ]  # fmt: skip


def test_a_script_is_found_behind_a_variable_and_by_other_suffixes(folder):
    written(folder, "LR=4e-6\n", "lib/lr.env")
    written(folder, "launch() { python3 -m verl.trainer.main_ppo $OPTION; }\n", "lib/common.sh")
    script = """
        here=$(cd -- "$(dirname "$0")" && pwd)
        source "$here/lib/common.sh"
        source lib/lr.env
        OPTION=actor_rollout_ref.actor.optim.lr=$LR launch
        """
    line = read_script(written(folder, script), VERL)
    assert line.overrides == ["actor_rollout_ref.actor.optim.lr=4e-6"]


def test_arguments_that_come_from_a_file_are_said_to_be_missing(folder):
    script = "python3 -m verl.trainer.main_ppo data.seed=1 $(cat options.txt)"
    line = read_script(written(folder, script), VERL)
    assert line.overrides == ["data.seed=1"]
    assert line.to_do == [
        "some arguments are not known, such as those of a file: give what they set as key=value"
    ]


def test_a_file_that_bash_reads_and_that_is_not_here_is_named(folder):
    script = """
        while IFS= read -r line; do OPTIONS+=("$line"); done < set/options.txt
        python3 -m verl.trainer.main_ppo data.seed=1 "${OPTIONS[@]}"
        """
    line = read_script(written(folder, script), VERL)
    assert line.overrides == ["data.seed=1"]
    assert line.to_do == [
        "run.sh reads set/options.txt, which is not here: what it sets is missing"
    ]


SEVERAL = """
    for N in 2 4; do
        python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=$N data.seed=1
    done
    python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=4 data.seed=2 trainer.nnodes=$NODES
    """
LISTED = (
    "3 trainings (1: actor_rollout_ref.rollout.n=2, data.seed=1; "
    "2: actor_rollout_ref.rollout.n=4, data.seed=1; "
    "3: actor_rollout_ref.rollout.n=4, data.seed=2, trainer.nnodes=)"
)


@pytest.mark.parametrize(
    ("number", "arguments", "unknown"),
    [
        (1, ["actor_rollout_ref.rollout.n=2", "data.seed=1"], set()),
        (2, ["actor_rollout_ref.rollout.n=4", "data.seed=1"], set()),
        (3, ["actor_rollout_ref.rollout.n=4", "data.seed=2"], {"trainer.nnodes"}),
    ],
)
def test_of_several_trainings_the_chosen_one_is_taken_and_all_are_listed(
    folder, number, arguments, unknown
):
    line = read_script(written(folder, SEVERAL), VERL, launch=number)
    assert (line.overrides, set(line.unknown)) == (arguments, unknown)
    assert line.to_do == [
        f"run.sh starts {LISTED}: number {number} is converted, and --launch takes another"
    ]


def test_what_an_unknown_estimator_decides_is_not_verls_default(folder):
    script = """
        python3 -m verl.trainer.main_ppo algorithm.adv_estimator=$ADV critic.optim.lr=1e-4 \\
            actor_rollout_ref.actor.policy_loss.loss_mode=$LOSS
        """
    result = convert("verl", written(folder, script))
    algorithm = "ajet.trainer_common.algorithm"
    assert set(result.blanks) == {f"{algorithm}.adv_estimator", f"{algorithm}.policy_loss"}
    assert not [key for key in result.values if ".critic." in key]
    assert result.to_do[:2] == [
        "convert again with algorithm.adv_estimator=…: it decides how a critic's keys and those of "
        "gdpo's rewards are converted",
        "convert again with actor_rollout_ref.actor.policy_loss.loss_mode=…: it decides how the "
        "loss's bounds are converted",
    ]


def test_a_number_that_no_training_has_is_one_line_with_those_there_are(folder):
    path = written(folder, SEVERAL)
    with pytest.raises(ConfigError) as error:
        convert("verl", path, launch=4)
    assert str(error.value) == f"{path}: --launch 4: it starts {LISTED}"
    one = written(folder, "python3 -m verl.trainer.main_ppo data.seed=1", "one.sh")
    with pytest.raises(ConfigError, match=r"--launch 2: it starts 1 training$"):
        convert("verl", one, launch=2)


def test_a_script_that_ends_without_its_files_is_read_as_if_they_were_there(folder):
    script = """
        DATA=$HOME/data/train.parquet
        if [ ! -f "$DATA" ]; then echo "no $DATA"; exit 1; fi
        python3 -m verl.trainer.main_ppo data.train_files=$DATA
        """
    line = read_script(written(folder, script), VERL)
    assert line.overrides == ["data.train_files=~/data/train.parquet"]
    assert line.to_do == [
        "run.sh starts the training only where files exist that it looks for: it was read as if "
        "they did"
    ]


def test_a_script_that_waits_for_a_folder_is_read_as_if_it_were_there(folder):
    script = """
        waited=0
        while [[ ! -d "/raid/$JOB" && $waited -lt 60 ]]; do sleep 5; waited=$((waited + 5)); done
        if [[ ! -d "/raid/$JOB" ]]; then exit 1; fi
        for ((i = 1; i < NODES; i++)); do srun ray start; done
        python3 -m verl.trainer.main_ppo data.seed=1 trainer.nnodes=$NODES
        """
    line = read_script(written(folder, script), VERL)
    assert line.overrides == ["data.seed=1"]
    # Only runs with few nodes reach the training, and they have different numbers of them.
    assert set(line.unknown) == {"trainer.nnodes"}


CHOICE = """
    case "${1:-}" in
        small) BATCH=8 ;;
        *) echo "which one?"; exit 1 ;;
    esac
    python3 -m verl.trainer.main_ppo data.train_batch_size=$BATCH "${@:2}"
    """


def test_a_script_that_needs_arguments_is_called_by_another(folder):
    path = written(folder, CHOICE, "choice.sh")
    with pytest.raises(ConfigError, match=r"it reads arguments: .*\(bash choice.sh ARGUMENT …\)"):
        read_script(path, VERL)
    for name in ("choice.sh", str(path)):
        line = read_script(written(folder, f"bash {name} small data.seed=1"), VERL)
        assert line.overrides == ["data.train_batch_size=8", "data.seed=1"]


def test_a_config_that_is_not_here_may_set_what_verl_has_a_default_for(folder):
    call = "python3 -m verl.trainer.main_ppo --config-name mine"
    with pytest.raises(ConfigError, match=r"everything it sets is in mine.yaml, which is not here"):
        convert("verl", written(folder, call))
    shipped = written(folder, call.replace("mine", "transfer_queue_ppo_trainer data.seed=1"))
    assert not convert("verl", shipped).of("unknown")
    text = yaml_text(convert("verl", written(folder, f"{call} data.max_prompt_length=99")))
    assert "max_prompt_length: 99  # data.max_prompt_length\n" in text
    assert (
        "train_batch_size: 1024  # data.train_batch_size: verl's default, unless mine.yaml" in text
    )


@pytest.mark.parametrize(
    ("program", "is_verls"),
    [
        ("-m verl.trainer.main_ppo", True),
        ("-m verl.experimental.fully_async_policy.fully_async_main", True),
        ("-m recipe.dapo.main_dapo", True),
        ("-m recipe.spin.main_spin", False),
        ("recipe/sums/main_ppo.py", False),
        ("my_sums.py actor_rollout_ref.rollout.n=2", False),
    ],
)
def test_a_recipe_that_changes_the_trainer_is_named(program, is_verls, folder):
    result = convert("verl", written(folder, f"python3 {program} data.seed=1"))
    programs = [entry.shown for entry in result.of("algorithm") if entry.key == "program"]
    name = program.removeprefix("-m ").partition(" ")[0]
    assert programs == ([] if is_verls else [f"program = {name}"])


def test_nothing_of_the_script_runs_for_real(folder, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "s3cret")
    kept = written(folder, "kept", "home/kept.txt")
    monkeypatch.setenv("HOME", str(kept.parent))
    script = f"""
        /usr/bin/touch {folder}/made; echo x > {folder}/made2; rm -f {kept}
        /usr/bin/python3 -c "open('{folder}/made3', 'w')"
        command python3 -c "open('{folder}/made4', 'w')"
        a=$(cat {kept}); b=$(</etc/hostname); exec 3<>/dev/tcp/127.0.0.1/1 && c=1
        python3 -m verl.trainer.main_ppo data.a="$MY_SECRET" data.b="$a" data.d=1
        """
    line = read_script(written(folder, script), VERL)
    assert line.overrides == ["data.d=1"] and set(line.unknown) == {"data.a", "data.b"}
    assert sorted(path.name for path in folder.iterdir()) == ["home", "run.sh"]
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo hello", "no command here calls verl; give the YAML"),
        ("while true; do :; done", "bash was stopped, since it did not finish"),
        ("if then", "bash ended with 2"),
        (
            "torchrun -m verl.trainer.sft_trainer data.seed=1",
            "which is not a reinforcement training",
        ),
    ],
)
def test_a_script_that_starts_no_training_is_one_line(script, problem, folder):
    with pytest.raises(ConfigError, match=problem) as error:
        read_script(written(folder, script), VERL)
    assert "\n" not in str(error.value)


def test_without_a_sandbox_that_holds_nothing_is_guessed(folder, monkeypatch):
    monkeypatch.setattr(SandboxPool, "holds", False)
    with pytest.raises(ConfigError, match="bash reads a script in a sandbox, and none holds here"):
        read_script(written(folder, SCRIPTS["continued lines"][0]), VERL)


def test_without_bash_nothing_is_guessed(folder, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="bash reads a script, and there is none in /usr/bin"):
        read_script(written(folder, SCRIPTS["continued lines"][0]), VERL)


# ---- from the arguments to the YAML ----


def converted(folder: Path, arguments: str, before: str = "") -> Conversion:
    base = "data.train_files=d/train.parquet actor_rollout_ref.model.path=m"
    script = f"{before}\npython3 -m verl.trainer.main_ppo {base} {arguments}\n"
    return convert("verl", written(folder, script))


VALUES_BY_VERLS_RULES = [
    ("actor_rollout_ref.rollout.n=8 'actor_rollout_ref={rollout:{name:sglang}}'",
     {"ajet.rollout.num_repeat": 8, "ajet.rollout.name": "sglang"}),
    ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
     {"ajet.trainer_common.algorithm.loss_agg_mode": "seq-mean-token-mean"}),
    ("actor_rollout_ref.actor.optim.clip_grad=0.3",
     {"ajet.trainer_common.optim.grad_clip": 0.3}),
    ("actor_rollout_ref.actor.grad_clip=0.5",
     {"ajet.trainer_common.optim.grad_clip": 0.5}),
    ("actor_rollout_ref.actor.grad_clip=0.5 actor_rollout_ref.actor.optim.clip_grad=0.3",
     {"ajet.trainer_common.optim.grad_clip": 0.3}),
    ("algorithm.adv_estimator=gae critic.optim.clip_grad=0.2",
     {"ajet.trainer_common.critic.grad_clip": 0.2}),
    ("actor_rollout_ref.actor.clip_ratio_low=null actor_rollout_ref.actor.clip_ratio=0.3",
     {"ajet.trainer_common.algorithm.clip_low": 0.3}),
    ("data.seed=1", {"ajet.data.val_max_tasks": None}),
    ("data.val_max_samples=20", {"ajet.data.val_max_tasks": 20}),
    ("actor_rollout_ref.rollout.multi_turn.enable=True data.max_response_length=4096",
     {"ajet.rollout.multi_turn.max_steps": 4096}),
    ("actor_rollout_ref.rollout.multi_turn.max_assistant_turns=50",
     {"ajet.rollout.multi_turn.max_steps": 50}),
    ("algorithm.filter_groups.enable=True actor_rollout_ref.rollout.n=4 "
     "algorithm.adv_estimator=grpo",
     {"ajet.trainer_common.algorithm.dynamic_sampling.max_rounds": 100}),
    ("algorithm.adv_estimator=gae actor_rollout_ref.actor.ppo_epochs=4",
     {"ajet.trainer_common.critic.ppo_epochs": 4}),
    ("actor_rollout_ref.actor.optim.lr_decay_style=cosine actor_rollout_ref.actor.optim.lr=1e-6 "
     "actor_rollout_ref.actor.optim.min_lr=1e-7 trainer.total_training_steps=9",
     {"ajet.trainer_common.optim.min_lr_ratio": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "values"), VALUES_BY_VERLS_RULES)
def test_a_value_is_what_verl_makes_of_its_keys(arguments, values, folder):
    """Mappings merge, null bounds are clip_ratio, validation takes all rows, and so on."""
    assert values.items() <= converted(folder, arguments).values.items()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trainer.total_epochs=1 trainer.total_training_steps=500", "after 1 passes over the rows"),
        ("algorithm.filter_groups.enable=True", "verl goes on to fill a batch"),
        ("actor_rollout_ref.actor.grad_clip=0.5", "later ones read"),
        ("trainer.save_freq=5", "verl keeps all"),
        (
            "algorithm.adv_estimator=gae actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            "the critic's loss is a mean of tokens",
        ),
    ],
)
def test_what_verl_does_otherwise_is_said(arguments, said, folder):
    result = converted(folder, arguments)
    assert said in "\n".join([*result.to_do, *(each.reason for each in result.left_out)])


@pytest.mark.parametrize("form", ["", "--config-name=one_step_off_ppo_trainer.yaml"])
def test_the_one_step_off_trainer_has_its_own_defaults(form, folder):
    program = "verl.experimental.one_step_off_policy.main_ppo"
    base = "data.train_files=d/train.parquet actor_rollout_ref.model.path=m data.seed=1"
    file = written(folder, f"python3 -m {program} {form} {base}\n")
    values = convert("verl", file).values
    assert values["ajet.trainer_common.algorithm.old_logprobs"] == "sampler"
    assert values["trinity.max_staleness"] == 1


def test_the_fully_async_trainer_has_its_own_defaults(folder):
    program = "verl.experimental.fully_async_policy.fully_async_main"
    base = "data.train_files=d/train.parquet actor_rollout_ref.model.path=m"
    file = written(folder, f"python3 -m {program} {base} data.train_batch_size=0\n")
    result = convert("verl", file)
    assert result.values["trinity.synchronizer.sync_interval"] == 4
    assert result.values["trinity.max_staleness"] == 4  # of ceil(1.1 x 4) = 5, one is trained
    assert result.values["ajet.data.train_batch_size"] == 256  # a mini-batch
    assert result.values["ajet.trainer_common.nnodes"] == 2  # 8 GPUs to train, 8 to generate
    assert result.values["ajet.trainer_common.algorithm.old_logprobs"] == "sampler"
    assert any("--backbone trinity" in line for line in result.to_do)


def test_a_value_that_is_not_known_is_a_blank_and_no_default(folder):
    before = "BATCH=$((NODES * 8)); LENGTH=$((1024 * 28))"
    result = converted(
        folder,
        "algorithm.adv_estimator=grpo data.train_batch_size=$BATCH "
        "data.max_response_length=$LENGTH",
        before,
    )
    assert result.blanks == {
        "ajet.data.train_batch_size": "data.train_batch_size = …: not known",
        "ajet.trainer_common.mini_batch_num": "data.train_batch_size = …: not known",
    }
    assert result.values["ajet.data.max_response_length"] == 28672
    assert result.changes_the_algorithm
    text = yaml_text(result)
    assert "train_batch_size: ???" in text.replace("'", "") and "1024" not in text
    file = folder / "mine.yaml"
    file.write_text(text)
    with pytest.raises(
        ConfigError, match=r"mine\.yaml: ajet\.data\.train_batch_size is left blank"
    ):
        load_config(file)
    filled = ["ajet.data.train_batch_size=64", "ajet.trainer_common.mini_batch_num=2"]
    assert load_config(file, filled).ajet.data.train_batch_size == 64


def test_tools_whose_path_is_not_known_still_need_the_agent_of_tools(folder):
    turns = "actor_rollout_ref.rollout.multi_turn"
    result = converted(folder, f"{turns}.enable=True {turns}.tool_config_path=$ROOT/tools.yaml")
    assert list(result.blanks) == ["ajet.rollout.multi_turn.tool_config_path"]
    assert result.values["ajet.rollout.user_workflow"] == "tool_agent"
    assert result.values["ajet.rollout.multi_turn.max_tool_response_length"] == 64


def test_an_override_replaces_what_is_not_known(folder):
    path = written(
        folder,
        "python3 -m verl.trainer.main_ppo data.train_batch_size=$B data.train_files=d/a.jsonl",
    )
    result = convert("verl", path, ["data.train_batch_size=48"])
    assert result.values["ajet.data.train_batch_size"] == 48 and not result.blanks


def test_files_that_are_not_known_are_a_blank(folder):
    files = "data.train_files=$DATA/train.parquet data.val_files=d/test.parquet"
    path = written(
        folder, f"python3 -m verl.trainer.main_ppo {files} trainer.project_name=$(which python3)"
    )
    result = convert("verl", path)
    dataset = "ajet.task_reader.dataset"
    assert result.blanks == {f"{dataset}.training": "data.train_files = …/train.parquet: not known"}
    assert result.values[f"{dataset}.validation"] == "d/test.parquet"
    assert result.values["ajet.task_reader.type"] == "dataset"
    assert result.values["ajet.project_name"] == "python3"


def test_what_omegaconf_cannot_read_is_a_blank_and_no_traceback(folder):
    result = converted(folder, "'actor_rollout_ref.rollout.n=${N:?how many}'")
    assert result.blanks == {
        "ajet.rollout.num_repeat": "actor_rollout_ref.rollout.n = ${N:?how many}: not known"
    }


def test_a_name_that_is_not_known_is_listed_and_no_blank(folder):
    result = converted(folder, "trainer.experiment_name=q-$(date +%F)")
    assert not result.blanks and "ajet.experiment_name" not in result.values
    assert [(each.key, each.value) for each in result.of("unknown")] == [
        ("trainer.experiment_name", "q-…")
    ]


def test_a_count_of_tokens_is_not_hidden_as_a_secret(folder):
    result = converted(folder, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(nproc)k")
    (origin,) = result.blanks.values()
    assert origin == "actor_rollout_ref.actor.ppo_max_token_len_per_gpu = …k: not known"


def test_a_limit_that_is_not_known_is_not_compared_with_a_default(folder):
    reward = "reward.reward_kwargs.overlong_buffer_cfg"
    result = converted(folder, f"+{reward}.enable=True +{reward}.len=$((BUFFER / 2))")
    target = "ajet.trainer_common.algorithm.overlong.buffer_len"
    assert result.blanks == {target: f"{reward}.len = …: not known"}
    assert not result.of("algorithm")


def test_pools_whose_sizes_are_sums_are_of_the_same_size(folder):
    result = converted(
        folder,
        "trainer.nnodes=1 trainer.n_gpus_per_node=$((GPUS - 4)) rollout.nnodes=1 "
        "rollout.n_gpus_per_node=4",
        "GPUS=8",
    )
    assert result.values["ajet.trainer_common.n_gpus_per_node"] == 8
    assert result.values["ajet.rollout.n_vllm_engine"] == 4


def test_pools_whose_sizes_are_not_known_are_blanks(folder):
    result = converted(
        folder,
        "trainer.nnodes=1 trainer.n_gpus_per_node=$(nproc) rollout.nnodes=1 "
        "rollout.n_gpus_per_node=4",
    )
    assert list(result.blanks) == [
        "ajet.trainer_common.nnodes", "ajet.trainer_common.n_gpus_per_node",
    ]  # fmt: skip
    assert not result.of("machine") and result.values["ajet.rollout.n_vllm_engine"] == 4
    engines = "trainer.nnodes=1 trainer.n_gpus_per_node=4 rollout.nnodes=1 "
    result = converted(folder, engines + "rollout.n_gpus_per_node=$(nproc)")
    assert "ajet.trainer_common.n_gpus_per_node" in result.blanks
    assert "ajet.rollout.n_vllm_engine" in result.blanks


def test_a_warm_up_in_steps_of_an_unknown_batch_is_a_blank(folder):
    arguments = "data.train_batch_size=$(nproc) actor_rollout_ref.actor.optim.lr_warmup_steps=10"
    assert "ajet.trainer_common.optim.warmup_steps" in converted(folder, arguments).blanks
    steps = "data.train_batch_size=64 trainer.total_training_steps=$(nproc) "
    ratio = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"
    assert "ajet.trainer_common.optim.warmup_steps" in converted(folder, steps + ratio).blanks


def test_a_folder_of_rows_keeps_its_name(folder):
    script = """
        python3 -m verl.trainer.main_ppo data.train_files="['sets/Lots-Of-Sums']" \\
            data.val_files="['sets/Few-Sums']" data.custom_cls.path=rows.py \\
            data.custom_cls.name=Rows
        """
    result = convert("verl", written(folder, script))
    dataset = "ajet.task_reader.dataset"
    assert result.values[f"{dataset}.training"] == "sets/Lots-Of-Sums"
    assert result.values[f"{dataset}.validation"] == "sets/Few-Sums"
    assert not [key for key in result.values if key.endswith("_split")]
    assert [text for text in result.to_do if "see that the split test of sets/Few-Sums is" in text]
    reasons = {each.key: (each.category, each.reason) for each in result.left_out}
    assert reasons["data.custom_cls.path"] == (
        "algorithm",
        "this class makes the rows: write a BaseTaskReader, and "
        "ajet.task_reader.type: file.py->Class",
    )


def test_a_yaml_of_config_dir_is_found(folder):
    written(folder, "data: {train_batch_size: 32}", "recipe/mine/config/my_run.yaml")
    script = "python3 -m verl.trainer.main_ppo -cd recipe/mine/config -cn my_run data.seed=1"
    result = convert("verl", written(folder, script, "run.sh"))
    assert result.values["ajet.data.train_batch_size"] == 32


def test_a_yaml_beside_the_script_is_below_its_overrides(folder):
    written(
        folder,
        "data: {train_batch_size: 32, seed: 1}\nactor_rollout_ref: {rollout: {n: 3}}",
        "config/my_run.yaml",
    )
    script = """
        HERE="$(cd "$(dirname "$0")" && pwd)"
        python3 -m verl.trainer.main_ppo --config-path="$HERE/../config" --config-name=my_run \\
            data.seed=$((1 + 1)) data.train_batch_size=$(nproc)
        """
    result = convert("verl", written(folder, script, "scripts/run.sh"))
    assert result.values["ajet.seed"] == 2 and result.values["ajet.rollout.num_repeat"] == 3
    assert "ajet.data.train_batch_size" in result.blanks  # the YAML's 32 does not count
