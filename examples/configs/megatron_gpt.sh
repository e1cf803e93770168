#!/bin/bash
# A GPT of 1.3 billion parameters on eight devices, in the arguments of Megatron-LM.
TP_SIZE=2
PP_SIZE=2

MODEL_ARGS=(
    --num-layers 24
    --hidden-size 2048
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --swiglu
    --position-embedding-type rope
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --vocab-size 50257
)
TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size 256
    --train-iters 100000
    --bf16
    --clip-grad 1.0
    --recompute-granularity selective
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP_SIZE}
    --pipeline-model-parallel-size ${PP_SIZE}
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
)

torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} \
    --data-path my-corpus_text_document --save checkpoints
