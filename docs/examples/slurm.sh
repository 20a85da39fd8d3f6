#!/bin/bash
# Starts Ray on the machines of the allocation, then runs the command on the first of them. Not tested on a cluster.
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=16 --gpus-per-task=2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_USAGE_STATS_ENABLED=0
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --num-cpus=16 --block &
sleep 20
srun --nodes=3 --ntasks=3 -x "$head" ray start --address="$head:6379" --num-cpus=16 --block &
sleep 20
export RAY_ADDRESS="$head:6379"
srun --overlap --nodes=1 --ntasks=1 -w "$head" eb-saliency photos -o maps --skip-existing --engine ray
