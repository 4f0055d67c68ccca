"""Slurm: agents are job steps inside an allocation; from a login node a batch job runs the launcher there."""
