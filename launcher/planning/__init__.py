"""From a command and a cluster to what runs where: the job, its environment, its devices, the plan."""
