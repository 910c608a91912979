"""Reading of the ranks of a job in a pool of processes or on a cluster, and merging of their summaries."""
