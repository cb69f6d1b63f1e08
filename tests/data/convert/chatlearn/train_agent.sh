#!/bin/bash
set -x
export CHATLEARN=$(pwd)
source scripts/base_env.sh
export exp_name=agent_math
python chatlearn/entrypoint.py grpo \
        --config-file template/grpo_fsdp.yaml \
        runtime_args.exp_name=${exp_name} \
        runtime_args.task_type=agent \
        runtime_args.rollout_backend=sglang \
        runtime_args.use_rollout_manager=True \
        runtime_args.data_path=${CHATLEARN}/dataset/MATH-lighteval/train_agent.json \
        runtime_args.eval_data_path=${CHATLEARN}/dataset/MATH-lighteval/test_agent.json \
        runtime_args.output_dir=${CHATLEARN}/output/${exp_name} \
        runtime_args.num_episode=200 \
        runtime_args.sample_per_episode=2048 \
        runtime_args.train_global_batch_size=1024 \
        runtime_args.train_micro_batch_size=256 \
        runtime_args.log_args_dict.enable_wandb=True \
        models.policy_trainer.num_gpu=${num_device} \
        models.policy_trainer.load=Qwen/Qwen3-8B \
        models.policy_trainer.optimizer.lr=3e-6 \
        models.policy_trainer.pos_clip_ratio=0.28 \
        models.policy_trainer.kl_coef=0.01 \
        models.policy.is_sync_mode=False \
        models.policy.max_prompt_tokens_length=1024 \
        models.policy.max_response_tokens_length=2048 \
        models.policy.num_inference_per_prompt=16 \
        2>&1 | tee log_${exp_name}.log ; exit ${PIPESTATUS[0]}
